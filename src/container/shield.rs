//! The hash shield: containers that carry a foreign hash are shown to a kubelet from 1.31 on with the hash that it would
//! have given them itself, so that an upgrade to it restarts nothing that did not change.
//!
//! A *census* ([`census_taker`]) says which containers these are. There is one at the start and one for each new connection
//! of a kubelet, because containers may have been made past crisp meanwhile; the calls of that connection wait for it, at
//! most [`FIRST_ANSWERS`]. What was decided about a container stays decided, over a restart of crisp too ([`kept`]): its
//! hash must not move when its pod is edited, or the edit would restart nothing, nor when the API server is away or its
//! image's tag has moved, or it would restart for nothing.

mod census_taker;
mod kept;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{HashShield, Kubelets, ShieldMode};
use crate::container::census::PodImages;
use crate::container::hash;
use crate::cri::{Call, RuntimeCall};
use crate::error::Error;
use crate::metrics::Metrics;

/// How long the first answers to a kubelet wait for the census.
pub const FIRST_ANSWERS: Duration = Duration::from_secs(5);

/// How many connections may be in their first seconds.
const MAX_NEW: usize = 64;

/// Lists the pods of this node.
pub type PodsOfNode = Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<PodImages>, Error>> + Send + Sync>;

/// What the shield works with.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "handles, two of them closures")]
pub struct Parts {
    /// What is configured.
    pub settings: HashShield,
    /// Where decisions are kept.
    pub state_dir: PathBuf,
    /// Calls at the runtime, made in the background.
    pub runtime: RuntimeCall,
    /// Nothing without an API server: then only containers that say themselves what they were made from can be judged.
    pub pods: Option<PodsOfNode>,
    /// Where everything is counted.
    pub metrics: Arc<Metrics>,
}

/// The shield. Clones are the same one.
#[derive(Clone)]
pub struct Shield {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    state: Mutex<State>,
    /// The newest connection that has asked for a census.
    newest: AtomicU64,
    /// How many containers have an answer, and whether any kubelet computes otherwise: so that a call mostly costs two looks.
    answers: AtomicUsize,
    refuted: AtomicBool,
    /// Numbers of the last census that was asked for and of the last that has ended.
    wanted: watch::Sender<u64>,
    ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// What was decided, by container ID: another hash, or none.
    decided: HashMap<String, Option<Arc<str>>>,
    /// When nothing was known of a container's pod: it is looked for again, but not for each `crictl` that connects.
    unknown: HashMap<String, Instant>,
    /// Until when the calls of new connections wait for the census.
    waits: Vec<(u64, Instant)>,
    /// The `user-agent` of a kubelet that computes otherwise than crisp believes.
    refuted_by: Option<String>,
}

// === impl Shield ===

impl Shield {
    /// Starts it with a first census.
    pub fn start(parts: Parts, background: &Handle) -> Self {
        let is_off = parts.settings.mode == ShieldMode::Off;
        let inner = Arc::new(Inner {
            parts,
            state: Mutex::default(),
            newest: AtomicU64::new(0),
            answers: AtomicUsize::new(0),
            refuted: AtomicBool::new(false),
            wanted: watch::Sender::new(1),
            ended: watch::Sender::new(0),
        });
        if !is_off {
            background.spawn(inner.clone().take_censuses());
        }
        Self { inner }
    }

    /// Whether the caller is shown other hashes at all.
    pub fn is_for(&self, call: &Call) -> bool {
        let settings = self.inner.parts.settings;
        let new = match settings.kubelets {
            Kubelets::Auto => hash::is_new_kubelet(call.user_agent(), call.authority()),
            Kubelets::New => true,
            Kubelets::Old => false,
        };
        new && settings.mode != ShieldMode::Off && !self.inner.is_refuted_by(call.user_agent())
    }

    /// To be waited for before containers are shown to the caller, while the census that it needs is under way.
    pub fn settled(&self, connection: u64) -> Option<BoxFuture<'static, ()>> {
        let inner = &self.inner;
        // Connections are counted upwards from 1.
        if inner.newest.fetch_max(connection, Ordering::Relaxed) < connection {
            inner.lock().begin_waiting(connection);
            inner.wanted.send_modify(|wanted| *wanted += 1);
        }
        let wanted = *inner.wanted.borrow();
        if *inner.ended.borrow() >= wanted || inner.parts.settings.mode != ShieldMode::On {
            return None;
        }
        let until = inner.lock().waits_until(connection)?;
        let mut ended = inner.ended.subscribe();
        let wait = async move {
            let settled = ended.wait_for(|ended| *ended >= wanted).map(drop);
            // Too late is as good as never: the answer goes on as it is.
            let _ = tokio::time::timeout_at(until.into(), settled).await;
        };
        Some(wait.boxed())
    }

    /// Whether any container has an answer for a caller, so that replies to it have to be looked at.
    pub fn has_answers(&self, user_agent: Option<&str>) -> bool {
        self.inner.parts.settings.mode == ShieldMode::On
            && self.inner.answers.load(Ordering::Relaxed) > 0
            && !self.inner.is_refuted_by(user_agent)
    }

    /// The hash to be shown for a container instead of its own.
    pub fn answer(&self, container: &str) -> Option<Arc<str>> {
        self.inner.lock().decided.get(container)?.clone()
    }

    /// Compares what a kubelet has computed with what crisp computes. If that differs, it is shown nothing else any more.
    pub fn verify(&self, user_agent: Option<&str>, name: &str, image: &str, computed: &str) {
        let expected = hash::of_name_and_image(name, image);
        if expected == computed {
            return;
        }
        let agent = user_agent.unwrap_or_default();
        {
            let mut state = self.inner.lock();
            if state.refuted_by.as_deref() == Some(agent) {
                return;
            }
            state.refuted_by = Some(agent.to_owned());
        }
        self.inner.refuted.store(true, Ordering::Relaxed);
        // The task writes it down.
        self.inner.wanted.send_modify(|wanted| *wanted += 1);
        self.inner.parts.metrics.containers.shield_refuted();
        tracing::error!(
            container = name,
            image,
            computed,
            expected,
            agent,
            "this kubelet computes container hashes in another way than crisp knows: the hash shield is off for it, and \
             hashes go on as they are"
        );
    }
}

impl fmt::Debug for Shield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shield").field("settings", &self.inner.parts.settings).finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_refuted_by(&self, user_agent: Option<&str>) -> bool {
        self.refuted.load(Ordering::Relaxed)
            && self.lock().refuted_by.as_deref() == Some(user_agent.unwrap_or_default())
    }
}

// === impl State ===

impl State {
    fn begin_waiting(&mut self, connection: u64) {
        let now = Instant::now();
        self.waits.retain(|(_, until)| *until > now);
        if self.waits.len() < MAX_NEW {
            self.waits.push((connection, now + FIRST_ANSWERS));
        }
    }

    /// Each connection waits in its own first seconds only: others that connect all the time do not make it wait again.
    fn waits_until(&self, connection: u64) -> Option<Instant> {
        let wait = self.waits.iter().find(|(waiting, _)| *waiting == connection);
        wait.map(|(_, until)| *until).filter(|until| *until > Instant::now())
    }
}
