use super::*;

fn restart(pod: &str, attempt: u32) -> Restart {
    Restart {
        time: Time(1_800_000_000_000),
        namespace: "default".into(),
        pod: pod.into(),
        uid: format!("uid-of-{pod}"),
        container: "app".into(),
        attempt,
        cause: "crashed".into(),
        words: "it crashed".into(),
        exit_code: Some(3),
        differences: vec!["image: a → b".into()],
        id: "new".into(),
        previous: "old".into(),
    }
}

#[tokio::test]
async fn restarts_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let history = History::start(dir.path(), 100);
    assert_eq!(history.list(Wanted::default()).await.unwrap(), Restarts::default());
    assert!(!dir.path().join(DIRECTORY).exists(), "a question makes nothing");
    for attempt in 0..3 {
        history.add(restart("a", attempt)).await;
        history.add(restart("b", attempt)).await;
    }
    let all = history.list(Wanted::default()).await.unwrap();
    assert_eq!((all.restarts.len(), all.only_in_memory), (6, None));
    history.close().await;
    assert_eq!(history.list(Wanted::default()).await, None, "it is given up");

    let again = History::start(dir.path(), 100);
    let wanted = Wanted { pod: Some("b".into()), ..Wanted::default() };
    assert_eq!(
        again.list(wanted).await.unwrap().restarts,
        (0..3).map(|n| restart("b", n)).collect::<Vec<_>>()
    );
    let nobody = Wanted { container: Some("sidecar".into()), ..Wanted::default() };
    assert_eq!(again.list(nobody).await.unwrap().restarts, []);
}

#[tokio::test]
async fn what_cannot_be_read_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join(DIRECTORY)).unwrap();
    let mut batch = Batch::new();
    batch.put(RESTARTS, 1, b"{".to_vec()).put(RESTARTS, 7, b"7".to_vec());
    batch.put(RESTARTS, 3, serde_json::to_vec(&restart("a", 0)).unwrap());
    store.commit(batch).await.unwrap();
    store.close().await;

    let history = History::start(dir.path(), 100);
    assert_eq!(history.list(Wanted::default()).await.unwrap().restarts, [restart("a", 0)]);
    history.close().await;
    let store = Store::open(dir.path().join(DIRECTORY)).unwrap();
    let left: Vec<u64> = store.load(RESTARTS).unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, [3]);
}

#[tokio::test]
async fn without_a_store_they_are_remembered_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(DIRECTORY), b"a file where the directory should be").unwrap();
    let history = History::start(dir.path(), 100);
    history.add(restart("a", 0)).await;
    let listed = history.list(Wanted::default()).await.unwrap();
    assert_eq!(listed.restarts, [restart("a", 0)]);
    assert!(listed.only_in_memory.is_some());
}

#[test]
fn an_entry_of_another_version_can_be_read() {
    let read: Restart = serde_json::from_str(r#"{"pod":"a","newField":[1]}"#).unwrap();
    assert_eq!(read, Restart { pod: "a".into(), ..Restart::default() });
}
