//! The temporary folder of one node, and the removal of everything below it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::process::{descendants_of, kill_all, run_quietly, with_command_line};
use super::wait::try_until;

/// A temporary folder with a short path (unix sockets allow 107 bytes). On drop, processes that were started with the
/// folder in their command line are ended, file systems mounted below it are unmounted, and it is removed.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
    /// Tells later test programs that the folder is in use. The lock ends with the process, however that ends.
    _lock: File,
}

/// How the names of these folders begin.
pub(crate) const PREFIX: &str = "crisp-lab-";
const LOCK: &str = ".in-use";

/// A test program that was killed could not clean up after itself. The next one does.
static SWEEP: Once = Once::new();

impl Scratch {
    pub(crate) fn new() -> Self {
        SWEEP.call_once(sweep);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().expect("make a temporary folder").keep();
        // Taken before it has its name: a lock that another test program finds free is one whose owner is gone.
        let unnamed = dir.join(".new-lock");
        let lock = File::create(&unnamed).expect("make the lock");
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("take the lock");
        fs::rename(unnamed, dir.join(LOCK)).expect("name the lock");
        Self { dir, _lock: lock }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// A path below the folder.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file below the folder, making its parents.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("make a folder");
        fs::write(&path, text).expect("write a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Removes the folders that no living test program holds.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // No lock yet: a folder that is being made this very moment.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

fn remove(dir: &Path) {
    let path = dir.to_str().expect("a plain path");
    // Supervisors first, or they start again what is ended below them.
    let processes = with_command_line(path);
    let below = descendants_of(&processes);
    kill_all(&processes);
    kill_all(&below);
    // A mount may take a moment to become free after its last user ended, so removal is tried for a while.
    let removed = try_until(Duration::from_secs(5), || {
        for mount in mounts_below(path) {
            run_quietly("umount", &["-l", &mount]);
        }
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
            _ => Some(()),
        }
    });
    if removed.is_none() {
        eprintln!("could not remove {path}");
    }
}

/// Mount points below a folder, deepest first.
fn mounts_below(dir: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<_> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|mount| mount.starts_with(dir) && mount[dir.len()..].starts_with('/'))
        .map(str::to_owned)
        .collect();
    mounts.reverse();
    mounts
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// with-skips.sh runs this when tests are interrupted.
    #[test]
    fn what_killed_tests_left_is_removed() {
        let in_use = Scratch::new();
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().expect("a folder").keep();
        let path = dir.to_str().expect("a plain path");
        // One process that ends by itself when nobody holds the other end any more.
        let mut child = Command::new("sh")
            .args(["-c", "read line", path])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a process");
        // Its command line may be seen a moment after it was started.
        try_until(Duration::from_secs(10), || (!with_command_line(path).is_empty()).then_some(()))
            .expect("it runs");
        // From now on the folder may be removed, be it by another test program.
        File::create(dir.join(LOCK)).expect("the lock of a test program that is gone");
        sweep();
        assert!(!dir.exists() && in_use.path().exists());
        assert_eq!(child.wait().expect("its end").signal(), Some(9), "it was killed");
    }
}
