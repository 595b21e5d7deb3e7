//! The flights: who joins which, which task runs what, and what comes of it.
//!
//! All that is decided is decided under one lock that is never held across an await, by [`schedule`], whenever
//! something has changed; while time itself matters a ticker asks again. The tasks only carry orders out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use crate::config;
use crate::containerd::{Containerd, Tracker};
use crate::cri::{Method, Raw, RuntimeCall};
use crate::error::{Error, Kind, Origin};
use crate::metrics::Metrics;
use crate::metrics::pulls::Outcome;
use crate::pull::attempt::{self, account, fly};
use crate::pull::flight::{Flight, Order, Stage, Waiter};
use crate::pull::key::{Key, KeyMaker};
use crate::pull::lease::Leases;
use crate::pull::own::LeaseGuard;
use crate::pull::schedule::{self, Action, Limits, Phase, schedule};
use crate::pull::{Class, Request};

/// How often the rules are asked again while time alone may change what they say.
const TICK: Duration = Duration::from_millis(100);

/// More flights than this are not kept; a pull beyond goes to the runtime by itself.
pub(super) const MAX_FLIGHTS: usize = 1000;

/// The one who knows of all pulls. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Coordinator {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    settings: config::Pulls,
    keys: KeyMaker,
    call: RuntimeCall,
    leases: Leases,
    /// Where tasks run: not on the proxy's thread.
    handle: Handle,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) flights: HashMap<u64, Flight>,
    by_key: HashMap<Key, u64>,
    last_id: u64,
    limits: Option<Limits>,
    ticking: bool,
}

/// A place among those who wait for a flight. Dropping it is leaving.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) inner: Arc<Inner>,
    pub(super) id: u64,
    class: Class,
    waiter: Waiter,
    /// Whether leaving is for good.
    pub(super) for_good: bool,
}

// === impl Coordinator ===

impl Coordinator {
    /// A coordinator whose tasks run on `handle`. `call` makes a PullImage, `containerd` is the same runtime's own API.
    pub fn new(
        settings: config::Pulls,
        call: RuntimeCall,
        containerd: Containerd,
        handle: Handle,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let keys = KeyMaker::new()?;
        let leases = Leases::new(containerd, keys.instance(), settings.keep_partial);
        let state = Mutex::default();
        let inner = Arc::new(Inner { settings, keys, call, leases, handle, metrics, state });
        inner.handle.spawn(look_after_leases(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Whether pulls that name no pod are background pulls.
    pub fn bare_is_background(&self) -> bool {
        self.inner.settings.bare_is_background
    }

    /// Whether the runtime has leases. `None` while it does not say.
    pub async fn lease_support(&self) -> Option<bool> {
        let leases = &self.inner.leases;
        if leases.known_support().is_none() {
            // On the background's runtime, because the connections that this may open live where they are opened.
            let inner = self.inner.clone();
            let asked = self.inner.handle.spawn(async move { inner.leases.supported().await });
            if tokio::time::timeout(attempt::PATIENCE, asked).await.is_err() {
                tracing::debug!("the runtime does not say in time whether it has leases");
            }
        }
        leases.known_support()
    }

    /// Whether the runtime is known to have leases.
    pub async fn supports_leases(&self) -> bool {
        self.lease_support().await == Some(true)
    }

    /// Pulls, together with all who ask for the same. Dropping the future is leaving; the others go on.
    pub async fn pull(&self, request: Request) -> Raw {
        match self.join(request, Waiter::Caller, |flight| flight.reply.subscribe()).await {
            Ok((place, reply)) => place.wait(reply).await,
            Err(request) => {
                let inner = self.inner.clone();
                let alone =
                    async move { (inner.call)(Method::PULL_IMAGE, request.metadata, request.message).await };
                // Nobody else waits for this one, so it goes with its caller.
                let reply = AbortOnDropHandle::new(self.inner.handle.spawn(alone));
                reply.await.unwrap_or_else(|_| Err(ended())).unwrap_or_else(|error| Raw::error(&error))
            }
        }
    }

    /// Joins the flight for this request, or starts one. The request comes back if there are too many.
    pub(super) async fn join<T>(
        &self,
        request: Request,
        waiter: Waiter,
        subscribe: impl FnOnce(&mut Flight) -> T,
    ) -> Result<(Place, T), Box<Request>> {
        let supported = self.supports_leases().await;
        let limits = Limits {
            max_background: self.inner.settings.max_background,
            resumes: supported,
            // Whatever has no leases may be CRI-O, which downloads again for other credentials.
            one_per_line: !supported,
        };
        let key = self.inner.keys.key(&request, !supported);
        Inner::join(&self.inner, key, request, limits, waiter, subscribe)
    }
}

/// Finds what an earlier crisp left, and deletes what was kept long enough.
async fn look_after_leases(inner: Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        if inner.leases.supported().await {
            if let Err(error) = inner.leases.adopt().await {
                tracing::debug!(%error, "cannot look for leases of an earlier crisp yet");
            }
            inner.leases.sweep().await;
        }
        let pause = inner.leases.sweep_every();
        drop(inner);
        tokio::time::sleep(pause).await;
    }
}

pub(super) fn ended() -> Error {
    Error::new(Kind::Unavailable, Origin::Crisp, "crisp is shutting down; try again")
}

// === impl Inner ===

impl Inner {
    /// Joins the flight of this key, or starts one. The request comes back if there are too many.
    fn join<T>(
        inner: &Arc<Self>,
        key: Key,
        request: Request,
        limits: Limits,
        waiter: Waiter,
        subscribe: impl FnOnce(&mut Flight) -> T,
    ) -> Result<(Place, T), Box<Request>> {
        let now = Instant::now();
        let class = request.class;
        let (id, subscribed) = {
            let mut guard = inner.state();
            let state = &mut *guard;
            state.limits = Some(limits);
            let known = state.by_key.get(&key).copied();
            let id = known.unwrap_or(state.last_id + 1);
            let flight = match state.flights.entry(id) {
                Entry::Occupied(flight) => {
                    inner.metrics.pulls.deduplicated.inc();
                    flight.into_mut()
                }
                Entry::Vacant(_) if state.by_key.len() >= MAX_FLIGHTS => return Err(Box::new(request)),
                Entry::Vacant(place) => {
                    state.last_id = id;
                    state.by_key.insert(key.clone(), id);
                    let flight = place.insert(Flight::new(key, request, now));
                    inner.handle.spawn(fly(inner.clone(), id, flight.orders.subscribe()));
                    flight
                }
            };
            flight.join(class, waiter, now);
            (id, subscribe(flight))
        };
        inner.metrics.pulls.waiters.inc();
        Self::reconsider(inner);
        Ok((Place { inner: inner.clone(), id, class, waiter, for_good: false }, subscribed))
    }

    /// Asks the rules, and passes on what they say.
    pub(super) fn reconsider(inner: &Arc<Self>) {
        let now = Instant::now();
        let mut state = inner.state();
        let Some(limits) = state.limits else { return };
        state.end_abandoned(inner.settings.grace, now);
        let views = state.views(now);
        for action in schedule(&views, limits) {
            match action {
                Action::Start(id) => {
                    if let Some(flight) = state.flights.get_mut(&id) {
                        flight.enter(Stage::Running(now));
                        flight.orders.send_replace(Order::Run);
                    }
                }
                Action::Preempt(id) => Self::stop_if_downloading(inner, &mut state, id),
            }
        }
        if views.len() > 1 {
            for (id, flight) in state.flights.iter_mut().filter(|(_, flight)| flight.is_unclear(now)) {
                if let Some(tracker) = flight.start_look(inner.leases.containerd()) {
                    let (inner, id) = (inner.clone(), *id);
                    inner.handle.clone().spawn(async move { inner.look(id, tracker).await });
                }
            }
        }
        let queued = state.flights.values().filter(|flight| matches!(flight.stage, Stage::Queued(_))).count();
        inner.metrics.pulls.set_flights(queued, state.flights.len() - queued);
        if !state.ticking && state.waits_for_time(now) {
            state.ticking = true;
            inner.handle.spawn(tick(Arc::downgrade(inner)));
        }
    }

    /// Tells a flight to stop, if a look at its progress shows that it downloads.
    fn stop_if_downloading(inner: &Arc<Self>, state: &mut State, id: u64) {
        let tracker =
            state.flights.get_mut(&id).and_then(|flight| flight.start_look(inner.leases.containerd()));
        let Some(tracker) = tracker else { return };
        let inner = inner.clone();
        inner.handle.clone().spawn(async move {
            let seen = inner.look(id, tracker).await;
            let (now, mut state) = (Instant::now(), inner.state());
            let Some(limits) = state.limits else { return };
            // Things may have changed meanwhile; only the rules know whether it still has to give way.
            let still = schedule(&state.views(now), limits).contains(&Action::Preempt(id));
            let Some(flight) = state.flights.get_mut(&id) else { return };
            // What was seen earlier does not count: it may unpack by now, or have lost what it would resume.
            if still && seen && flight.track.phase() != Phase::Unknown {
                flight.enter(Stage::Stopping);
                flight.preempted += 1;
                flight.orders.send_replace(Order::Stop);
                inner.metrics.pulls.preemptions.inc();
                let (image, times) = (&flight.request.reference, flight.preempted);
                tracing::info!(image, times, "a pull gives way to a more urgent one");
            }
        });
    }

    /// Looks at a flight's progress, and tells whether there was anything to see.
    pub(super) async fn look(&self, id: u64, mut tracker: Tracker) -> bool {
        let seen = tracker.poll().await;
        let is_seen = seen.is_ok();
        if let Some(flight) = self.state().flights.get_mut(&id) {
            flight.track.saw(tracker, seen, Instant::now());
        }
        is_seen
    }

    /// A flight has come to its end: nobody can join it any more, and all who wait get the reply.
    pub(super) fn land(inner: &Arc<Self>, id: u64, reply: Option<Raw>) {
        let Some(mut flight) = inner.state().take(id) else { return };
        let since = SystemTime::now().checked_sub(flight.asked.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let outcome = match &reply {
            None => Outcome::Abandoned,
            Some(raw) if raw.code() == Code::Ok => Outcome::Succeeded,
            Some(_) => Outcome::Failed,
        };
        inner.metrics.pulls.ended(flight.class.name(), outcome, flight.asked.elapsed());
        let mut lease = None;
        match flight.lease.take() {
            // It has done its duty, unless one of crisp's own pulls still has use for it.
            Some(held) if outcome == Outcome::Succeeded => {
                let guard = lease.insert(LeaseGuard::new(inner, held));
                inner.handle.spawn(account(inner.clone(), guard.clone(), since));
            }
            Some(held) => {
                // Before anybody hears of the end, so that a retry finds it.
                inner.leases.keep(&flight.key.line, held.clone());
                let inner = inner.clone();
                inner.handle.clone().spawn(async move { inner.leases.tidy(&held).await });
            }
            None => {}
        }
        flight.end(reply, lease.as_ref());
        Self::reconsider(inner);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the state whole, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Makes the call.
    pub(super) fn call(&self, metadata: HeaderMap, message: Bytes) -> BoxFuture<'static, Result<Raw, Error>> {
        (self.call)(Method::PULL_IMAGE, metadata, message)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Asks the rules again until time does not matter any more.
async fn tick(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(inner) = inner.upgrade() else { return };
        {
            let mut state = inner.state();
            if !state.waits_for_time(Instant::now()) {
                state.ticking = false;
                return;
            }
        }
        Inner::reconsider(&inner);
    }
}

// === impl State ===

impl State {
    fn take(&mut self, id: u64) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        self.close(id, &flight.key);
        Some(flight)
    }

    /// Nobody joins this flight any more.
    fn close(&mut self, id: u64, key: &Key) {
        if self.by_key.get(key) == Some(&id) {
            self.by_key.remove(key);
        }
    }

    /// Ends flights that nobody has waited for for that long. Who asks from now on starts a new one.
    fn end_abandoned(&mut self, grace: Duration, now: Instant) {
        let abandoned = self.flights.iter().filter(|(_, flight)| flight.is_abandoned(grace, now));
        let abandoned: Vec<_> = abandoned.map(|(id, flight)| (*id, flight.key.clone())).collect();
        for (id, key) in abandoned {
            self.close(id, &key);
            if let Some(flight) = self.flights.get(&id) {
                flight.orders.send_replace(Order::End);
            }
        }
    }

    /// Whether time alone may change what is to be done.
    fn waits_for_time(&self, now: Instant) -> bool {
        self.flights.values().any(|flight| flight.idle_since.is_some())
            || schedule::waits_for_time(&self.views(now))
    }

    /// All flights as the rules see them.
    fn views(&self, now: Instant) -> Vec<schedule::View> {
        let mut lines = HashMap::new();
        let mut ids: Vec<_> = self.flights.iter().collect();
        ids.sort_unstable_by_key(|(id, _)| **id);
        ids.into_iter()
            .filter_map(|(id, flight)| {
                let next = lines.len();
                let line = *lines.entry(&flight.key.line).or_insert(next);
                flight.view(*id, line, now)
            })
            .collect()
    }
}

// === impl Place ===

impl Place {
    async fn wait(self, mut reply: watch::Receiver<Option<Raw>>) -> Raw {
        let reply = reply.wait_for(Option::is_some).await.map(|reply| reply.clone());
        reply.ok().flatten().unwrap_or_else(|| Raw::error(&ended()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inner.metrics.pulls.waiters.dec();
        let left = {
            let mut state = self.inner.state();
            // A flight that has landed is not there any more.
            let flight = state.flights.get_mut(&self.id);
            flight.map(|flight| flight.leave(self.class, self.waiter, self.for_good, Instant::now()))
        };
        if left.is_some() {
            Inner::reconsider(&self.inner);
        }
    }
}
