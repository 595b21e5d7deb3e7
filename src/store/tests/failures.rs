//! A disk that is full, fails or rots, and how much is written to it.

use futures_util::FutureExt as _;
use futures_util::future::join_all;

use super::disk::Disk;
use super::random::Random;
use super::*;

fn large(key: u64) -> Batch {
    Batch::new().put(ITEMS, key, vec![b'x'; 100_000]).clone()
}

#[tokio::test]
async fn a_full_disk_is_reported_to_everybody_and_the_store_goes_on() {
    let disk = Disk::new();
    let store = disk.create();
    store.commit(put(1, "before")).await.unwrap();
    for _ in 0..3 {
        disk.set_space(Some(50_000));
        for result in join_all((10..14).map(|key| store.commit(large(key)))).await {
            let error = result.unwrap_err();
            assert!(matches!(error, CommitError::NotWritten(_)), "{error}");
            assert_eq!(error.to_string(), "not written: no storage space; free some space there");
        }
        // Nothing of it is there, and what was there can be read.
        assert_eq!(items(&store), BTreeMap::from([(1, "before".into())]));
        disk.set_space(None);
        store.commit(put(1, "before")).await.unwrap();
    }
    store.commit(put(2, "after")).await.unwrap();
    store.close().await;
    let expected = BTreeMap::from([(1, "before".into()), (2, "after".into())]);
    assert_eq!(items(&disk.open().unwrap()), expected);
}

/// Wherever the space ends: an error is an error, and an acknowledgement one.
#[tokio::test]
async fn wherever_a_disk_gets_full_the_answer_is_true() {
    let disk = Disk::new();
    let store = disk.create();
    let (mut written, mut refused) = (0, 0);
    let mut expected = BTreeMap::new();
    for round in 0..200 {
        disk.set_space(Some(round * 200));
        let value = round.to_string();
        match store.commit(put(round as u64 % 7, &value)).await {
            Ok(()) => {
                expected.insert(round as u64 % 7, value);
                written += 1;
            }
            Err(CommitError::NotWritten(_)) => refused += 1,
            // Not even the repair found room.
            Err(CommitError::Unknown(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        disk.set_space(None);
        assert_eq!(items(&store), expected, "round {round}");
    }
    assert!(written > 20 && refused > 20, "{written} {refused}");
}

#[tokio::test]
async fn a_sync_that_fails_does_not_acknowledge() {
    let disk = Disk::new();
    let store = disk.create();
    store.commit(put(1, "before")).await.unwrap();
    disk.fail_syncs(true);
    let error = store.commit(put(1, "lost")).await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error}");
    // As long as it lasts every commit says so, and none is written.
    let error = store.commit(put(2, "never")).await.unwrap_err();
    assert!(matches!(error, CommitError::NotWritten(_)), "{error}");
    disk.fail_syncs(false);
    // What was written without an acknowledgement may be there now, wholly; the second was never tried.
    assert!(["before", "lost"].contains(&items(&store)[&1].as_str()));
    store.commit(put(3, "after")).await.unwrap();
    assert_eq!(items(&store).into_keys().collect::<Vec<_>>(), [1, 3]);
}

#[tokio::test]
async fn reads_that_fail_do_not_end_the_store() {
    let disk = Disk::new();
    let store = disk.create();
    store.commit(large(1)).await.unwrap();
    store.close().await;
    let store = disk.open().unwrap();
    disk.fail_reads(true);
    assert!(matches!(store.load(ITEMS), Err(ReadError::Failed(_))));
    disk.fail_reads(false);
    assert_eq!(store.load(ITEMS).unwrap().len(), 1);
    store.commit(put(2, "after")).await.unwrap();
}

#[tokio::test]
async fn commits_that_wait_together_share_a_sync() {
    let disk = Disk::new();
    let store = disk.create();
    store.commit(put(0, "warm")).await.unwrap();
    let before = disk.syncs();
    store.commit(put(0, "one")).await.unwrap();
    let one = disk.syncs() - before;

    // While the writer is held up, they gather.
    let before = disk.syncs();
    let engine = store.engine();
    let mut commits: Vec<_> = (0..20).map(|key| Box::pin(store.commit(put(key, "many")))).collect();
    for commit in &mut commits {
        assert!(commit.as_mut().now_or_never().is_none());
    }
    drop(engine);
    for result in join_all(commits).await {
        result.unwrap();
    }
    // The first may have been taken alone, before the others came.
    let many = disk.syncs() - before;
    assert!(many <= 2 * one, "20 commits took {many} syncs, one takes {one}");
    assert_eq!(items(&store).len(), 20);
}

#[tokio::test]
async fn a_full_queue_makes_others_wait_and_then_lets_them_in() {
    let store = Disk::new().create();
    let engine = store.engine();
    let mut commits: Vec<_> = (0..1_000).map(|key| Box::pin(store.commit(put(key, "x")))).collect();
    for commit in &mut commits {
        assert!(commit.as_mut().now_or_never().is_none());
    }
    drop(engine);
    assert!(join_all(commits).await.into_iter().all(|result| result.is_ok()));
    assert_eq!(items(&store).len(), 1_000);
}

#[tokio::test]
async fn what_was_sent_before_the_close_is_written_and_what_came_after_is_refused() {
    let disk = Disk::new();
    let store = disk.create();
    let engine = store.engine();
    let mut before = Box::pin(store.commit(put(1, "before")));
    let mut close = Box::pin(store.close());
    let mut after = Box::pin(store.commit(put(2, "after")));
    assert!(before.as_mut().now_or_never().is_none());
    assert!(close.as_mut().now_or_never().is_none());
    assert!(after.as_mut().now_or_never().is_none());
    drop(engine);
    before.await.unwrap();
    close.await;
    assert!(matches!(after.await, Err(CommitError::Closed)));
    assert_eq!(items(&disk.open().unwrap()), BTreeMap::from([(1, "before".into())]));
}

/// Whichever bytes of a file change: it is refused, or it holds what it held.
#[tokio::test]
async fn a_damaged_file_is_never_read_as_something_else() {
    let disk = Disk::new();
    let store = disk.create();
    for key in 0..20 {
        store.commit(put(key, &"value ".repeat(200))).await.unwrap();
    }
    let expected = items(&store);
    // As it was left by a crash, and by a clean end.
    let crashed = disk.bytes();
    store.close().await;
    let closed = disk.bytes();
    let mut random = Random(7);
    for (whole, rolls_back) in [(crashed, true), (closed, false)] {
        let mut damaged = 0;
        for round in 0..600 {
            let mut bytes = whole.clone();
            // Half of them in the first sector, where the least damage does the most.
            let within = if round % 2 == 0 { 512 } else { bytes.len() as u64 };
            let at = random.below(within) as usize;
            let len = 1 + random.below(64) as usize;
            for byte in bytes.iter_mut().skip(at).take(len) {
                *byte = random.next() as u8;
            }
            let place = format!("round {round}, {len} bytes at {at}");
            match Disk::of(bytes).open() {
                Ok(store) => {
                    let found = items(&store);
                    // A damaged last transaction after a crash is one that was being written, to redb.
                    let before = rolls_back && found.len() + 1 == expected.len();
                    assert!(found == expected || before, "{place}");
                }
                Err(OpenError::Damaged { .. }) => damaged += 1,
                Err(error) => panic!("{place}: {error}"),
            }
        }
        assert!(damaged > 20, "{damaged}");
    }
}

/// Values come and go for long, and the file does not grow for it.
#[test]
fn a_file_does_not_grow_by_being_used() {
    let disk = Disk::new();
    drop(disk.create());
    let mut engine = disk.engine(&[]).unwrap();
    let mut random = Random(3);
    let mut largest = [0, 0];
    for round in 0..2_000 {
        let mut batch = Batch::new();
        for _ in 0..20 {
            let key = random.below(500);
            match random.below(4) {
                0 => batch.remove(ITEMS, key),
                _ => batch.put(ITEMS, key, vec![round as u8; random.below(2_000) as usize]),
            };
        }
        engine.write(&[batch]).unwrap();
        let half = &mut largest[round / 1_000];
        *half = disk.len().max(*half);
    }
    assert!(largest[1] <= largest[0] && largest[0] < 5 << 20, "{largest:?}");
    // Emptied and closed it is small again.
    let mut batch = Batch::new();
    (0..500).for_each(|key| _ = batch.remove(ITEMS, key));
    engine.write(&[batch]).unwrap();
    drop(engine);
    assert!(disk.len() < 1 << 20, "{}", disk.len());
}
