//! A control group below which one kubelet keeps those of its pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::scratch::{PREFIX, Scratch};
use super::wait;

/// Gone when dropped, which has to be after the node: its containers are in there.
#[derive(Debug)]
pub(crate) struct CgroupRoot {
    name: String,
    /// One per hierarchy; with version 2 there is only one.
    dirs: Vec<PathBuf>,
    /// The folder that lends its name: nobody else has it.
    _scratch: Scratch,
}

impl CgroupRoot {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let name = scratch.path().file_name().expect("a name").to_string_lossy().into_owned();
        remove_left_over();
        let dirs: Vec<_> = hierarchies().into_iter().map(|dir| dir.join(&name)).collect();
        for dir in &dirs {
            fs::create_dir(dir).expect("make a control group");
            // Version 1 lets no process into a group that has no processors.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let parent = dir.parent().map(|parent| fs::read_to_string(parent.join(file)));
                if let Some(Ok(all)) = parent.filter(|_| dir.join(file).exists()) {
                    fs::write(dir.join(file), all).expect("give the control group processors");
                }
            }
        }
        Self { name, dirs, _scratch: scratch }
    }

    /// Its path from the root.
    pub(crate) fn name(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // The last processes may still be on their way out.
            wait::try_until(Duration::from_secs(5), || remove(dir).ok());
        }
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).expect("list the control groups").flatten().map(|entry| entry.path());
    // Links such as cpu -> cpu,cpuacct name a hierarchy again.
    entries.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

/// Removes the groups of test programs that were killed: their folders are gone by now.
fn remove_left_over() {
    for entry in hierarchies().iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(PREFIX) && !std::env::temp_dir().join(name).exists() {
            // What still has processes in it is tried again by the next one.
            let _ = remove(&entry.path());
        }
    }
}

/// The files of a control group go with it; only groups are removed, the innermost first.
fn remove(dir: &Path) -> std::io::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(dir)
}
