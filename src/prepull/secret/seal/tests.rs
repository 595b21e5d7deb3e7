use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

fn credentials() -> Vec<Credential> {
    vec![
        Credential::password("gcr.io", "user", "hunter2").unwrap(),
        serde_json::from_str(r#"{"registry": "*.example.com", "identityToken": "tok\"en"}"#).unwrap(),
    ]
}

#[test]
fn what_is_sealed_opens_after_a_restart_and_shows_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = Sealer::open(dir.path()).unwrap().seal(&credentials(), b"item 7").unwrap();
    let sealer = Sealer::open(dir.path()).unwrap();
    assert_eq!(sealer.unseal(&sealed, b"item 7").unwrap(), credentials());
    for text in [&b"hunter2"[..], b"user", b"gcr.io", b"registry"] {
        assert!(!sealed.windows(text.len()).any(|part| part == text));
    }
    // No nonce twice.
    assert_ne!(sealer.seal(&credentials(), b"item 7").unwrap(), sealed);
    assert_eq!(sealer.unseal(&sealer.seal(&[], b"").unwrap(), b"").unwrap(), []);
}

#[test]
fn it_opens_for_its_own_item_only() {
    let dir = tempfile::tempdir().unwrap();
    let sealer = Sealer::open(dir.path()).unwrap();
    let sealed = sealer.seal(&credentials(), b"item 7").unwrap();
    assert_eq!(sealer.unseal(&sealed, b"item 8").unwrap_err(), SealError::Damaged);
}

#[test]
fn a_lost_key_is_told_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = Sealer::open(dir.path()).unwrap().seal(&credentials(), b"").unwrap();
    fs::remove_file(dir.path().join(KEY_FILE)).unwrap();
    let error = Sealer::open(dir.path()).unwrap().unseal(&sealed, b"").unwrap_err();
    assert_eq!(error, SealError::OtherKey { path: dir.path().join(KEY_FILE) });
    assert!(error.to_string().contains("add the item again"), "{error}");
}

#[test]
fn a_newer_format_is_told_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let error = Sealer::open(dir.path()).unwrap().unseal(&[VERSION + 1], b"").unwrap_err();
    assert_eq!(error, SealError::Newer);
}

#[test]
fn the_key_is_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(KEY_FILE);
    Sealer::open(dir.path()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    // Nothing else was left behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = Sealer::open(dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::Readable { .. }), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    Sealer::open(dir.path()).unwrap();
}

/// Never replaced silently: what was sealed with the real one would be lost.
#[test]
fn a_file_that_is_no_key_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(KEY_FILE);
    for length in [0, 31, 33, 4096] {
        fs::write(&path, vec![7; length]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Sealer::open(dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::NotAKey { .. }), "{length}: {error}");
        assert_eq!(fs::read(&path).unwrap().len(), length);
    }
    let error = Sealer::open(&dir.path().join("missing")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn the_first_key_counts() {
    let dir = tempfile::tempdir().unwrap();
    let sealers: Vec<_> = std::thread::scope(|scope| {
        let open = || Sealer::open(dir.path()).unwrap();
        let first = open();
        let others: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        others.into_iter().map(|other| other.join().unwrap()).chain([first]).collect()
    });
    assert!(sealers.iter().all(|sealer| sealer.id == sealers[0].id));
    // `create` itself leaves a key alone that somebody else made meanwhile.
    private::create(&dir.path().join(KEY_FILE), &[7; KEY_BYTES]).unwrap();
    assert_eq!(Sealer::open(dir.path()).unwrap().id, sealers[0].id);
}

proptest! {
    /// Whatever happens to the stored bytes: an error, never a credential and never a panic.
    #[test]
    fn changed_bytes_do_not_open(at in any::<prop::sample::Index>(), bit in 0u32..8, cut in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(dir.path()).unwrap();
        let mut sealed = sealer.seal(&credentials(), b"item").unwrap();
        let at = at.index(sealed.len());
        if cut { sealed.truncate(at) } else { sealed[at] ^= 1 << bit }
        prop_assert!(sealer.unseal(&sealed, b"item").is_err());
    }
}
