use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn at(days: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + DAY * (20_000 + days)
}

fn write(dir: &Path, text: impl AsRef<[u8]>) {
    let path = dir.join(KEYS_FILE);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn the_same_key_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = Keys::open(dir.path(), Duration::ZERO).unwrap();
    let again = Keys::open(dir.path(), Duration::ZERO).unwrap();
    assert_eq!(first.current().id(), again.current().id());
    assert_eq!(first.current().bytes, again.current().bytes);
    assert!(again.get(first.current().id()).is_some());
    assert!(again.get("AAAAAAAA").is_none());
    assert_eq!(fs::metadata(dir.path().join(KEYS_FILE)).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    let other = tempfile::tempdir().unwrap();
    assert_ne!(Keys::open(other.path(), Duration::ZERO).unwrap().current().id(), first.current().id());
}

#[test]
fn old_keys_are_replaced_and_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    for round in 0..MAX_KEYS as u32 + 4 {
        let keys = Keys::open_at(dir.path(), DAY, at(2 * round)).unwrap();
        assert!(!ids.contains(&keys.current().id().to_owned()), "a key of its own in round {round}");
        ids.push(keys.current().id().to_owned());
        // Half a day later it is the same one still.
        let again = Keys::open_at(dir.path(), DAY, at(2 * round) + DAY / 2).unwrap();
        assert_eq!(again.current().id(), keys.current().id());
        for (n, id) in ids.iter().rev().enumerate() {
            assert_eq!(again.get(id).is_some(), n < MAX_KEYS, "key {n} back in round {round}");
        }
    }
    // Never by age with zero, nor when the clock was set back.
    for (max_age, now) in [(Duration::ZERO, at(10_000)), (DAY, at(0)), (DAY, SystemTime::UNIX_EPOCH)] {
        let keys = Keys::open_at(dir.path(), max_age, now).unwrap();
        assert_eq!(Some(keys.current().id()), ids.last().map(String::as_str));
    }
}

#[test]
fn a_key_that_cannot_be_replaced_stays_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let old = Keys::open_at(dir.path(), DAY, at(0)).unwrap();
    // In the way of the file that is to replace it.
    fs::create_dir(dir.path().join(format!("{KEYS_FILE}.{}.new", std::process::id()))).unwrap();
    let keys = Keys::open_at(dir.path(), DAY, at(9)).unwrap();
    assert_eq!((keys.current().id(), keys.older.len()), (old.current().id(), 0));
}

#[test]
fn what_is_wrong_with_the_file_is_told_and_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let good = {
        Keys::open(dir.path(), Duration::ZERO).unwrap();
        fs::read_to_string(dir.path().join(KEYS_FILE)).unwrap()
    };
    let long = format!("{good}{}", " ".repeat(MAX_FILE));
    let many = {
        let one: Written = serde_json::from_str(&good).unwrap();
        let key = serde_json::to_string(&one.keys[0]).unwrap();
        format!("{{\"v\":1,\"keys\":[{}]}}", vec![key; MAX_KEYS + 1].join(","))
    };
    for (text, reason) in [
        ("", "not a file of keys"),
        ("{}", "not a file of keys"),
        ("1", "not a file of keys"),
        (r#"{"v":0,"keys":[]}"#, "not a file of keys"),
        (r#"{"v":1}"#, "no list of keys"),
        (r#"{"v":1,"keys":[]}"#, "has no key"),
        (r#"{"v":1,"keys":[{"id":"x","created":1,"key":"AAAA"}]}"#, "not 32 bytes"),
        (&good.replace("\"created\":", "\"created\":-"), "no list of keys"),
        (&good.replace("\"id\":\"", "\"id\":\"A"), "does not fit its id"),
        (&long, "longer than"),
        (&many, "more keys"),
        (&good[..good.len() / 2], "not a file of keys"),
    ] {
        write(dir.path(), text);
        let error = Keys::open(dir.path(), Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("remove it"), "{text:.80}: {error}");
        assert_eq!(fs::read_to_string(dir.path().join(KEYS_FILE)).unwrap(), text);
    }
    write(dir.path(), r#"{"v":2,"keys":"new"}"#);
    let error = Keys::open(dir.path(), Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("newer crisp"), "{error}");
    write(dir.path(), &good);
    fs::set_permissions(dir.path().join(KEYS_FILE), fs::Permissions::from_mode(0o644)).unwrap();
    let error = Keys::open(dir.path(), Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("0644") && error.contains("chmod 600"), "{error}");
    let error = Keys::open(&dir.path().join("missing"), Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("missing/record.keys"), "{error}");
}

#[test]
fn nothing_shows_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::open(dir.path(), Duration::ZERO).unwrap();
    let shown = format!("{keys:?} {:?}", keys.current());
    let json = fs::read_to_string(dir.path().join(KEYS_FILE)).unwrap();
    let written: Written = serde_json::from_str(&json).unwrap();
    assert_eq!(written.keys.len(), 1);
    assert!(!shown.contains(&written.keys[0].key) && shown.len() < 200, "{shown}");
    // One in memory has a name too, and nothing on the disk.
    let memory = Keys::in_memory().unwrap();
    assert_eq!(memory.current().id().len(), 8);
    assert!(memory.get(memory.current().id()).is_some());
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Keys::parse(&bytes, Path::new("/x"));
    }
}
