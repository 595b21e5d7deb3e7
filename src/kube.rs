//! The Kubernetes API server, as far as crisp asks it: the pods of this node, the Services that pods name, and
//! Events that tell people what crisp did.
//!
//! Nothing here is asked unless a feature that needs it is in use, and nothing waits for it except pods that asked for
//! what only the API knows. Every request has ten seconds. Neither an API server that is away nor
//! a kubeconfig that is missing or broken stops crisp: the file may be about to be replaced, and the node needs its CRI.

mod client;
mod events;
mod pods;
mod services;
mod source;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::config;
use crate::container::PodEvent;

use self::client::Made;
use self::source::{Mistake, Source};

/// Asks the API server. Cheap to clone, usable on any thread: the connections live on the background runtime.
#[derive(Clone)]
pub struct Kube {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    /// What was last read of it. Locked for a glance only.
    found: Mutex<Found>,
    node: String,
    background: Handle,
    /// The client in use. Locked for a glance only; it is made anew now and then, since certificates are rotated.
    client: Mutex<Option<Made>>,
    /// Who makes a client has the one permit.
    making: Arc<Semaphore>,
    events: mpsc::Sender<PodEvent>,
}

/// What was last read of how the API server is reached.
#[derive(Debug, Default)]
struct Found {
    server: Option<String>,
    problem: Option<String>,
}

/// How long a file may take to be read for somebody who only wants to look.
const GLANCE: Duration = Duration::from_secs(1);

// === impl Kube ===

impl Kube {
    /// Finds out how the API server is reached. `None`: nobody said so. If it is said wrongly, that is logged, and read
    /// again whenever somebody needs it.
    pub fn start(settings: &config::Kube, background: &Handle) -> Option<Self> {
        let source = Source::find(settings)?;
        let node = settings.node_name.clone().unwrap_or_else(source::host_name);
        let (events, told) = mpsc::channel(events::QUEUE);
        let shared = Shared {
            source,
            found: Mutex::default(),
            node,
            background: background.clone(),
            client: Mutex::new(None),
            making: Arc::new(Semaphore::new(1)),
            events,
        };
        let kube = Self { shared: Arc::new(shared) };
        let _ = kube.read();
        events::start(&kube, told);
        Some(kube)
    }

    /// Where the API server is, as far as that could be read.
    pub fn server(&self) -> Option<String> {
        self.shared.found.lock().ok()?.server.clone()
    }

    /// Why the API server cannot be asked, if what says how it is reached is wrong. Looks whether it still is.
    pub async fn problem(&self) -> Option<String> {
        let problem = || self.shared.found.lock().ok()?.problem.clone();
        problem()?;
        let kube = self.clone();
        let look = self.shared.background.spawn_blocking(move || kube.read().map(drop));
        let _ = tokio::time::timeout(GLANCE, look).await;
        problem()
    }

    /// Reads how the API server is reached, and notes what comes of it. Blocks.
    fn read(&self) -> Result<::kube::Config, Mistake> {
        let result = self.shared.source.read();
        let Ok(mut found) = self.shared.found.lock() else { return result };
        match &result {
            Ok(config) => {
                found.server = Some(source::server(config));
                if found.problem.take().is_some() {
                    tracing::info!(
                        server = found.server,
                        "the Kubernetes API server can be asked from now on"
                    );
                }
            }
            Err(mistake) => {
                let problem = mistake.to_string();
                if found.problem.as_ref() != Some(&problem) {
                    tracing::error!(
                        "the Kubernetes API server cannot be asked: {problem}; what needs it is refused or off until \
                         that is corrected, which is noticed without a restart"
                    );
                }
                found.problem = Some(problem);
            }
        }
        result
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }
}

impl fmt::Debug for Kube {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kube").field("found", &self.shared.found).field("node", &self.shared.node).finish()
    }
}
