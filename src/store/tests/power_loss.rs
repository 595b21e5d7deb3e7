//! The loss of power: whatever was acknowledged is there afterwards, and nothing that nobody asked for.

use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::disk::{Disk, Random};
use super::*;

const TABLES: [&str; 2] = [ITEMS, OTHERS];

/// All that a store holds.
type Content = BTreeMap<(&'static str, u64), Vec<u8>>;

fn content(store: &Store) -> Content {
    let load = |table| store.load(table).unwrap().into_iter().map(move |(key, value)| ((table, key), value));
    TABLES.into_iter().flat_map(load).collect()
}

/// A batch, and what it makes of what was there.
fn change(random: &mut Random, content: &mut Content) -> Batch {
    let mut batch = Batch::new();
    // Now and then one that does not fit into redb's memory, and so is on its way to the disk before it is committed.
    let (count, size) = match random.below(40) {
        0 => (40, 8_000),
        1 => (1, 200_000),
        _ => (1 + random.below(6), 1_500),
    };
    for _ in 0..count {
        let table = TABLES[random.below(2) as usize];
        let key = random.below(48);
        if random.below(3) == 0 {
            batch.remove(table, key);
            content.remove(&(table, key));
        } else {
            let value = vec![random.next() as u8; random.below(size) as usize];
            batch.put(table, key, value.clone());
            content.insert((table, key), value);
        }
    }
    batch
}

/// One life of a store, ended by a loss of power: gives what may be on the disk then.
async fn live(disk: &Disk, random: &mut Random, known: Vec<Content>) -> Vec<Content> {
    // Also while it is being opened, which after a crash means repaired.
    disk.lose_power_after(1 + random.below(80));
    let Ok(store) = disk.open() else {
        assert!(disk.is_dark());
        return known;
    };
    let now = content(&store);
    assert!(known.contains(&now), "what is there is not what it was");
    let mut possible = vec![now];
    for _ in 0..random.below(6) {
        // Several at once share a transaction, or do not, as it happens.
        let mut commits = Vec::new();
        for _ in 0..=random.below(3) {
            let mut next = possible.last().unwrap().clone();
            let batch = change(random, &mut next);
            possible.push(next);
            commits.push(store.commit(batch));
        }
        let results = join_all(commits).await;
        let done = results.iter().take_while(|result| result.is_ok()).count();
        assert!(
            results[done..].iter().all(Result::is_err),
            "a later batch is there and an earlier one is not"
        );
        let unsure = results.len() - done;
        possible.drain(..possible.len() - 1 - unsure);
        if unsure > 0 {
            assert!(disk.is_dark());
            return possible;
        }
    }
    if random.below(4) == 0 {
        store.close().await;
    }
    possible
}

fn crashes(seed: u64, count: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let disk = Disk::new();
    runtime.block_on(disk.create().close());
    let mut random = Random(seed);
    let mut possible = vec![Content::new()];
    for crash in 0..count {
        let life = std::panic::AssertUnwindSafe(live(&disk, &mut random, possible)).catch_unwind();
        match runtime.block_on(life) {
            Ok(next) => possible = next,
            Err(_) => panic!("crash {crash} of seed {seed}"),
        }
        // The power may go while the store is being closed, too; from here on nothing more is written.
        disk.lose_power_after(0);
        disk.restore_power(&mut random);
    }
    let store = disk.open().unwrap();
    assert!(possible.contains(&content(&store)), "after the last crash of seed {seed}");
}

#[test]
fn nothing_acknowledged_is_lost_in_10_000_crashes() {
    // Two at a time: a machine has at least that many processors.
    std::thread::scope(|scope| {
        scope.spawn(|| crashes(1, 5_000));
        scope.spawn(|| crashes(2, 5_000));
    });
}
