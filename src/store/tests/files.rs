//! The file: who may read it, who may open it, and what is done about one that is not as it should be.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::random::Random;
use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A directory with a store with a few items, closed.
async fn filled() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    for key in 0..20 {
        store.commit(put(key, &"value ".repeat(200))).await.unwrap();
    }
    store.close().await;
    let file = directory.path().join(FILE_NAME);
    (directory, file)
}

/// Expects that a file is refused as damaged and stays as it is, and gives the message.
fn refused(directory: &Path) -> String {
    let file = directory.join(FILE_NAME);
    let before = fs::read(&file).unwrap();
    let error = Store::open(directory).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(fs::read(&file).unwrap() == before, "the file was changed");
    error.to_string()
}

#[tokio::test]
async fn only_its_owner_can_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("var/lib/crisp");
    let store = Store::open(&state).unwrap();
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join(FILE_NAME)), 0o600);
    // A directory that is there keeps its mode.
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing else is left there");
    store.close().await;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o750)).unwrap();
    Store::open(&state).unwrap();
    assert_eq!(mode(&state), 0o750);
}

#[tokio::test]
async fn it_has_one_user_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    assert!(error.to_string().contains("crisp.redb: another crisp uses it; stop that one first"), "{error}");
    // The first is not disturbed.
    store.commit(put(1, "x")).await.unwrap();

    // Closed, it is free at once, also while there are handles.
    store.close().await;
    let second = Store::open(directory.path()).unwrap();
    assert_eq!(items(&second).len(), 1);
    drop(store);
    // Dropped too, and what was acknowledged is there.
    let other = second.clone();
    other.commit(put(2, "y")).await.unwrap();
    drop(second);
    drop(other);
    assert_eq!(items(&Store::open(directory.path()).unwrap()).len(), 2);
}

#[test]
fn several_that_make_it_at_once_do_not_replace_each_others() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| Store::open(directory.path()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let open = results.iter().filter(|result| result.is_ok()).count();
        assert!(open <= 1, "{results:?}");
        for error in results.into_iter().filter_map(Result::err) {
            assert!(matches!(error, OpenError::Busy { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn one_that_was_never_finished_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("crisp.redb.new"), b"half of a store").unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.commit(put(1, "x")).await.unwrap();
    assert!(!directory.path().join("crisp.redb.new").exists());
}

/// Nothing of crisp's leaves such a file, so it is no store that was just begun.
#[test]
fn an_empty_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE_NAME);
    fs::write(&file, b"").unwrap();
    let message = refused(directory.path());
    let path = file.display();
    assert_eq!(
        message,
        format!(
            "{path}: it is damaged, or not a store of crisp: DB corrupted: the file is empty; crisp leaves it alone. \
             Restore it from a backup, or move it away to begin with an empty store: mv {path} {path}.damaged"
        )
    );
}

#[test]
fn what_is_no_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE_NAME);
    let mut random = Random(1);
    let noise: Vec<u8> = (0..100_000).map(|_| random.next() as u8).collect();
    for len in [1, 8, 100, 512, 4096, noise.len()] {
        fs::write(&file, &noise[..len]).unwrap();
        assert!(refused(directory.path()).contains("magic number mismatch"));
    }
    // A redb file of somebody else.
    fs::remove_file(&file).unwrap();
    drop(redb::Database::create(&file).unwrap());
    let error = Store::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("it does not say which store format it has"), "{error}");
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_refused() {
    let (directory, file) = filled().await;
    let whole = fs::read(&file).unwrap();
    for len in [10, 320, 4095, 4096, 8192, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
        fs::write(&file, &whole[..len]).unwrap();
        refused(directory.path());
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(items(&Store::open(directory.path()).unwrap()).len(), 20);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Store::open(file.join("state")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
}
