//! Pods that wait for Services, and containers that get variables of Services.
//!
//! Services are read when a pod asks for them. A namespace is watched only while a pod waits for one of its Services, by
//! one watch for all who wait, which ends with the last of them. Everything runs in the background; who asked holds a
//! future, and dropping it ends the waiting.

mod told;
mod users;
mod waiting;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::told::Told;
use self::waiting::Waiting;
use self::watch::Watches;
use crate::container::service_links::{Change as EnvChange, Dependencies, Service, Source, Variable, change};
use crate::container::{PodEvent, PodEvents};
use crate::cri::RuntimeCall;
use crate::error::{Error, Kind, Origin};
use crate::metrics::Metrics;

pub use self::users::User;
pub use self::waiting::WaitingPod;

/// Where Services are read.
pub trait Services: fmt::Debug + Send + Sync {
    /// One Service, if it exists.
    fn get(&self, namespace: &str, name: &str) -> BoxFuture<'static, Result<Option<Service>, Error>>;

    /// All Services of a namespace.
    fn list(&self, namespace: &str) -> BoxFuture<'static, Result<Vec<Service>, Error>>;

    /// The names of the Services of a namespace: those that exist, then every change.
    fn watch(&self, namespace: &str) -> BoxFuture<'static, Result<Changes, Error>>;
}

/// What becomes of the Services of a namespace. Ends when the connection does.
pub type Changes = BoxStream<'static, Result<Change, Error>>;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It exists.
    Present(String),
    /// It exists no more.
    Gone(String),
}

/// The pod that asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Holds pods and reads Services. Cheap to clone.
#[derive(Clone)]
pub struct Links {
    shared: Arc<Shared>,
}

struct Shared {
    api: Option<Api>,
    call: RuntimeCall,
    background: Handle,
    /// Cancelled when crisp is about to end: who waits shall not hold it up.
    ending: CancellationToken,
    metrics: Arc<Metrics>,
    room: Arc<Semaphore>,
    max_held: usize,
    watches: Watches,
    /// Locked for a glance only, as the one below.
    told: Mutex<Told>,
    waiting: Mutex<Waiting>,
}

/// What of the API server is used.
#[derive(Clone)]
pub struct Api {
    /// Reads Services.
    pub services: Arc<dyn Services>,
    /// Tells Events.
    pub events: PodEvents,
}

/// How long before the caller's deadline a pod is refused: its message must still get through.
const MARGIN: Duration = Duration::from_secs(15);

/// How long the kubelet waits for a sandbox, if it does not say so.
const KUBELET_WAITS: Duration = Duration::from_secs(240);

/// How many Services of one pod are read at once.
const AT_ONCE: usize = 8;

/// How long it may take to look whether all Services of a pod exist.
const LOOK: Duration = Duration::from_secs(10);

/// How long the last look may take, for which the pod is about to be refused anyway.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// How long before the caller's deadline every look is over.
const ANSWER: Duration = Duration::from_secs(2);

// === impl Links ===

impl Links {
    /// Without an API server, pods that ask for links are refused and all others go on.
    pub fn new(
        api: Option<Api>,
        max_held: usize,
        call: RuntimeCall,
        background: Handle,
        ending: CancellationToken,
        metrics: Arc<Metrics>,
    ) -> Self {
        let shared = Shared {
            api,
            call,
            background,
            ending,
            metrics,
            room: Arc::new(Semaphore::new(max_held)),
            max_held,
            watches: Watches::default(),
            told: Mutex::default(),
            waiting: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Ends well when all Services exist that a pod depends on, and with a refusal some time before the deadline.
    pub fn all_exist(
        &self,
        pod: Pod,
        dependencies: Dependencies,
        deadline: Option<Instant>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let links = self.clone();
        let until = deadline
            .or_else(|| Instant::now().checked_add(KUBELET_WAITS))
            .and_then(|deadline| deadline.checked_sub(MARGIN))
            .unwrap_or_else(Instant::now);
        self.in_background(async move { links.wait(pod, &dependencies, until).await })
    }

    /// What becomes of the environment of a container of a pod that uses links.
    pub fn environment(
        &self,
        pod: Pod,
        container: String,
        env: Vec<Variable>,
        sources: Vec<Source>,
    ) -> BoxFuture<'static, Result<EnvChange, Error>> {
        let links = self.clone();
        self.in_background(async move {
            let api = links.api(&pod)?;
            let listed = api.services.list(&pod.namespace).await;
            let services = listed.map_err(|error| links.unavailable(&pod, &error))?;
            change(&env, &services, &sources).map_err(|(source, why)| {
                let Pod { namespace, name, .. } = &pod;
                let why = why.map_or_else(
                    || "does not exist; the container is created as soon as it does".to_owned(),
                    |unlinkable| unlinkable.to_string(),
                );
                let message = format!(
                    "container {container} of pod {namespace}/{name}: Service {namespace}/{} {why}",
                    source.service
                );
                links.tell_once(&pod, "ServiceLinkFailed", true, &message);
                links.refuse("missing", Error::new(Kind::Precondition, Origin::Kubelet, message))
            })
        })
    }

    /// The pods that wait, and those that were refused of late.
    pub fn waiting(&self) -> Vec<WaitingPod> {
        self.shared.waiting.lock().map(|mut waiting| waiting.list(Instant::now())).unwrap_or_default()
    }

    /// Counts a refusal and hands it on.
    pub fn refuse(&self, reason: &'static str, error: Error) -> Error {
        self.shared.metrics.links.refused(reason);
        error
    }

    async fn wait(&self, pod: Pod, dependencies: &Dependencies, until: Instant) -> Result<(), Error> {
        let api = self.api(&pod)?;
        // `until` lies that much before the deadline.
        let left =
            (until + (MARGIN - ANSWER)).saturating_duration_since(tokio::time::Instant::now().into_std());
        let missing = self.missing(&api, &pod, dependencies, LOOK.min(left)).await;
        let missing = missing.map_err(|error| self.unavailable(&pod, &error))?;
        if missing.is_empty() {
            self.note(|waiting| waiting.started(&pod));
            return Ok(());
        }
        let Ok(_room) = self.shared.room.clone().try_acquire_owned() else {
            let message = format!(
                "pod {}/{} would wait for {}, but no more than {} pods may wait at once (links.maxHeld); it is tried again",
                pod.namespace,
                pod.name,
                listed(&missing, &pod.namespace),
                self.shared.max_held
            );
            self.note(|waiting| waiting.refused(&pod, &missing));
            return Err(self.refuse("full", Error::new(Kind::Exhausted, Origin::Crisp, message)));
        };
        let message = format!("waits for {}", listed(&missing, &pod.namespace));
        self.tell_once(&pod, "WaitingForServices", false, &message);
        tracing::info!(namespace = pod.namespace, pod = pod.name, ?missing, "a pod waits for Services");
        let _held = Held::start(self, &pod, &missing);
        self.hold(&api, &pod, dependencies, missing, until).await
    }

    async fn hold(
        &self,
        api: &Api,
        pod: &Pod,
        dependencies: &Dependencies,
        mut shown: Vec<String>,
        until: Instant,
    ) -> Result<(), Error> {
        let start = || self.shared.watches.of(&pod.namespace, &api.services, &self.shared.background);
        let mut watch = start();
        let mut seen = watch.seen();
        let until = tokio::time::sleep_until(until.into());
        tokio::pin!(until);
        loop {
            let missing = seen.borrow_and_update().missing(dependencies.names());
            if missing.is_empty() {
                break;
            }
            // A watch that has just begun has seen nothing yet, so what is shown only becomes less.
            let before = shown.len();
            shown.retain(|name| missing.contains(name));
            if shown.len() < before && !shown.is_empty() {
                self.note(|waiting| waiting.still(pod, &shown));
            }
            tokio::select! {
                changed = seen.changed() => if changed.is_err() {
                    // Its task has died, which only a mistake of crisp's own does. The next one begins with a pause.
                    watch = start();
                    seen = watch.seen();
                },
                () = self.shared.ending.cancelled() => return Err(ending()),
                () = &mut until => {
                    // The last word is the API server's: a watch may be broken.
                    match self.missing(api, pod, dependencies, LAST_LOOK).await {
                        Ok(missing) if missing.is_empty() => break,
                        Ok(missing) => return Err(self.given_up(pod, &missing)),
                        // It is slow to say so, but the watch knows.
                        Err(_) if seen.borrow().is_live() => return Err(self.given_up(pod, &shown)),
                        Err(error) => return Err(self.unavailable(pod, &error)),
                    }
                }
            }
        }
        self.note(|waiting| waiting.started(pod));
        Ok(())
    }

    fn given_up(&self, pod: &Pod, missing: &[String]) -> Error {
        self.note(|waiting| waiting.refused(pod, missing));
        let Pod { namespace, name, .. } = pod;
        let (missing, do_not) =
            (listed(missing, namespace), if missing.len() == 1 { "does not" } else { "do not" });
        let message = format!(
            "pod {namespace}/{name} depends on {missing}, which {do_not} exist; create what is missing, or take it out of \
             the pod's annotation crisp.dev/service-dependencies"
        );
        self.tell_once(pod, "MissingServices", true, &format!("depends on {missing}, which {do_not} exist"));
        self.refuse("missing", Error::new(Kind::Precondition, Origin::Kubelet, message))
    }

    /// Those that do not exist now, in the order of the alphabet. The first error ends the look.
    async fn missing(
        &self,
        api: &Api,
        pod: &Pod,
        wanted: &Dependencies,
        patience: Duration,
    ) -> Result<Vec<String>, Error> {
        let look = futures_util::stream::iter(wanted.names().to_vec())
            .map(|name| {
                let get = api.services.get(&pod.namespace, &name);
                async move { get.await.map(|service| service.is_none().then_some(name)) }
            })
            .buffer_unordered(AT_ONCE)
            .try_filter_map(async |missing| Ok(missing))
            .try_collect();
        let mut missing: Vec<_> = tokio::time::timeout(patience, look).await.map_err(|_elapsed| {
            let message = format!(
                "the Kubernetes API server did not answer for {} within {:.1} s",
                count(wanted.names().len()),
                patience.as_secs_f32()
            );
            Error::new(Kind::Unavailable, Origin::KubeApi, message)
        })??;
        missing.sort_unstable();
        Ok(missing)
    }

    fn unavailable(&self, pod: &Pod, error: &Error) -> Error {
        self.refuse("unavailable", of_pod(pod, error))
    }

    fn api(&self, pod: &Pod) -> Result<Api, Error> {
        self.shared.api.clone().ok_or_else(|| {
            let message = format!(
                "pod {}/{} asks for Services, but crisp is not told how to reach the Kubernetes API server on this node; \
                 set --kubeconfig FILE",
                pod.namespace, pod.name
            );
            self.refuse("unconfigured", Error::new(Kind::Precondition, Origin::Crisp, message))
        })
    }

    fn tell_once(&self, pod: &Pod, reason: &'static str, warning: bool, message: &str) {
        let Some(api) = &self.shared.api else { return };
        let is_new = self.shared.told.lock().is_ok_and(|mut told| told.is_new(&pod.uid, reason, message));
        if is_new {
            (api.events.0)(PodEvent {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                uid: pod.uid.clone(),
                reason,
                message: message.to_owned(),
                warning,
            });
        }
    }

    fn note(&self, note: impl FnOnce(&mut Waiting)) {
        if let Ok(mut waiting) = self.shared.waiting.lock() {
            note(&mut waiting);
        }
    }

    /// Runs it off the proxy's thread. Ends with its caller.
    fn in_background<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let background = self.shared.background.clone();
        // Started when it is first waited for: a plan that is not carried out costs nothing.
        Box::pin(async move {
            match AbortOnDropHandle::new(background.spawn(work)).await {
                Ok(result) => result,
                Err(_ended) => Err(Error::new(Kind::Unavailable, Origin::Crisp, "crisp is shutting down")),
            }
        })
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("max_held", &self.shared.max_held).finish_non_exhaustive()
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

/// A pod that waits, however it ends.
struct Held {
    links: Links,
    pod: Pod,
    since: Instant,
}

impl Held {
    fn start(links: &Links, pod: &Pod, missing: &[String]) -> Self {
        links.note(|waiting| waiting.waits(pod, missing));
        links.shared.metrics.links.held.inc();
        Self { links: links.clone(), pod: pod.clone(), since: Instant::now() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.links.note(|waiting| waiting.left(&self.pod));
        self.links.shared.metrics.links.held.dec();
        self.links.shared.metrics.links.waited(self.since.elapsed());
    }
}

fn ending() -> Error {
    Error::new(Kind::Unavailable, Origin::Crisp, "crisp is shutting down; it is tried again")
}

/// An error of the API server, with the pod that needs it.
fn of_pod(pod: &Pod, error: &Error) -> Error {
    let message = format!(
        "pod {}/{} asks for Services, and they cannot be read now; it is tried again: {error}",
        pod.namespace, pod.name
    );
    Error::new(Kind::Unavailable, Origin::KubeApi, message)
}

/// How many, in a sentence.
fn count(services: usize) -> String {
    if services == 1 { "1 Service".to_owned() } else { format!("{services} Services") }
}

/// Names in a sentence.
fn listed(names: &[String], namespace: &str) -> String {
    let noun = if names.len() == 1 { "Service" } else { "Services" };
    let names: Vec<_> = names.iter().map(|name| format!("{namespace}/{name}")).collect();
    format!("{noun} {}", names.join(", "))
}

#[cfg(test)]
mod tests;
