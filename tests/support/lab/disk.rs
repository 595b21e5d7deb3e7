//! A small filesystem of its own, to be filled up.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::process::run;
use super::scratch::Scratch;

/// Unmounted and gone with the folder it is in, and with it the loop device.
#[derive(Debug)]
pub(crate) struct Disk {
    mount: PathBuf,
}

// === impl Disk ===

impl Disk {
    /// Makes a filesystem in a file below the folder, and mounts it there.
    pub(crate) fn mount(scratch: &Scratch, name: &str, mebibytes: u64) -> Self {
        let (image, mount) = (scratch.join(format!("{name}.img")), scratch.join(name));
        let file = File::create(&image).expect("make a file");
        file.set_len(mebibytes << 20).expect("give it a size");
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-E", "nodiscard"]).arg(&image));
        fs::create_dir(&mount).expect("make a folder");
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount));
        Self { mount }
    }

    /// Percent that are free.
    pub(crate) fn free(&self) -> f64 {
        let (free, total) = self.space();
        free as f64 * 100.0 / total as f64
    }

    /// Takes up space, or gives back what it had taken, until so many percent are free.
    pub(crate) fn fill(&self, percent_free: u64) {
        let ballast = File::options().create(true).append(true).open(self.mount.join("ballast"));
        let ballast = ballast.expect("open a file");
        let taken = ballast.metadata().expect("its size").len();
        let (free, total) = self.space();
        let size = (taken + free).saturating_sub(total * percent_free / 100);
        // In one step: never is more free than before, unless that is wanted.
        if size > taken {
            fallocate(&ballast, FallocateFlags::empty(), taken, size - taken).expect("take up space");
        } else {
            ballast.set_len(size).expect("give space back");
        }
    }

    /// Bytes that are free, and all.
    fn space(&self) -> (u64, u64) {
        let stat = statvfs(&self.mount).expect("statvfs");
        (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
    }
}
