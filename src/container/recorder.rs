//! What the features on the path of a call hand over: records to be made, and what they saw. Nothing here waits; what
//! takes its time is done by tasks on the background runtime.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::config;
use crate::container::PodEvents;
use crate::container::bodies::{Bodies, Put};
use crate::container::budget::{Budget, Mark};
use crate::container::history::History;
use crate::container::keys::Keys;
use crate::container::record::{self, LABEL, Label, Record};
use crate::container::stops::Stops;
use crate::container::watcher::{self, Created, Watcher};
use crate::cri::RuntimeCall;
use crate::error::{Error, Kind, Origin};
use crate::metrics::Metrics;
use crate::metrics::containers::Form;
use crate::store::private;

/// A record of so many bytes is always inside its label: a digest would take no less.
const NO_LONGER: usize = 200;

/// How long a call waits for a record that is made in the background.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many bodies may wait to be written.
const BODIES: usize = 16;

/// How often files of containers that are gone are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(300);

/// How often the age of the key is looked at, if it matters.
const KEY_EVERY: Duration = Duration::from_secs(3600);

/// What records are made with.
#[derive(Clone)]
pub struct Parts {
    /// Settings.
    pub settings: config::Record,
    /// Where keys, bodies and history are.
    pub state_dir: PathBuf,
    /// Calls at the runtime.
    pub call: RuntimeCall,
    /// Who tells Events.
    pub events: PodEvents,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Makes records and explains restarts. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: config::Record,
    keys: Arc<RwLock<Arc<Keys>>>,
    budget: Budget,
    stops: Stops,
    bodies: mpsc::Sender<Body>,
    watcher: Watcher,
    history: History,
    background: Handle,
    metrics: Arc<Metrics>,
    started: Instant,
    /// When files were looked for last, in seconds since the start; at first it is time.
    tidied: AtomicU64,
}

/// What is to be done with bodies.
#[derive(Debug)]
enum Body {
    Put(String),
    /// Those that these labels refer to are still needed.
    Retain(Vec<Bytes>),
}

// === impl Recorder ===

impl Recorder {
    /// Reads the keys and starts the tasks, on the runtime that this is called on. Blocks on the disk for the keys.
    pub fn start(parts: Parts) -> Result<Self, Error> {
        let Parts { settings, state_dir, call, events, metrics } = parts;
        let keys = Arc::new(RwLock::new(Arc::new(open_keys(&state_dir, settings.key_max_age)?)));
        let bodies = Arc::new(Mutex::new(Bodies::new(&state_dir, settings.max_bodies)));
        let history = History::start(&state_dir, settings.keep);
        let stops = Stops::default();
        let (sender, received) = mpsc::channel(BODIES);
        tokio::spawn(keep_bodies(received, bodies.clone()));
        if !settings.key_max_age.is_zero() {
            tokio::spawn(rotate(Arc::downgrade(&keys), state_dir, settings.key_max_age));
        }
        let watcher = Watcher::start(watcher::Parts {
            call,
            keys: keys.clone(),
            bodies,
            stops: stops.clone(),
            history: history.clone(),
            events,
            metrics: metrics.clone(),
        });
        Ok(Self(Arc::new(Shared {
            settings,
            keys,
            budget: Budget::default(),
            stops,
            bodies: sender,
            watcher,
            history,
            background: Handle::current(),
            metrics,
            started: Instant::now(),
            tidied: AtomicU64::new(0),
        })))
    }

    /// The restarts so far.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// The label for a container to be created, at once. `Err`: there is none, and the container is created without.
    /// `None`: the request is long or has many parts, and [`Recorder::label_of_large`] has to be waited for.
    pub fn label(&self, request: &Bytes) -> Option<Result<String, Error>> {
        Record::is_quick(request).then(|| self.settle(self.make(request)))
    }

    /// The label for a container with a long request, made elsewhere.
    pub fn label_of_large(&self, request: &Bytes) -> BoxFuture<'static, Result<String, Error>> {
        let (recorder, maker, request) = (self.clone(), self.clone(), request.clone());
        Box::pin(async move {
            let made = recorder.0.background.spawn_blocking(move || maker.make(&request));
            let made = match tokio::time::timeout(PATIENCE, made).await {
                Ok(Ok(made)) => made,
                _ => Err(Error::new(Kind::Internal, Origin::Crisp, "the record takes too long")),
            };
            recorder.settle(made)
        })
    }

    /// A container was created: request and reply.
    pub fn created(&self, request: Bytes, id: &str) {
        self.0.watcher.created(Created { request, id: id.to_owned() });
    }

    /// Somebody has a container stopped. Whether that was not known yet.
    pub fn stopping(&self, id: &str) -> bool {
        self.0.stops.add(id)
    }

    /// The runtime did not stop it.
    pub fn not_stopped(&self, id: &str) {
        self.0.stops.remove(id);
    }

    /// To be called before a list of all containers is asked for.
    pub fn mark(&self) -> Mark {
        self.0.budget.mark()
    }

    /// Whether the labels of the next list of all containers are wanted, and not only their size.
    pub fn wants_labels(&self) -> bool {
        let tidied = self.0.tidied.load(Ordering::Relaxed);
        tidied == 0 || self.0.started.elapsed().as_secs() >= tidied + TIDY_EVERY.as_secs()
    }

    /// Whether lists can pass unread: there was no record in the last list of all containers, none was made since, and
    /// that is not long ago.
    pub fn knows_of_none(&self) -> bool {
        self.0.budget.is_zero() && !self.wants_labels()
    }

    /// What a list of all containers showed: the size of all labels and, if they were wanted, the labels.
    pub fn listed(&self, mark: Mark, bytes: u64, labels: Option<Vec<Bytes>>) {
        let now = self.0.budget.listed(mark, bytes);
        self.0.metrics.containers.label_bytes.set(i64::try_from(now).unwrap_or(i64::MAX));
        if let Some(labels) = labels
            && self.0.bodies.try_send(Body::Retain(labels)).is_ok()
        {
            self.0.tidied.store(self.0.started.elapsed().as_secs().max(1), Ordering::Relaxed);
        }
    }

    /// Gives up what another process may want.
    pub async fn close(&self) {
        self.0.history.close().await;
    }

    /// The label, and the record itself if that is not in it. Only CPU.
    fn make(&self, request: &Bytes) -> Result<(String, Option<String>), Error> {
        let Shared { settings, budget, .. } = &*self.0;
        let spent = budget.now();
        // Digests are small, but there can be many.
        if spent > settings.inline_budget.saturating_mul(2) {
            return Err(Error::new(Kind::Exhausted, Origin::Crisp, "there are too many records on the node"));
        }
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let record = Record::of(request, keys.current(), settings.clear_args)?;
        let left = settings.inline_budget.saturating_sub(spent).saturating_sub(LABEL.len() as u64);
        let inline = usize::try_from(left).unwrap_or(usize::MAX).max(NO_LONGER).min(settings.max_inline);
        Ok(record::label(&record, Some(inline)))
    }

    /// Counts a label that goes out, and has its record written if that is not in it.
    fn settle(&self, made: Result<(String, Option<String>), Error>) -> Result<String, Error> {
        let Shared { settings, budget, metrics, .. } = &*self.0;
        let form = match &made {
            Ok((_, None)) => Form::Inline,
            Ok((_, Some(_))) => Form::Digest,
            Err(_) => Form::None,
        };
        metrics.containers.recorded(form);
        let (text, body) = made?;
        budget.add((LABEL.len() + text.len()) as u64);
        if let Some(body) = body.filter(|body| body.len() <= settings.max_body)
            && self.0.bodies.try_send(Body::Put(body)).is_err()
        {
            tracing::debug!("too many records wait to be written; one is left out");
        }
        Ok(text)
    }
}

/// The keys on disk, or else one in memory.
fn open_keys(state_dir: &Path, max_age: Duration) -> Result<Keys, Error> {
    // Should that fail, the keys cannot be made either, and their error says it.
    let _ = private::directory(state_dir);
    Keys::open(state_dir, max_age).or_else(|error| {
        tracing::error!(
            %error,
            "no keys for records on disk: containers made before a restart of crisp are not compared with those after it"
        );
        Keys::in_memory().map_err(|error| Error::new(Kind::Internal, Origin::Crisp, error.to_string()))
    })
}

/// Replaces the key when it is too old, as long as anybody uses it.
async fn rotate(keys: std::sync::Weak<RwLock<Arc<Keys>>>, state_dir: PathBuf, max_age: Duration) {
    loop {
        tokio::time::sleep(KEY_EVERY.min(max_age.max(Duration::from_secs(1)))).await;
        let dir = state_dir.clone();
        let opened = tokio::task::spawn_blocking(move || Keys::open(&dir, max_age)).await;
        let Some(keys) = keys.upgrade() else { return };
        match opened {
            Ok(Ok(opened)) => *keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(opened),
            Ok(Err(error)) => tracing::warn!(%error, "the key of records is not replaced"),
            Err(_) => {}
        }
    }
}

/// Writes bodies and removes them, one after the other.
async fn keep_bodies(mut received: mpsc::Receiver<Body>, bodies: Arc<Mutex<Bodies>>) {
    let mut said = false;
    while let Some(body) = received.recv().await {
        let bodies = bodies.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut bodies = bodies.lock().unwrap_or_else(PoisonError::into_inner);
            match body {
                Body::Put(body) => bodies.put(&record::digest(body.as_bytes()), body.as_bytes()),
                Body::Retain(labels) => {
                    let digests: HashSet<String> = labels.iter().filter_map(digest_in).collect();
                    bodies.retain(&digests, SystemTime::now()).map(|_| Put::Kept)
                }
            }
        });
        let problem = match done.await {
            Ok(Ok(Put::Kept)) => continue,
            Ok(Ok(Put::Full)) => "record.maxBodies is reached".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => continue,
        };
        if !said {
            tracing::warn!(
                problem,
                "a record is not kept, so that a change of its container cannot be described"
            );
            said = true;
        }
    }
}

fn digest_in(label: &Bytes) -> Option<String> {
    match Label::parse(std::str::from_utf8(label).ok()?) {
        Ok(Label::Digest(reference)) => Some(reference.digest),
        _ => None,
    }
}

// === impl Parts ===

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("settings", &self.settings).finish_non_exhaustive()
    }
}
