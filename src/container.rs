//! What crisp knows and decides about containers and the pods they are of.
//!
//! ```text
//! CreateContainer ─▶ record: what it is made from ─▶ a label of the container, or its digest there and a file (bodies)
//!        └─ reply ─▶ watcher (background): the container before it ─▶ restart: what differs, why ─▶ log, metric, Event
//!                                                                                              └─▶ history ─▶ `crisp restarts`
//! ```

pub mod bodies;
mod budget;
pub mod census;
pub mod hash;
pub mod history;
pub mod keys;
pub mod links;
mod recent;
pub mod record;
pub mod recorder;
pub mod restart;
pub mod service_links;
pub mod shield;
mod stops;
mod watcher;

use std::fmt;
use std::sync::Arc;

/// Something that is told to the owner of a pod as an Event on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub uid: String,
    /// One word in CamelCase for machines.
    pub reason: &'static str,
    /// What happened and what to do.
    pub message: String,
    /// Whether somebody should look at it.
    pub warning: bool,
}

/// Who tells Events. It must neither wait nor fail; the default tells nobody.
#[derive(Clone)]
pub struct PodEvents(pub Arc<dyn Fn(PodEvent) + Send + Sync>);

impl Default for PodEvents {
    fn default() -> Self {
        Self(Arc::new(drop))
    }
}

impl fmt::Debug for PodEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodEvents")
    }
}
