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
    // One after the other: all of them as they are written are more than all of them as they are kept.
    let mut queue = Queue::new(limits, [], number(NEXT_ID)?, now);
    store.each(ITEMS, |id, data| match record::decode(data, sealer, now) {
        Ok(item) => queue.put(item),
        // It stays in the store for who can read it.
        Err(error) => {
            queue.skip(id);
            tracing::error!(item = id, %error, "an item cannot be read; it is left out");
        }
    })?;
    store.each(TRACES, |id, data| match serde_json::from_slice(data) {
        Ok(trace) => queue.put_trace(id, trace),
        Err(error) => {
            queue.skip(id);
            tracing::error!(item = id, %error, "what an item has left cannot be read");
        }
    })?;
    let instance = match store.meta(INSTANCE)?.and_then(|value| String::from_utf8(value).ok()) {
        Some(instance) => instance,
        None => crate::pull::key::KeyMaker::new()?.instance(),
    };
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
