//! The hash shield: containers that carry a foreign hash are shown to a kubelet from 1.31 on with the hash that it would
//! have given them itself, so that an upgrade to it restarts nothing that did not change.
//!
//! A *census* says which containers these are: crisp lists the runtime's containers and, if one of them is new to it and
//! has no record, this node's pods. There is one at the start and one for each new connection of a kubelet, because
//! containers may have been made past crisp meanwhile; the calls of that connection wait for it, at most
//! [`FIRST_ANSWERS`]. What was decided about a container stays decided: its hash must not move when its pod is edited,
//! or the edit would restart nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_cri::v1::{
    Container, ImageSpec, ImageStatusRequest, ImageStatusResponse, ListContainersRequest,
    ListContainersResponse,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{HashShield, Kubelets, ShieldMode};
use crate::container::census::{self, PodImages, Pods, Verdict};
use crate::container::hash;
use crate::cri::{Call, Method, RuntimeCall, ask};
use crate::error::Error;
use crate::metrics::Metrics;

/// How long the first answers to a kubelet wait for the census.
pub const FIRST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the census waits before it asks the API server or the runtime again: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// How long a container whose pod is not known is left alone.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Lists the pods of this node.
pub type PodsOfNode = Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<PodImages>, Error>> + Send + Sync>;

/// The shield. Clones are the same one.
#[derive(Clone)]
pub struct Shield {
    inner: Arc<Inner>,
}

struct Inner {
    settings: HashShield,
    runtime: RuntimeCall,
    /// Nothing without an API server: then only recorded containers can be judged.
    pods: Option<PodsOfNode>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// The newest connection that has asked for a census.
    newest: AtomicU64,
    /// A kubelet computes otherwise than crisp believes.
    refuted: AtomicBool,
    /// Numbers of the last census that was asked for and of the last that has ended.
    wanted: watch::Sender<u64>,
    ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// What was decided, by container ID. [`Verdict::IfSame`] and [`Verdict::Unknown`] never stay here.
    decided: HashMap<String, Option<Arc<str>>>,
    /// When nothing was known of a container's pod: it is looked for again, but not for each `crictl` that connects.
    unknown: HashMap<String, Instant>,
    /// How many have an answer.
    answers: usize,
    /// Until when calls wait for the census.
    wait_until: Option<Instant>,
}

/// Why a census has not come to its end.
enum Failed {
    /// The runtime is away: then calls have nothing to wait for.
    Runtime(Error),
    Pods(Error),
}

// === impl Shield ===

impl Shield {
    /// Starts it with a first census.
    pub fn start(
        settings: HashShield,
        runtime: RuntimeCall,
        pods: Option<PodsOfNode>,
        metrics: Arc<Metrics>,
        background: &Handle,
    ) -> Self {
        let inner = Arc::new(Inner {
            settings,
            runtime,
            pods,
            metrics,
            state: Mutex::default(),
            newest: AtomicU64::new(0),
            refuted: AtomicBool::new(false),
            wanted: watch::Sender::new(0),
            ended: watch::Sender::new(0),
        });
        if settings.mode != ShieldMode::Off {
            inner.want();
            background.spawn(inner.clone().take_censuses());
        }
        Self { inner }
    }

    /// Whether the caller is shown other hashes at all.
    pub fn is_for(&self, call: &Call) -> bool {
        let new = match self.inner.settings.kubelets {
            Kubelets::Auto => hash::is_new_kubelet(call.user_agent(), call.authority.as_ref()),
            Kubelets::New => true,
            Kubelets::Old => false,
        };
        new && self.inner.settings.mode != ShieldMode::Off && !self.inner.refuted.load(Ordering::Relaxed)
    }

    /// To be waited for before containers are shown to the caller, while the census that it needs is under way.
    pub fn settled(&self, connection: u64) -> Option<BoxFuture<'static, ()>> {
        // Connections are counted upwards from 1.
        if self.inner.newest.fetch_max(connection, Ordering::Relaxed) < connection {
            self.inner.want();
        }
        let wanted = *self.inner.wanted.borrow();
        if *self.inner.ended.borrow() >= wanted || self.inner.settings.mode != ShieldMode::On {
            return None;
        }
        let until = self.inner.lock().wait_until.filter(|until| Instant::now() < *until)?;
        let mut ended = self.inner.ended.subscribe();
        let wait = async move {
            let settled = ended.wait_for(|ended| *ended >= wanted).map(drop);
            // Too late is as good as never: the answer goes on as it is.
            let _ = tokio::time::timeout_at(until.into(), settled).await;
        };
        Some(wait.boxed())
    }

    /// Whether any container has an answer, so that replies have to be looked at.
    pub fn has_answers(&self) -> bool {
        self.inner.settings.mode == ShieldMode::On
            && !self.inner.refuted.load(Ordering::Relaxed)
            && self.inner.lock().answers > 0
    }

    /// The hash to be shown for a container instead of its own.
    pub fn answer(&self, container: &str) -> Option<Arc<str>> {
        self.inner.lock().decided.get(container)?.clone()
    }

    /// Compares what a kubelet has computed with what crisp computes. If that differs, the shield is off from now on.
    pub fn verify(&self, name: &str, image: &str, computed: &str) {
        let expected = hash::of_name_and_image(name, image);
        if expected == computed || self.inner.refuted.swap(true, Ordering::Relaxed) {
            return;
        }
        self.inner.metrics.containers.shield_refuted();
        tracing::error!(
            container = name,
            image,
            computed,
            expected,
            "this kubelet computes container hashes in another way than crisp knows: the hash shield is off until crisp \
             starts again, and hashes go on as they are"
        );
    }
}

impl fmt::Debug for Shield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shield").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want(&self) {
        self.lock().wait_until = Some(Instant::now() + FIRST_ANSWERS);
        self.wanted.send_modify(|wanted| *wanted += 1);
    }

    /// Takes a census whenever one is wanted, and again until it succeeds.
    async fn take_censuses(self: Arc<Self>) {
        let mut requests = self.wanted.subscribe();
        let mut pause = AGAIN.0;
        loop {
            let wanted = *requests.borrow_and_update();
            let failed = self.census().await.err();
            if !matches!(failed, Some(Failed::Pods(_))) {
                self.ended.send_replace(wanted);
            }
            match failed {
                None => {
                    pause = AGAIN.0;
                    if requests.changed().await.is_err() {
                        return;
                    }
                }
                Some(Failed::Runtime(error) | Failed::Pods(error)) => {
                    tracing::debug!(%error, again_in = ?pause, "no census of containers yet");
                    let _ = tokio::time::timeout(pause, requests.changed()).await;
                    pause = (pause * 2).min(AGAIN.1);
                }
            }
        }
    }

    async fn census(&self) -> Result<(), Failed> {
        let request = ListContainersRequest::default();
        let listed: ListContainersResponse =
            ask::ask(&self.runtime, Method::LIST_CONTAINERS, &request).await.map_err(Failed::Runtime)?;
        let (listed, new) = {
            let mut state = self.lock();
            state.unknown.retain(|_, since| since.elapsed() < UNKNOWN_FOR);
            let is_known = |id: &String| state.decided.contains_key(id) || state.unknown.contains_key(id);
            let ids: HashSet<String> =
                listed.containers.iter().map(|container| container.id.clone()).collect();
            let is_new = |container: &Container| !is_known(&container.id) && census::matters(container);
            (ids, listed.containers.into_iter().filter(is_new).collect::<Vec<_>>())
        };
        let pods = match &self.pods {
            Some(pods) if !new.iter().all(census::is_recorded) => {
                pods().await.map_err(Failed::Pods)?.into_iter().collect()
            }
            _ => Pods::default(),
        };
        let (mut decided, mut unknown) = (HashMap::new(), HashMap::new());
        for container in new {
            match self.judged(census::judge(&container, &pods)).await? {
                Verdict::Answer(hash) => {
                    tracing::info!(
                        id = container.id,
                        pod = container.labels.get("io.kubernetes.pod.name"),
                        container = container.labels.get(census::CONTAINER_NAME),
                        hash,
                        mode = ?self.settings.mode,
                        "a container with a foreign hash has not changed"
                    );
                    decided.insert(container.id, Some(hash.into()));
                }
                Verdict::AsItIs => _ = decided.insert(container.id, None),
                Verdict::IfSame { .. } | Verdict::Unknown => {
                    unknown.insert(container.id, Instant::now());
                }
            }
        }
        let mut state = self.lock();
        state.decided.retain(|id, _| listed.contains(id));
        state.unknown.retain(|id, _| listed.contains(id));
        state.decided.extend(decided);
        state.unknown.extend(unknown);
        state.answers = state.decided.values().flatten().count();
        self.metrics.containers.shielded(state.answers);
        Ok(())
    }

    /// Looks up what a verdict depends on.
    async fn judged(&self, verdict: Verdict) -> Result<Verdict, Failed> {
        let Verdict::IfSame { image, id, hash } = verdict else { return Ok(verdict) };
        let spec = ImageSpec { image, ..Default::default() };
        let request = ImageStatusRequest { image: Some(spec), verbose: false };
        let reply: ImageStatusResponse =
            ask::ask(&self.runtime, Method::IMAGE_STATUS, &request).await.map_err(Failed::Runtime)?;
        let same = reply.image.is_some_and(|image| !image.id.is_empty() && image.id == id);
        Ok(if same { Verdict::Answer(hash) } else { Verdict::AsItIs })
    }
}
