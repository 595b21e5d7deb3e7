//! Looks, after a container was created, for the one that it takes the place of, and tells why it was made again.
//!
//! In the background, and never more than [`WAITING`] at a time: what comes beyond that is counted and left alone.

mod before;
mod teller;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use self::before::{Before, Runtime};
use self::teller::Teller;
use crate::container::PodEvents;
use crate::container::bodies::Bodies;
use crate::container::hash;
use crate::container::history::History;
use crate::container::keys::Keys;
use crate::container::record::{self, LABEL, Label, Record};
use crate::container::restart::{self, Difference, Exit, Previous, Shown, classify};
use crate::container::stops::Stops;
use crate::cri::{RuntimeCall, read, view};
use crate::error::Error;
use crate::metrics::Metrics;

/// So many containers may wait to be looked at.
pub(super) const WAITING: usize = 64;

/// So many KiB may their requests have together.
const WAITING_KIB: usize = 16 << 10;

/// What the watcher works with.
pub(super) struct Parts {
    pub(super) call: RuntimeCall,
    pub(super) keys: Arc<RwLock<Arc<Keys>>>,
    pub(super) bodies: Arc<Mutex<Bodies>>,
    pub(super) stops: Stops,
    pub(super) history: History,
    pub(super) events: PodEvents,
    pub(super) metrics: Arc<Metrics>,
}

/// A container that was created.
#[derive(Debug)]
pub(super) struct Created {
    /// The request, as the kubelet sent it.
    pub(super) request: Bytes,
    /// The new container's ID.
    pub(super) id: String,
}

/// The way to the task.
#[derive(Debug)]
pub(super) struct Watcher {
    jobs: mpsc::Sender<(Created, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// Whose container it is. Containers that are of no pod are nobody's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Subject {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    attempt: u32,
    sandbox: String,
    hash: Option<String>,
}

struct Task {
    runtime: Runtime,
    keys: Arc<RwLock<Arc<Keys>>>,
    bodies: Arc<Mutex<Bodies>>,
    stops: Stops,
    teller: Teller,
}

// === impl Watcher ===

impl Watcher {
    /// Starts the task on the runtime that this is called on.
    pub(super) fn start(parts: Parts) -> Self {
        let Parts { call, keys, bodies, stops, history, events, metrics } = parts;
        let (jobs, mut received) = mpsc::channel::<(Created, OwnedSemaphorePermit)>(WAITING);
        let teller = Teller::new(history, events, metrics.clone());
        let mut task = Task { runtime: Runtime(call), keys, bodies, stops, teller };
        tokio::spawn(async move {
            while let Some((created, _room)) = received.recv().await {
                if let Err(error) = task.look(&created).await {
                    tracing::debug!(%error, container = created.id, "the container before it is not known");
                }
            }
        });
        Self { jobs, room: Arc::new(Semaphore::new(WAITING_KIB)), metrics }
    }

    /// Has a container looked at, if there is room for it.
    pub(super) fn created(&self, created: Created) {
        let kib = u32::try_from(created.request.len() / 1024 + 1).unwrap_or(u32::MAX);
        let Ok(room) = self.room.clone().try_acquire_many_owned(kib) else {
            self.metrics.containers.overlooked.inc();
            return;
        };
        if self.jobs.try_send((created, room)).is_err() {
            self.metrics.containers.overlooked.inc();
        }
    }
}

// === impl Task ===

impl Task {
    async fn look(&mut self, created: &Created) -> Result<(), Error> {
        let Some((subject, image, image_id)) = Subject::of(&created.request)? else { return Ok(()) };
        let before = self.runtime.before(&subject.uid, &subject.container, &created.id).await?;
        let label = before.as_ref().and_then(|before| before.label.clone());
        let (old_image, differences) = self.compare(label, created.request.clone()).await;
        let previous = before.as_ref().map(|before| self.previous(before, old_image));
        let now = restart::Created {
            sandbox: subject.sandbox.clone(),
            hash: subject.hash.clone(),
            image: Some(image),
            image_id,
            attempt: subject.attempt,
            differences: differences.clone(),
        };
        if let Some(cause) = classify(previous.as_ref(), &now) {
            let exit_code = previous.and_then(|previous| previous.exit).map(|exit| exit.code);
            let differences = differences.unwrap_or_default();
            let previous = before.map(|before| before.id).unwrap_or_default();
            self.teller.tell(subject, &created.id, &cause, &differences, exit_code, previous).await;
        }
        Ok(())
    }

    fn previous(&self, before: &Before, image: Option<String>) -> Previous {
        Previous {
            sandbox: before.sandbox.clone(),
            hash: before.hash.clone(),
            image,
            image_ids: before.image_ids.clone(),
            exit: before.exit.as_ref().map(|(code, reason)| Exit { code: *code, reason: reason.clone() }),
            stopped: self.stops.has(&before.id),
        }
    }

    /// The image that the old container's label names, and what differs from it; nothing if that cannot be told.
    async fn compare(
        &self,
        label: Option<String>,
        request: Bytes,
    ) -> (Option<String>, Option<Vec<Difference>>) {
        let Some(label) = label.and_then(|label| Label::parse(&label).ok()) else { return (None, None) };
        let image = label.image().map(str::to_owned);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let bodies = self.bodies.clone();
        // Files are read and up to 4 MiB hashed.
        let differences = tokio::task::spawn_blocking(move || compare(&label, &request, &keys, &bodies))
            .await
            .ok()
            .flatten();
        (image, differences)
    }
}

/// What differs between a label and a new request; `None` if that cannot be told.
fn compare(label: &Label, request: &Bytes, keys: &Keys, bodies: &Mutex<Bodies>) -> Option<Vec<Difference>> {
    let key = keys.get(label.key())?;
    let reference = match label {
        Label::Inline(old) => {
            return Some(restart::differences(old, &Record::of(request, key, old.clear_args()).ok()?));
        }
        Label::Digest(reference) => reference,
    };
    let body = bodies.lock().unwrap_or_else(PoisonError::into_inner).get(&reference.digest);
    if let Some(old) = body.and_then(|body| reference.open(&body).ok()) {
        return Some(restart::differences(&old, &Record::of(request, key, old.clear_args()).ok()?));
    }
    // The record itself is not there. Its digest tells at least whether it would be the same.
    for clear in [false, true] {
        let new = Record::of(request, key, clear).ok()?;
        // The version is in what was digested.
        let new = Record::of_version(reference.version, &new);
        if record::digest(new.json().as_bytes()) == reference.digest {
            return Some(Vec::new());
        }
    }
    Some(vec![Difference { path: "spec".into(), old: Shown::Hidden, new: Shown::Hidden }])
}

// === impl Subject ===

impl Subject {
    /// Whose container is created, from which image, and the runtime's name of that; nothing if it is of no pod.
    fn of(request: &Bytes) -> Result<Option<(Self, String, String)>, Error> {
        let request: view::CreateContainerRequest = read(request)?;
        let mut config = request.config.unwrap_or_default();
        let mut label = |name: &str| config.labels.remove(&format!("io.kubernetes.{name}"));
        let (Some(uid), Some(container)) = (label("pod.uid"), label("container.name")) else {
            return Ok(None);
        };
        if uid.is_empty() || container.is_empty() {
            return Ok(None);
        }
        let subject = Self {
            namespace: label("pod.namespace").unwrap_or_default(),
            pod: label("pod.name").unwrap_or_default(),
            uid,
            container,
            attempt: config.metadata.map_or(0, |metadata| metadata.attempt),
            sandbox: request.pod_sandbox_id,
            hash: config.annotations.remove(hash::ANNOTATION),
        };
        let image = config.image.unwrap_or_default();
        let user = image.user_specified_image;
        let asked_for = if user.is_empty() { image.image.clone() } else { user };
        Ok(Some((subject, asked_for, image.image)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::record::Reference;
    use crate::container::record::tests::requests::{bytes, request};

    #[test]
    fn a_digest_is_compared_as_the_crisp_of_its_time_made_it() {
        let (keys, dir) = (Keys::in_memory().unwrap(), tempfile::tempdir().unwrap());
        let bodies = Mutex::new(Bodies::new(dir.path(), 0));
        let (message, mut edited) = (bytes(&request()), request());
        edited.config.as_mut().unwrap().tty ^= true;
        for (version, clear) in [(record::VERSION, false), (record::VERSION, true), (0, false), (0, true)] {
            let old = Record::of_version(version, &Record::of(&message, keys.current(), clear).unwrap());
            let label = Label::Digest(Reference {
                version,
                key: old.key().to_owned(),
                image: None,
                digest: record::digest(old.json().as_bytes()),
                size: old.json().len() as u64,
            });
            let compared = |message| compare(&label, message, &keys, &bodies).unwrap().len();
            assert_eq!((compared(&message), compared(&bytes(&edited))), (0, 1), "{version} {clear}");
        }
    }
}
