//! May a pull start? What is measured is read in [`measure`]; what it means is decided here and in [`mod@give_way`], as
//! pure functions of the figures.
//!
//! A check that cannot be made is [`Verdict::Unknown`]: the pull goes on, and who asks says so once.

pub mod give_way;
pub mod measure;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use give_way::{Hold, give_way, over_bound};
pub use measure::{CpuSample, Memory, Space};

/// What is looked at before a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Free space where the runtime keeps images.
    Disk,
    /// How busy the processors are.
    Cpu,
    /// Memory that could be used.
    #[serde(rename = "mem", alias = "memory")]
    Memory,
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The pull may start.
    Enough,
    /// The pull waits.
    Short {
        /// The figures, and what to do.
        message: String,
    },
    /// Nobody knows, so the pull may start.
    Unknown {
        /// Why.
        message: String,
    },
}

/// How much space a pull leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// How much space an image takes, in multiples of the bytes that have to be downloaded.
    pub factor: u64,
    /// Percent of the filesystem that stay free.
    pub floor_percent: u8,
    /// Bytes that stay free, if that is more.
    pub floor_bytes: u64,
}

/// Whether there is space for an image of which so many bytes are missing. Not known how many: whether there is more than
/// the floor.
pub fn disk(free: u64, total: u64, missing: Option<u64>, limits: &DiskLimits) -> Verdict {
    if total == 0 {
        return Verdict::Unknown { message: "the filesystem of images does not tell its size".into() };
    }
    let floor = limits.floor(total);
    let image = missing.unwrap_or(0).saturating_mul(limits.factor);
    let need = floor.saturating_add(image);
    if free >= need {
        return Verdict::Enough;
    }
    let [free_text, total, floor, image, lack] =
        [free, total, floor, image, need - free].map(|bytes| Bytes(bytes).to_string());
    let why = match missing {
        Some(missing) => format!(
            "the image takes {image} ({} to download, times {}) and {floor} must stay free",
            Bytes(missing),
            limits.factor
        ),
        None => format!("{floor} must stay free"),
    };
    Verdict::Short {
        message: format!(
            "{free_text} of {total} are free where images are kept, but {why}; remove {lack} of images or other files \
             there, or lower prepull.diskFloorPercent or prepull.diskFloorBytes"
        ),
    }
}

/// Whether the processors have time left between two samples.
pub fn cpu(before: &CpuSample, after: &CpuSample, max_percent: u8) -> Verdict {
    match after.busy_percent(before) {
        None => Verdict::Unknown { message: "the processors' times have not moved between two looks".into() },
        Some(busy) if busy <= max_percent => Verdict::Enough,
        Some(busy) => Verdict::Short {
            message: format!(
                "the processors are {busy} % busy, and pre-pulls start up to {max_percent} %; wait for the load to go \
                 down, or raise prepull.maxCpu"
            ),
        },
    }
}

/// Whether there is memory left.
pub fn memory(memory: &Memory, min_percent: u8) -> Verdict {
    let Memory { available, total } = *memory;
    if total == 0 {
        return Verdict::Unknown { message: "the system does not tell how much memory it has".into() };
    }
    if available >= percent_of(total, min_percent) {
        return Verdict::Enough;
    }
    Verdict::Short {
        message: format!(
            "{} of {} memory are available, and pre-pulls start from {min_percent} % on; wait for memory to become free, \
             or lower prepull.minMemory",
            Bytes(available),
            Bytes(total)
        ),
    }
}

/// So many percent, rounded up.
fn percent_of(total: u64, percent: u8) -> u64 {
    let part = (u128::from(total) * u128::from(percent)).div_ceil(100);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// A number of bytes as people read it: `1.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

// === impl Check ===

impl Check {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Disk, Self::Cpu, Self::Memory];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Cpu => "cpu",
            Self::Memory => "mem",
        }
    }
}

// === impl DiskLimits ===

impl DiskLimits {
    /// How much stays free of a filesystem.
    pub fn floor(&self, total: u64) -> u64 {
        percent_of(total, self.floor_percent).max(self.floor_bytes)
    }
}

// === impl Bytes ===

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 1u64;
        let mut name = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            // One less than the next unit would be shown as 1024.0.
            if u128::from(self.0) * 20 < u128::from(unit) * 20 * 1024 - u128::from(unit) {
                break;
            }
            (unit, name) = (unit << 10, larger);
        }
        if unit == 1 {
            return write!(f, "{} B", self.0);
        }
        let tenths = (u128::from(self.0) * 10 + u128::from(unit / 2)) / u128::from(unit);
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests;
