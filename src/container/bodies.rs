//! Records that are too large for a label: files in the state directory, named after what is in them.
//!
//! They are content-addressed, so a file that is there is never written again, and one that is damaged is as good as
//! none. All of it blocks on the disk: [`crate::container::recorder`] does it in the background.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::container::record::digest;
use crate::store::private;

/// The directory in the state directory.
pub const DIRECTORY: &str = "records";

/// How long a file stays that no container refers to: its container may be about to be created.
pub const GRACE: Duration = Duration::from_secs(600);

/// The most files, so that tiny ones are bounded too.
const MAX_FILES: usize = 10_000;

/// The files.
#[derive(Debug)]
pub struct Bodies {
    dir: PathBuf,
    most: u64,
    /// What is there, once it was looked at.
    known: Option<Known>,
}

/// Names with sizes, and their sum.
#[derive(Debug, Default)]
struct Known {
    files: BTreeMap<String, u64>,
    bytes: u64,
}

/// What became of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is there.
    Kept,
    /// There is no room for it.
    Full,
}

// === impl Bodies ===

impl Bodies {
    /// Files of so many bytes together, in the state directory. Nothing is read or made yet.
    pub fn new(state_dir: &Path, most: u64) -> Self {
        Self { dir: state_dir.join(DIRECTORY), most, known: None }
    }

    /// Writes a body down under its digest.
    pub fn put(&mut self, digest: &str, body: &[u8]) -> io::Result<Put> {
        let name = name_of(digest).ok_or(io::ErrorKind::InvalidInput)?;
        let most = self.most;
        let dir = self.dir.clone();
        let known = self.known()?;
        if known.files.contains_key(&name) {
            // It is young again: the container that it belonged to so far may be just about to go.
            match fs::File::options().write(true).open(dir.join(&name)) {
                Ok(file) => return file.set_modified(SystemTime::now()).map(|()| Put::Kept),
                Err(_) => known.remove(&name),
            }
        }
        if known.bytes.saturating_add(body.len() as u64) > most || known.files.len() >= MAX_FILES {
            return Ok(Put::Full);
        }
        private::directory(&dir)?;
        private::replace(&dir.join(&name), body)?;
        known.add(name, body.len() as u64);
        Ok(Put::Kept)
    }

    /// Reads a body. One that is not there, or is not what its name says, is none.
    pub fn get(&self, named: &str) -> Option<Vec<u8>> {
        let path = self.dir.join(name_of(named)?);
        let mut body = Vec::new();
        fs::File::open(path).ok()?.take(self.most).read_to_end(&mut body).ok()?;
        (digest(&body) == named).then_some(body)
    }

    /// Removes what no container refers to, unless it is younger than [`GRACE`]. Gives how many went.
    pub fn retain(&mut self, referred: &HashSet<String>, now: SystemTime) -> io::Result<usize> {
        let referred: HashSet<String> = referred.iter().filter_map(|digest| name_of(digest)).collect();
        // Looked at anew: whatever somebody else has removed counts no longer.
        self.known = None;
        let dir = self.dir.clone();
        let known = self.known()?;
        let mut removed = 0;
        for name in known.files.keys().cloned().collect::<Vec<_>>() {
            let path = dir.join(&name);
            let is_old = fs::metadata(&path)
                .and_then(|file| file.modified())
                .is_ok_and(|time| now.duration_since(time).is_ok_and(|age| age >= GRACE));
            if !referred.contains(&name) && is_old && fs::remove_file(path).is_ok() {
                known.remove(&name);
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// What is there. Files that are not ours are left alone.
    fn known(&mut self) -> io::Result<&mut Known> {
        if self.known.is_none() {
            self.known = Some(look(&self.dir)?);
        }
        // It was filled just now.
        self.known.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn look(dir: &Path) -> io::Result<Known> {
    let mut known = Known::default();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(known),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_name(&name) {
            known.add(name, entry.metadata()?.len());
        } else if private::passing(&name).is_some_and(is_name) {
            // A crash has left it: there is one writer, and it is us.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(known)
}

/// The file of a digest. Labels come from anywhere, so it must be a digest and nothing else.
fn name_of(digest: &str) -> Option<String> {
    let name = format!("sha256-{}.json", digest.strip_prefix("sha256:")?);
    is_name(&name).then_some(name)
}

fn is_name(name: &str) -> bool {
    let hex = name.strip_prefix("sha256-").and_then(|rest| rest.strip_suffix(".json"));
    hex.is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

// === impl Known ===

impl Known {
    fn add(&mut self, name: String, bytes: u64) {
        self.bytes += bytes;
        self.files.insert(name, bytes);
    }

    fn remove(&mut self, name: &str) {
        self.bytes -= self.files.remove(name).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_found_again_until_nobody_refers_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::new(dir.path(), 10);
        let (a, b) = (digest(b"aaaa"), digest(b"bbbb"));
        assert_eq!(bodies.put(&a, b"aaaa").unwrap(), Put::Kept);
        assert_eq!(bodies.put(&a, b"aaaa").unwrap(), Put::Kept, "twice is once");
        fs::remove_file(dir.path().join(DIRECTORY).join(name_of(&a).unwrap())).unwrap();
        assert_eq!(bodies.put(&a, b"aaaa").unwrap(), Put::Kept, "and what somebody removed is written again");
        assert_eq!(bodies.put(&b, b"bbbb").unwrap(), Put::Kept);
        assert_eq!(bodies.put(&digest(b"ccc"), b"ccc").unwrap(), Put::Full);
        assert_eq!(bodies.get(&a).unwrap(), b"aaaa");

        // A new process finds what is there, and removes what a crash has left.
        let left = dir.path().join(DIRECTORY).join(name_of(&a).unwrap() + ".4711.new");
        fs::write(&left, b"aa").unwrap();
        let mut bodies = Bodies::new(dir.path(), 10);
        assert_eq!(bodies.put(&digest(b"ccc"), b"ccc").unwrap(), Put::Full);
        assert!(!left.exists());

        let referred = HashSet::from([b.clone(), "sha256:../../etc/passwd".into()]);
        assert_eq!(bodies.retain(&referred, SystemTime::now()).unwrap(), 0, "all are young");
        assert_eq!(bodies.retain(&referred, SystemTime::now() + GRACE).unwrap(), 1);
        assert_eq!((bodies.get(&a), bodies.get(&b).unwrap()), (None, b"bbbb".to_vec()));
        assert_eq!(bodies.put(&digest(b"ccc"), b"ccc").unwrap(), Put::Kept, "there is room again");
    }

    #[test]
    fn what_is_no_digest_names_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::new(dir.path(), 100);
        let upper = digest(b"x").to_uppercase();
        for digest in
            ["", "sha256:", "sha256:../../../etc/shadow", "sha512:00", &upper, &"sha256:a".repeat(9)]
        {
            assert!(bodies.put(digest, b"x").is_err(), "{digest}");
            assert_eq!(bodies.get(digest), None, "{digest}");
        }
        assert!(!dir.path().join(DIRECTORY).exists());
    }

    #[test]
    fn a_damaged_body_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::new(dir.path(), 100);
        let named = digest(b"body");
        bodies.put(&named, b"body").unwrap();
        fs::write(dir.path().join(DIRECTORY).join(name_of(&named).unwrap()), b"bodY").unwrap();
        assert_eq!(bodies.get(&named), None);
    }
}
