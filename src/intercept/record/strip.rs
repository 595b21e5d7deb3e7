//! Takes records out of what the runtime says of its containers.
//!
//! Messages are large and come often, and most of what they hold is none of our business: a search for the label's key
//! tells whether there is anything to do at all, and only the containers that have it are looked into.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::container::record::LABEL;
use crate::cri::Method;
use crate::wire::{self, Patch, Value, entry, entry_key, fields};

/// Where the labels of containers are in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The fields that lead to a container, repeated or not.
    path: &'static [u32],
    /// The field with its labels.
    labels: u32,
}

/// What records took that were taken out, in bytes.
pub(super) type Taken = Arc<AtomicU64>;

static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(LABEL));

// === impl Place ===

impl Place {
    /// Where a reply to this method has them.
    pub(super) fn of(method: Method) -> Option<Self> {
        let (path, labels): (&[u32], u32) = match method {
            Method::LIST_CONTAINERS | Method::STREAM_CONTAINERS => (&[1], 8),
            Method::CONTAINER_STATUS => (&[1], 12),
            Method::POD_SANDBOX_STATUS => (&[3], 12),
            Method::GET_CONTAINER_EVENTS => (&[5], 12),
            // Attributes of the stats of a container, or of each container of a sandbox.
            Method::CONTAINER_STATS | Method::LIST_CONTAINER_STATS | Method::STREAM_CONTAINER_STATS => {
                (&[1, 1], 3)
            }
            Method::POD_SANDBOX_STATS | Method::LIST_POD_SANDBOX_STATS | Method::STREAM_POD_SANDBOX_STATS => {
                (&[1, 2, 5, 1], 3)
            }
            _ => return None,
        };
        Some(Self { path, labels })
    }

    /// The change that takes every record out of a message that may hold one.
    pub(super) fn strip(self, taken: &Taken) -> Patch {
        let (labels, taken) = (self.labels, taken.clone());
        match self.path {
            [] => Patch::new().remove_entry([labels], LABEL),
            // Lists have hundreds of them.
            [containers] => Patch::new()
                .replace([*containers], move |container| without_record(container, labels, &taken)),
            [field, path @ ..] => {
                let inner = Self { path, labels };
                Patch::new()
                    .each([*field], move |element| may_hold_record(element).then(|| inner.strip(&taken)))
            }
        }
    }
}

/// A container without its record; nothing if it has none.
fn without_record(container: &[u8], labels: u32, taken: &AtomicU64) -> Result<Option<Bytes>, wire::Error> {
    let mut without: Option<Vec<u8>> = None;
    // Up to where it has been looked at, and from where on it still is to be copied.
    let (mut end, mut start) = (0, 0);
    for field in fields(container) {
        let field = field?;
        let begin = end;
        end += field.raw.len();
        if field.number == labels
            && let Value::Len(label) = field.value
            && entry_key(label)? == LABEL.as_bytes()
        {
            taken.fetch_add(field.raw.len() as u64, Ordering::Relaxed);
            let copy = without.get_or_insert_with(|| Vec::with_capacity(container.len() - field.raw.len()));
            copy.extend_from_slice(container.get(start..begin).unwrap_or_default());
            start = end;
        }
    }
    Ok(without.map(|mut without| {
        without.extend_from_slice(container.get(start..).unwrap_or_default());
        without.into()
    }))
}

/// Whether the label's key is in there. It may still be somebody's text.
pub(super) fn may_hold_record(message: &[u8]) -> bool {
    KEY.find(message).is_some()
}

/// The records in a list of containers, or in one message of a stream of them.
pub(super) fn records_in(message: &Bytes) -> Result<Vec<Bytes>, wire::Error> {
    let mut records = Vec::new();
    for field in fields(message) {
        let field = field?;
        if let (1, Value::Len(container)) = (field.number, field.value)
            && let Some(label) = entry(container, [8], LABEL)?
        {
            records.push(message.slice_ref(label));
        }
    }
    Ok(records)
}

/// Whether a request for a list asks for all containers there are.
pub(super) fn asks_for_all(request: &[u8]) -> Result<bool, wire::Error> {
    for field in fields(request) {
        let field = field?;
        // An empty filter is none.
        if field.number == 1 && field.value != Value::Len(&[]) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
