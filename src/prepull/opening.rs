//! What is on disk when crisp starts.

use std::path::Path;
use std::time::Duration;

use crate::prepull::queue::{Event, Limits, Queue};
use crate::prepull::record;
use crate::prepull::secret::Sealer;
use crate::prepull::time::Time;
use crate::store::Store;

/// The store's table of items, and what else is written down.
pub(super) const ITEMS: &str = "prepull.items";
pub(super) const TRACES: &str = "prepull.traces";
pub(super) const NEXT_ID: &str = "prepull.nextId";
pub(super) const PAUSED: &str = "prepull.paused";
pub(super) const INSTANCE: &str = "prepull.instance";

/// What is read from the store at the start.
pub(super) struct Found {
    pub(super) queue: Queue,
    pub(super) instance: String,
}

/// Reads what was written down.
pub(super) fn read(store: &Store, sealer: &Sealer, limits: Limits) -> anyhow::Result<Found> {
    let now = Time::now();
    let number = |key| -> anyhow::Result<u64> {
        let value = store.meta(key)?.and_then(|value| <[u8; 8]>::try_from(value).ok());
        Ok(value.map_or(0, u64::from_be_bytes))
    };
    let mut items = Vec::new();
    let mut next_id = number(NEXT_ID)?;
    for (id, data) in store.load(ITEMS)? {
        next_id = next_id.max(id.saturating_add(1));
        match record::decode(&data, sealer, now) {
            Ok(item) => items.push(item),
            // It stays in the store for who can read it.
            Err(error) => tracing::error!(item = id, %error, "an item cannot be read; it is left out"),
        }
    }
    let instance = match store.meta(INSTANCE)?.and_then(|value| String::from_utf8(value).ok()) {
        Some(instance) => instance,
        None => crate::pull::key::KeyMaker::new()?.instance(),
    };
    let mut traces = Vec::new();
    for (id, data) in store.load(TRACES)? {
        next_id = next_id.max(id.saturating_add(1));
        match serde_json::from_slice(&data) {
            Ok(trace) => traces.push((id, trace)),
            Err(error) => tracing::error!(item = id, %error, "what an item has left cannot be read"),
        }
    }
    let mut queue = Queue::new(limits, items, next_id, now);
    queue.put_traces(traces);
    if number(PAUSED)? != 0 {
        queue.step(Event::Pause(true), now);
    }
    Ok(Found { queue, instance })
}

/// Opens the store in a directory. A process that is just giving it up is waited for.
pub(super) async fn open_store(dir: &Path) -> Result<Store, crate::store::OpenError> {
    let mut said = false;
    loop {
        let dir = dir.to_owned();
        let opened = tokio::task::spawn_blocking(move || Store::open(&dir)).await;
        match opened {
            Ok(Err(crate::store::OpenError::Busy { .. })) => {
                if !said {
                    tracing::info!("another crisp still uses the store; waiting for it");
                    said = true;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(opened) => return opened,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
