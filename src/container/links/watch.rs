//! One watch for all pods that wait for Services of a namespace.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Change, Services};
use crate::error::Error;

/// The watches under way. Each lives as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<String, Weak<Watch>>>);

/// A watch of one namespace.
#[derive(Debug)]
pub(super) struct Watch {
    seen: watch::Receiver<Seen>,
    _task: AbortOnDropHandle<()>,
}

/// What a watch has seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    present: HashSet<String>,
}

/// How long after a failure it is tried again, at first.
const SOON: Duration = Duration::from_millis(200);

/// How long at most.
const LATER: Duration = Duration::from_secs(5);

/// How long nothing may come: the API server ends a watch long before. A connection that died silently is noticed so.
const SILENCE: Duration = Duration::from_secs(60);

// === impl Watches ===

impl Watches {
    /// The watch of a namespace.
    pub(super) fn of(
        &self,
        namespace: &str,
        services: &Arc<dyn Services>,
        background: &Handle,
    ) -> Arc<Watch> {
        let start = || {
            let (sender, seen) = watch::channel(Seen::default());
            let task = background.spawn(run(namespace.to_owned(), services.clone(), sender));
            Arc::new(Watch { seen, _task: AbortOnDropHandle::new(task) })
        };
        let Ok(mut watches) = self.0.lock() else { return start() };
        if let Some(watch) = watches.get(namespace).and_then(Weak::upgrade) {
            return watch;
        }
        watches.retain(|_, watch| watch.strong_count() > 0);
        let watch = start();
        watches.insert(namespace.to_owned(), Arc::downgrade(&watch));
        watch
    }
}

// === impl Watch ===

impl Watch {
    pub(super) fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }
}

// === impl Seen ===

impl Seen {
    pub(super) fn missing(&self, names: &[String]) -> Vec<String> {
        names.iter().filter(|name| !self.present.contains(*name)).cloned().collect()
    }
}

/// Watches, and watches again whenever that ends. What is seen starts from nothing each time, since what was deleted
/// in between is not told.
async fn run(namespace: String, services: Arc<dyn Services>, seen: watch::Sender<Seen>) {
    let (mut pause, mut fine) = (SOON, true);
    loop {
        let started = Instant::now();
        let result = follow(&namespace, services.as_ref(), &seen).await;
        match &result {
            Err(error) if fine => {
                tracing::warn!(namespace, %error, "pods wait for Services that cannot be watched; trying on");
            }
            Err(error) => tracing::debug!(namespace, %error, "Services cannot be watched; trying on"),
            // The API server ends watches now and then.
            Ok(()) if started.elapsed() > LATER => pause = SOON,
            Ok(()) => {}
        }
        fine = result.is_ok();
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATER);
    }
}

async fn follow(namespace: &str, services: &dyn Services, seen: &watch::Sender<Seen>) -> Result<(), Error> {
    let mut changes = services.watch(namespace).await?;
    seen.send_modify(|seen| *seen = Seen::default());
    while let Ok(Some(change)) = tokio::time::timeout(SILENCE, changes.next()).await {
        let change = change?;
        seen.send_modify(|seen| match change {
            Change::Present(name) => {
                seen.present.insert(name);
            }
            Change::Gone(name) => {
                seen.present.remove(&name);
            }
        });
    }
    Ok(())
}
