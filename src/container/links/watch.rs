//! One watch for all pods that wait for Services of a namespace.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Change, Changes, Services};
use crate::error::Error;

/// The watches under way. Each lives as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<String, Weak<Watch>>>);

/// A watch of one namespace.
#[derive(Debug)]
pub(super) struct Watch {
    seen: watch::Receiver<Seen>,
    task: AbortOnDropHandle<()>,
}

/// What a watch has seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    present: HashSet<String>,
    /// Whether changes are told now.
    live: bool,
}

/// How long after its end a watch is begun again, at first.
const SOON: Duration = Duration::from_millis(200);

/// How long at most, after several that came to nothing.
const LATER: Duration = Duration::from_secs(5);

/// A watch that lived longer was a good one, even if it had nothing to tell.
const GOOD: Duration = Duration::from_secs(1);

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
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = watches.get(namespace).and_then(Weak::upgrade);
        let rest = match before {
            Some(watch) if !watch.task.is_finished() => return watch,
            // It died, and might at once die again.
            Some(_) => LATER,
            None => Duration::ZERO,
        };
        watches.retain(|_, watch| watch.strong_count() > 0);
        let (sender, seen) = watch::channel(Seen::default());
        let (of, services) = (namespace.to_owned(), services.clone());
        let task = background.spawn(async move {
            tokio::time::sleep(rest).await;
            run(of, services, sender).await;
        });
        let watch = Arc::new(Watch { seen, task: AbortOnDropHandle::new(task) });
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

    pub(super) fn is_live(&self) -> bool {
        self.live
    }
}

/// Watches, and watches again whenever that ends. What is seen starts from nothing each time, since what was deleted
/// in between is not told.
async fn run(namespace: String, services: Arc<dyn Services>, seen: watch::Sender<Seen>) {
    let (mut pause, mut fine) = (SOON, true);
    loop {
        let result = match services.watch(&namespace).await {
            Ok(changes) => {
                let (started, mut told) = (Instant::now(), false);
                let result = follow(changes, &seen, &mut told).await;
                // API servers end watches now and then, and proxies cut them: that is no reason to miss much.
                if told || started.elapsed() > GOOD {
                    pause = SOON;
                }
                result
            }
            Err(error) => Err(error),
        };
        match &result {
            Err(error) if fine => {
                tracing::warn!(namespace, %error, "pods wait for Services that cannot be watched; trying on");
            }
            Err(error) => tracing::debug!(namespace, %error, "Services cannot be watched; trying on"),
            Ok(()) => {}
        }
        fine = result.is_ok();
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATER);
    }
}

/// Notes what is told until the watch ends. `told` becomes true with the first change.
async fn follow(mut changes: Changes, seen: &watch::Sender<Seen>, told: &mut bool) -> Result<(), Error> {
    seen.send_modify(|seen| *seen = Seen { live: true, ..Seen::default() });
    let result = loop {
        let change = match tokio::time::timeout(SILENCE, changes.next()).await {
            Ok(Some(Ok(change))) => change,
            Ok(Some(Err(error))) => break Err(error),
            Ok(None) | Err(_) => break Ok(()),
        };
        *told = true;
        seen.send_modify(|seen| match change {
            Change::Present(name) => {
                seen.present.insert(name);
            }
            Change::Gone(name) => {
                seen.present.remove(&name);
            }
        });
    };
    seen.send_modify(|seen| seen.live = false);
    result
}
