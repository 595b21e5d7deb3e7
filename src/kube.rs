//! The Kubernetes API server, as far as crisp asks it: the pods of this node, the Services that pods name, and
//! Events that tell people what crisp did.
//!
//! Nothing here is asked unless a feature that needs it is in use, and nothing waits for it except pods that asked for
//! what only the API knows. Every request has ten seconds. Only a kubeconfig that can never work stops crisp; an
//! API server that is away does not.

mod client;
mod events;
mod pods;
mod services;
mod source;

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::config;
use crate::container::PodEvent;

use self::client::Made;
use self::source::Source;

pub use self::source::Mistake;

/// Asks the API server. Cheap to clone, usable on any thread: the connections live on the background runtime.
#[derive(Clone)]
pub struct Kube {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    server: String,
    node: String,
    background: Handle,
    /// The client in use. Locked for a glance only; it is made anew now and then, since certificates are rotated.
    client: Mutex<Option<Made>>,
    /// Who makes a client has the one permit.
    making: Arc<Semaphore>,
    events: mpsc::Sender<PodEvent>,
}

// === impl Kube ===

impl Kube {
    /// Finds out how the API server is reached. `None`: nobody said so.
    pub fn start(settings: &config::Kube, background: &Handle) -> Result<Option<Self>, Mistake> {
        let Some(source) = Source::find(settings) else { return Ok(None) };
        let server = source.check()?;
        let node = settings.node_name.clone().unwrap_or_else(source::host_name);
        let (events, told) = mpsc::channel(events::QUEUE);
        let shared = Shared {
            source,
            server,
            node,
            background: background.clone(),
            client: Mutex::new(None),
            making: Arc::new(Semaphore::new(1)),
            events,
        };
        let kube = Self { shared: Arc::new(shared) };
        events::start(&kube, told);
        Ok(Some(kube))
    }

    /// Where the API server is.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }
}

impl fmt::Debug for Kube {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kube").field("server", &self.shared.server).field("node", &self.shared.node).finish()
    }
}
