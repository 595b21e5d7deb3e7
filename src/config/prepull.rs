//! What can be configured of pre-pulls.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Field;
use super::value::{boolean, duration, labels, number, percent, size};

/// What is pulled ahead of time, and kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepull {
    /// Whether it is done at all.
    pub enabled: bool,
    /// Most items that are not finished.
    pub max_items: usize,
    /// Most finished items that are remembered.
    pub max_finished: usize,
    /// How long a finished item is remembered.
    pub finished_ttl: Duration,
    /// Space for an image in multiples of the bytes to download.
    pub disk_factor: u64,
    /// Percent of the filesystem that a pre-pull leaves free.
    pub disk_floor_percent: u8,
    /// Bytes that a pre-pull leaves free.
    pub disk_floor_bytes: u64,
    /// Percent up to which the processors may be busy.
    pub max_cpu: u8,
    /// Percent of memory that must be available.
    pub min_memory: u8,
    /// Percent of the filesystem below which pins give way.
    pub pin_floor: u8,
    /// Most bytes that pins and parked images hold.
    pub max_pinned_bytes: u64,
    /// Labels of this node.
    pub node_labels: BTreeMap<String, String>,
}

/// Its fields, in the order in which they are documented.
pub(super) const FIELDS: &[Field] = &[
    Field {
        key: "prepull.enabled",
        default: "true",
        form: "true or false",
        help: "Whether crisp pulls images ahead of time. If not, the queue on disk is left as it is.",
        set: |config, text| boolean(text).map(|flag| config.prepull.enabled = flag),
    },
    Field {
        key: "prepull.maxItems",
        default: "10000",
        form: "number, at least 1",
        help: "How many items the queue holds that are not finished. A full queue refuses more.",
        set: |config, text| number(text, 1, 1_000_000).map(|number| config.prepull.max_items = number),
    },
    Field {
        key: "prepull.maxFinished",
        default: "1000",
        form: "number",
        help: "How many finished items are remembered, the latest ones.",
        set: |config, text| number(text, 0, 1_000_000).map(|number| config.prepull.max_finished = number),
    },
    Field {
        key: "prepull.finishedTtl",
        default: "24h",
        form: "duration (ms, s, m, h)",
        help: "How long a finished item is remembered that does not say so itself.",
        set: |config, text| duration(text).map(|time| config.prepull.finished_ttl = time),
    },
    Field {
        key: "prepull.diskFactor",
        default: "3",
        form: "number, at least 1",
        help: "How much space an image is taken to need, in multiples of the bytes to download: they are kept \
               and unpacked.",
        set: |config, text| number(text, 1, 100).map(|number| config.prepull.disk_factor = number as u64),
    },
    Field {
        key: "prepull.diskFloorPercent",
        default: "20%",
        form: "percentage",
        help: "Share of the filesystem of images that a pre-pull leaves free; otherwise it waits. Not less than \
               `prepull.pinFloor`, so that no pre-pull makes a pin give way.",
        set: |config, text| percent(text).map(|share| config.prepull.disk_floor_percent = share),
    },
    Field {
        key: "prepull.diskFloorBytes",
        default: "1GiB",
        form: "size (B, KiB, MiB, GiB, TiB)",
        help: "Bytes that a pre-pull leaves free, if that is more.",
        set: |config, text| size(text).map(|bytes| config.prepull.disk_floor_bytes = bytes),
    },
    Field {
        key: "prepull.maxCpu",
        default: "80%",
        form: "percentage",
        help: "Pre-pulls that ask for the check `cpu` wait while the processors are busier.",
        set: |config, text| percent(text).map(|share| config.prepull.max_cpu = share),
    },
    Field {
        key: "prepull.minMemory",
        default: "20%",
        form: "percentage",
        help: "Pre-pulls that ask for the check `mem` wait while less memory is available.",
        set: |config, text| percent(text).map(|share| config.prepull.min_memory = share),
    },
    Field {
        key: "prepull.pinFloor",
        default: "20%",
        form: "percentage",
        help: "When less of the filesystem of images is free, pins and parked images give way, the least \
               important first: crisp removes the images it had pulled for them, unless a container uses them. \
               Keep it above the kubelet's eviction threshold (15% by default).",
        set: |config, text| percent(text).map(|share| config.prepull.pin_floor = share),
    },
    Field {
        key: "prepull.maxPinnedBytes",
        default: "50GiB",
        form: "size (B, KiB, MiB, GiB, TiB)",
        help: "How many bytes pins and parked images hold together; above that they give way likewise.",
        set: |config, text| size(text).map(|bytes| config.prepull.max_pinned_bytes = bytes),
    },
    Field {
        key: "prepull.nodeLabels",
        default: "",
        form: "KEY=VALUE,...",
        help: "Labels of this node, by which overriders choose where images come from.",
        set: |config, text| labels(text).map(|labels| config.prepull.node_labels = labels),
    },
];

// === impl Prepull ===

impl Prepull {
    /// What no single field can see.
    pub(super) fn check(&self, mistakes: &mut Vec<String>) {
        let Self { disk_floor_percent, pin_floor, .. } = self;
        if disk_floor_percent < pin_floor {
            mistakes.push(format!(
                "prepull.diskFloorPercent: must not be less than prepull.pinFloor ({pin_floor}%), or pre-pulls would make \
                 pins give way"
            ));
        }
    }
}
