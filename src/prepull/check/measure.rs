//! What is measured: free space, the processors' time, memory. The readers block, on the disk or hardly at all; call
//! [`space`] from a thread that may.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Most that is read of a file below /proc. What is looked for is at its beginning.
const MAX_PROC: u64 = 64 << 10;

/// A filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Bytes that anybody may still write, not counting those kept for root: the kubelet counts the same.
    pub free: u64,
    /// Bytes it has.
    pub total: u64,
    /// The directory that was looked at.
    pub path: PathBuf,
}

/// The processors' times since the start of the system, in ticks, as in the first line of /proc/stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuSample {
    /// All of it.
    pub total: u64,
    /// With nothing to do but, perhaps, wait for a disk.
    pub idle: u64,
}

/// Memory in bytes, as in /proc/meminfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What could be used without swapping.
    pub available: u64,
    /// All of it.
    pub total: u64,
}

/// The filesystem of a directory, or of the nearest one above that exists: a runtime may name one that it has not made yet.
/// The error says what was looked at.
pub fn space(mountpoint: &str) -> Result<Space, String> {
    let path = Path::new(mountpoint);
    if !path.is_absolute() {
        return Err(match mountpoint {
            "" => "the runtime does not tell where it keeps images".to_owned(),
            _ => format!(
                "the runtime keeps images at {:?}, which is no path",
                crate::prepull::shown(mountpoint)
            ),
        });
    }
    for path in path.ancestors() {
        match rustix::fs::statvfs(path) {
            Ok(found) => {
                return Ok(Space {
                    free: found.f_bavail.saturating_mul(found.f_frsize),
                    total: found.f_blocks.saturating_mul(found.f_frsize),
                    path: path.to_owned(),
                });
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(error) => {
                return Err(format!("the free space of {} cannot be read: {error}", path.display()));
            }
        }
    }
    Err(format!("the free space of {} cannot be read: not even `/` is there", path.display()))
}

/// A sample of now. Two of them, some time apart, tell how busy the processors are.
pub fn cpu_sample() -> Result<CpuSample, String> {
    let text = proc("/proc/stat")?;
    CpuSample::parse(&text).ok_or_else(|| "/proc/stat does not begin with the processors' times".to_owned())
}

/// Memory as it is now.
pub fn memory_now() -> Result<Memory, String> {
    let text = proc("/proc/meminfo")?;
    Memory::parse(&text).ok_or_else(|| "/proc/meminfo tells no MemTotal and MemAvailable".to_owned())
}

fn proc(path: &str) -> Result<String, String> {
    let read = || -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_PROC).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error| format!("{path} cannot be read: {error}"))
}

// === impl CpuSample ===

impl CpuSample {
    /// Reads /proc/stat.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.lines().find_map(|line| line.strip_prefix("cpu "))?.split_ascii_whitespace();
        // user nice system idle iowait irq softirq steal; what guests use is counted with user and nice already.
        let mut times = [0u64; 8];
        for (at, time) in times.iter_mut().enumerate() {
            match words.next() {
                Some(word) => *time = word.parse().ok()?,
                // Old kernels have the first four only.
                None if at >= 4 => break,
                None => return None,
            }
        }
        let total = times.iter().fold(0u64, |sum, time| sum.saturating_add(*time));
        Some(Self { total, idle: times[3].saturating_add(times[4]) })
    }

    /// How busy the processors were since an earlier sample, in percent, rounded up. `None` if no time has passed.
    pub fn busy_percent(&self, before: &Self) -> Option<u8> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        // The time of waiting for disks may go back.
        let idle = self.idle.saturating_sub(before.idle).min(total);
        let percent = (u128::from(total - idle) * 100).div_ceil(u128::from(total));
        u8::try_from(percent).ok()
    }
}

// === impl Memory ===

impl Memory {
    /// Reads /proc/meminfo.
    pub fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self { available: field("MemAvailable")?, total: field("MemTotal")? })
    }
}
