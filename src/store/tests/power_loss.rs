//! The loss of power: whatever was acknowledged is there afterwards, and nothing that nobody asked for.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::future::join_all;
use tokio::runtime::Runtime;

use super::disk::Disk;
use super::random::Random;
use super::*;

const TABLES: [&str; 2] = [ITEMS, OTHERS];

/// All that a store holds.
type Content = BTreeMap<(&'static str, u64), Vec<u8>>;

/// What is tried: what the writer's thread calls, which happens in the same way for the same seed, or all of it.
enum Subject {
    Engine(Engine),
    Store(Store, Runtime),
}

/// What happened, to be sure that the test tries what it should.
#[derive(Debug, Default)]
struct Seen {
    /// The power went while the store was being opened, or written to.
    opening: u32,
    writing: u32,
    /// A batch that was not acknowledged was there afterwards, or was not.
    survived: u32,
    vanished: u32,
}

// === impl Subject ===

impl Subject {
    fn open(disk: &Disk, whole: bool) -> Result<Self, OpenError> {
        if whole {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            Ok(Self::Store(disk.open()?, runtime))
        } else {
            Ok(Self::Engine(disk.engine(&[])?))
        }
    }

    /// Commits at the same time. The engine takes them as one.
    fn commit(&mut self, batches: Vec<Batch>) -> Vec<Result<(), CommitError>> {
        match self {
            Self::Engine(engine) => vec![engine.write(&batches); batches.len()],
            Self::Store(store, runtime) => {
                runtime.block_on(join_all(batches.into_iter().map(|batch| store.commit(batch))))
            }
        }
    }

    fn content(&mut self) -> Content {
        let mut content = Content::new();
        for table in TABLES {
            let entries = match self {
                Self::Engine(engine) => engine.load(table),
                Self::Store(store, _) => store.load(table),
            };
            content.extend(entries.unwrap().into_iter().map(|(key, value)| ((table, key), value)));
        }
        content
    }
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

/// One life of a store, ended by a loss of power: from what may be on the disk to what may be there afterwards. The
/// first of those is without anything that was not acknowledged.
fn live(disk: &Disk, random: &mut Random, whole: bool, known: Vec<Content>, seen: &mut Seen) -> Vec<Content> {
    // Also while it is being opened, which after a crash means repaired.
    match random.below(2) {
        0 => disk.lose_power_at_sync(1 + random.below(12)),
        _ => disk.lose_power_after(1 + random.below(80)),
    }
    let Ok(mut subject) = Subject::open(disk, whole) else {
        assert!(disk.is_dark());
        seen.opening += 1;
        return known;
    };
    let now = subject.content();
    assert!(known.contains(&now), "what is there is not what was asked for");
    if known.len() > 1 {
        let counter = if now == known[0] { &mut seen.vanished } else { &mut seen.survived };
        *counter += 1;
    }
    let mut possible = vec![now];
    for _ in 0..random.below(8) {
        let mut next = possible[0].clone();
        let batches: Vec<_> = (0..=random.below(3))
            .map(|_| {
                let batch = change(random, &mut next);
                possible.push(next.clone());
                batch
            })
            .collect();
        let results = subject.commit(batches);
        let done = results.iter().take_while(|result| result.is_ok()).count();
        assert!(results[done..].iter().all(Result::is_err), "a batch is there without the one before it");
        possible.drain(..done);
        if possible.len() > 1 {
            assert!(disk.is_dark());
            seen.writing += 1;
            if !whole {
                // One transaction: all of them or none.
                possible.drain(1..possible.len() - 1);
            }
            break;
        }
    }
    // Dropping the store closes it, and the power may go in the midst of that as well.
    possible
}

fn crashes(seed: u64, count: u32, whole: bool) -> Seen {
    let disk = Disk::new();
    drop(disk.create());
    let mut random = Random(seed);
    let mut possible = vec![Content::new()];
    let mut seen = Seen::default();
    for crash in 0..count {
        let life = || live(&disk, &mut random, whole, possible, &mut seen);
        match catch_unwind(AssertUnwindSafe(life)) {
            Ok(next) => possible = next,
            Err(_) => panic!("crash {crash} of seed {seed}"),
        }
        disk.restore_power(&mut random);
    }
    assert!(possible.contains(&Subject::open(&disk, whole).unwrap().content()), "the end of seed {seed}");
    seen
}

#[test]
fn nothing_acknowledged_is_lost_in_10_000_crashes() {
    let seen = std::thread::scope(|scope| {
        let halves = [1, 2].map(|seed| scope.spawn(move || crashes(seed, 5_000, false)));
        halves.map(|half| half.join().unwrap())
    });
    for seen in seen {
        println!("{seen:?}");
        assert!(seen.opening > 300 && seen.writing > 500, "{seen:?}");
        assert!(seen.survived > 50 && seen.vanished > 500, "{seen:?}");
    }
}

#[test]
fn nor_through_the_whole_store() {
    crashes(3, 500, true);
}

#[test]
fn the_same_seed_is_the_same_test() {
    assert_eq!(format!("{:?}", crashes(4, 50, false)), format!("{:?}", crashes(4, 50, false)));
}

/// The test above would notice a store that acknowledges too early.
#[test]
fn a_disk_that_lies_is_noticed() {
    let disk = Disk::new();
    drop(disk.create());
    disk.lie();
    let mut engine = disk.engine(&[]).unwrap();
    engine.write(&[put(1, "x")]).unwrap();
    disk.lose_power_after(0);
    drop(engine);
    let mut random = Random(0);
    let gone = (0..20).any(|_| {
        let disk = disk.copy();
        disk.restore_power(&mut random);
        disk.open().is_ok_and(|store| items(&store).is_empty())
    });
    assert!(gone);
}
