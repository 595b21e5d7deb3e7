//! The JSON forms of the admin API's answers. Fields may be added, not changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::prepull::dry::DryRun;
use crate::prepull::item::{How, Id, State};
use crate::prepull::queue::{Added, Queue};
use crate::prepull::time::Time;
use crate::pull::Class;

/// What became of the images that were asked for, in their order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// One for each.
    pub items: Vec<TakenItem>,
}

/// What became of one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenItem {
    /// Its number.
    pub id: Id,
    /// The image under the name that pods use, normalised.
    pub image: String,
    /// What became of it.
    pub result: Added,
}

/// How many items something was done for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// So many.
    pub cancelled: usize,
}

/// How many items are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// So many.
    pub retried: usize,
}

/// Whether the queue is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// It is.
    pub paused: bool,
}

/// What would be done for images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// One for each, in their order.
    pub items: Vec<DryRun>,
}

/// Everything that is kept on the node for owners.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pins {
    /// The oldest first.
    pub items: Vec<PinItem>,
    /// Bytes of all images that are pinned, each counted once.
    pub pinned_bytes: u64,
    /// Bytes of all images that are parked, each counted once.
    pub parked_bytes: u64,
}

/// One image that is kept for one owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinItem {
    /// The item's number.
    pub id: Id,
    /// The image under the name that pods use.
    pub image: String,
    /// For whom.
    pub owner: String,
    /// In which way.
    pub how: How,
    /// Bytes of the image.
    pub bytes: u64,
    /// Until when; otherwise as long as the item is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// How urgent the item was. The lowest class goes first for want of space.
    pub class: Class,
    /// Within a class the lowest priority goes first.
    pub priority: i32,
}

/// The queue in a few figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Whether nothing is started.
    pub paused: bool,
    /// Items that wait.
    pub waiting: usize,
    /// Items that are being pulled.
    pub pulling: usize,
    /// Items that are there and remembered.
    pub succeeded: usize,
    /// Items that were given up and are remembered.
    pub failed: usize,
    /// Bytes of images that are pinned.
    pub pinned_bytes: u64,
    /// Bytes of images that are parked.
    pub parked_bytes: u64,
}

/// Bytes of what is kept in each way. An image that is kept for several counts once.
fn kept_bytes(queue: &Queue) -> (u64, u64) {
    let mut images = BTreeMap::new();
    for item in queue.items() {
        if let Some(kept) = &item.status.kept {
            images.insert((kept.how, item.status.image_id.as_ref().unwrap_or(&item.source)), kept.bytes);
        }
    }
    let of = |how| images.iter().filter(|((other, _), _)| *other == how).map(|(_, bytes)| bytes).sum();
    (of(How::Pinned), of(How::Parked))
}

// === impl Pins ===

impl Pins {
    /// What is kept now.
    pub fn of(queue: &Queue) -> Self {
        let items = queue.items().filter_map(|item| {
            let kept = item.status.kept.as_ref()?;
            Some(PinItem {
                id: item.id,
                image: item.image.clone(),
                owner: item.spec.owner.clone(),
                how: kept.how,
                bytes: kept.bytes,
                until: kept.until,
                class: item.spec.class,
                priority: item.spec.priority,
            })
        });
        let (pinned_bytes, parked_bytes) = kept_bytes(queue);
        Self { items: items.collect(), pinned_bytes, parked_bytes }
    }
}

// === impl QueueStatus ===

impl QueueStatus {
    /// The queue as it is.
    pub fn of(queue: &Queue) -> Self {
        let count = |state| queue.items().filter(|item| item.status.state == state).count();
        let (pinned_bytes, parked_bytes) = kept_bytes(queue);
        Self {
            paused: queue.is_paused(),
            waiting: count(State::Waiting),
            pulling: count(State::Pulling),
            succeeded: count(State::Succeeded),
            failed: count(State::Failed),
            pinned_bytes,
            parked_bytes,
        }
    }
}
