//! What can be configured of the records of containers and of their restarts.

use std::time::Duration;

use super::Field;
use super::value::{boolean, duration, number, size};

/// What is recorded of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Whether it is done at all.
    pub enabled: bool,
    /// Whether command and arguments are recorded as text.
    pub clear_args: bool,
    /// Most bytes of a record inside its label.
    pub max_inline: usize,
    /// Most bytes of all labels on the node while records are inside them.
    pub inline_budget: u64,
    /// Most bytes of a record that is kept beside its label.
    pub max_body: usize,
    /// Most bytes of all of those.
    pub max_bodies: u64,
    /// After which time the key is replaced; zero: never.
    pub key_max_age: Duration,
    /// Most restarts that are remembered.
    pub keep: usize,
}

/// The most bytes of a record inside its label: runtimes refuse a label whose key and value have more than 4096 bytes.
const MOST_INLINE: u64 = 4096 - "io.kubernetes.container.spec".len() as u64;

/// The most bytes of a record in a file that are read.
const MOST_BODY: u64 = 4 << 20;

/// Its fields, in the order in which they are documented.
pub(super) const FIELDS: &[Field] = &[
    Field {
        key: "record.enabled",
        default: "true",
        form: "true or false",
        help: "Whether containers get a record of what they were made from, and restarts are explained.",
        set: |config, text| boolean(text).map(|flag| config.record.enabled = flag),
    },
    Field {
        key: "record.clearArgs",
        default: "false",
        form: "true or false",
        help: "Whether command and arguments are recorded as text. They may hold Secrets; otherwise only hashes are \
               recorded, by which a change is noticed.",
        set: |config, text| boolean(text).map(|flag| config.record.clear_args = flag),
    },
    Field {
        key: "record.maxInline",
        default: "3584B",
        form: "size (B, KiB)",
        help: "How large a record inside its label can be, at most 4068B. A larger one is a file in the state \
               directory, and the label has its digest.",
        set: |config, text| {
            let bytes = size(text)?;
            if !(1..=MOST_INLINE).contains(&bytes) {
                return Err(format!(
                    "expected at least 1B and at most {MOST_INLINE}B, as runtimes take no larger label"
                ));
            }
            config.record.max_inline = bytes as usize;
            Ok(())
        },
    },
    Field {
        key: "record.inlineBudget",
        default: "2MiB",
        form: "size (B, KiB, MiB)",
        help: "How much the labels of all containers of the node may take together, as every list of the runtime carries \
               them. Above that records are files.",
        set: |config, text| size(text).map(|bytes| config.record.inline_budget = bytes),
    },
    Field {
        key: "record.maxBody",
        default: "1MiB",
        form: "size (B, KiB, MiB)",
        help: "How large a record in a file can be, at most 4MiB; of a larger one only the digest is kept.",
        set: |config, text| {
            let bytes = size(text)?;
            if bytes > MOST_BODY {
                return Err("expected at most 4MiB, as no larger record is read".to_owned());
            }
            config.record.max_body = bytes as usize;
            Ok(())
        },
    },
    Field {
        key: "record.maxBodies",
        default: "64MiB",
        form: "size (B, KiB, MiB, GiB, TiB)",
        help: "How much records in files may take together. Those of containers that are gone are removed.",
        set: |config, text| size(text).map(|bytes| config.record.max_bodies = bytes),
    },
    Field {
        key: "record.keyMaxAge",
        default: "0s",
        form: "duration (ms, s, m, h)",
        help: "How old the key of the hashes in records can be before a new one is used; 0s: any age. Older keys are kept, \
               so that older records can be compared.",
        set: |config, text| duration(text).map(|time| config.record.key_max_age = time),
    },
    Field {
        key: "restarts.keep",
        default: "1000",
        form: "number, at least 1",
        help: "How many restarts of containers are remembered, the latest ones; of one container at most 20.",
        set: |config, text| number(text, 1, 100_000).map(|number| config.record.keep = number),
    },
];
