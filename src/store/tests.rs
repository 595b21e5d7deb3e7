//! The store on a file, in memory and on a disk that fails.

mod disk;
mod failures;
mod files;
mod formats;
mod power_loss;
mod random;

use std::collections::BTreeMap;

use super::*;

const ITEMS: &str = "items";
const OTHERS: &str = "others";

fn put(key: u64, value: &str) -> Batch {
    Batch::new().put(ITEMS, key, value).clone()
}

fn items(store: &Store) -> BTreeMap<u64, String> {
    let text = |(key, value)| (key, String::from_utf8(value).unwrap());
    store.load(ITEMS).unwrap().into_iter().map(text).collect()
}

/// Runs what must hold for every store, wherever it lies.
async fn suite(store: &Store) {
    // A new one is empty.
    assert_eq!(store.load(ITEMS).unwrap(), []);
    assert_eq!(store.meta("name").unwrap(), None);
    store.commit(Batch::new()).await.unwrap();

    // What is put is there, by key, in its own table.
    let mut first = Batch::new();
    first.put(ITEMS, 7, "seven").put(ITEMS, 2, "").put(OTHERS, 7, vec![0, 255]).put_meta("name", "x");
    assert_eq!(format!("{first:?}"), r#"["items/7", "items/2", "others/7", "meta/name"]"#);
    store.commit(first).await.unwrap();
    assert_eq!(store.load(ITEMS).unwrap(), [(2, Vec::new()), (7, b"seven".to_vec())]);
    assert_eq!(store.load(OTHERS).unwrap(), [(7, vec![0, 255])]);
    assert_eq!(store.meta("name").unwrap().as_deref(), Some(b"x".as_slice()));

    // Within a batch the last word counts.
    let mut second = Batch::new();
    second.put(ITEMS, 1, "a").put(ITEMS, 1, "b").put(ITEMS, 3, "c").remove(ITEMS, 3).remove(ITEMS, 7);
    second.remove(ITEMS, 99).remove_meta("name").remove_meta("never");
    store.commit(second).await.unwrap();
    assert_eq!(items(store), BTreeMap::from([(1, "b".into()), (2, String::new())]));
    assert_eq!(store.meta("name").unwrap(), None);

    // The largest value fits; a larger one is refused, with all that came with it.
    store.commit(Batch::new().put(OTHERS, 1, vec![1; MAX_VALUE]).clone()).await.unwrap();
    let mut large = put(5, "x");
    large.put(ITEMS, 6, vec![1; MAX_VALUE + 1]);
    let error = store.commit(large).await.unwrap_err();
    assert_eq!(error.to_string(), "items/6 has 1048577 bytes; at most 1048576 can be stored");
    let mut long = Batch::new();
    for key in 0..17 {
        long.put(ITEMS, key, vec![1; MAX_VALUE]);
    }
    let error = store.commit(long).await.unwrap_err();
    assert!(matches!(error, CommitError::BatchTooLarge { len } if len > MAX_BATCH), "{error}");

    // The store's own names are not for others.
    for own in ["format", "made-by", "sequence"] {
        let error = store.commit(Batch::new().put_meta(own, "x").clone()).await.unwrap_err();
        assert!(matches!(error, CommitError::Key(key) if key == format!("meta/{own}")));
    }
    let error = store.commit(Batch::new().put("meta", 1, "x").clone()).await.unwrap_err();
    assert!(matches!(error, CommitError::Key(_)), "{error}");
    assert_eq!(items(store), BTreeMap::from([(1, "b".into()), (2, String::new())]));

    // Commits at the same time come to be in the order in which they were sent.
    let many = (0..500).map(|n| store.commit(put(n % 10, &n.to_string())));
    for result in futures_util::future::join_all(many).await {
        result.unwrap();
    }
    assert_eq!(items(store), (0..10).map(|key| (key, (490 + key).to_string())).collect());

    // Who leaves takes nothing down.
    let leaver = store.clone();
    let task = tokio::spawn(async move { leaver.commit(put(1, "left")).await });
    task.abort();
    store.commit(put(2, "stayed")).await.unwrap();
    assert_eq!(items(store)[&2], "stayed");

    // After the end there is a clear answer, for every handle, and closing twice is fine.
    let other = store.clone();
    tokio::join!(store.close(), other.close());
    store.close().await;
    assert!(matches!(other.commit(put(1, "late")).await, Err(CommitError::Closed)));
    assert!(matches!(other.load(ITEMS), Err(ReadError::Closed)));
    assert!(matches!(other.meta("name"), Err(ReadError::Closed)));
}

#[tokio::test]
async fn in_memory() {
    suite(&Store::in_memory().unwrap()).await;
}

#[tokio::test]
async fn on_a_file() {
    let directory = tempfile::tempdir().unwrap();
    suite(&Store::open(directory.path()).unwrap()).await;
}

#[tokio::test]
async fn on_a_disk() {
    suite(&disk::Disk::new().create()).await;
}
