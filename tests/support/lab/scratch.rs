//! The temporary folder of one node, and the removal of everything below it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::process::{kill_all, run_quietly, with_command_line};
use super::wait::try_until;

/// A temporary folder with a short path (unix sockets allow 107 bytes). On drop, processes that were started with the
/// folder in their command line are ended, file systems mounted below it are unmounted, and it is removed.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("crisp-").tempdir().expect("make a temporary folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
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
        let path = self.path().to_str().expect("a plain path").to_owned();
        kill_all(&with_command_line(&path));
        // A mount may take a moment to become free after its last user ended, so removal is tried for a while.
        let removed = try_until(Duration::from_secs(5), || {
            for mount in mounts_below(&path) {
                run_quietly("umount", &["-l", &mount]);
            }
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
                _ => Some(()),
            }
        });
        if removed.is_none() {
            eprintln!("could not remove {path}");
        }
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
