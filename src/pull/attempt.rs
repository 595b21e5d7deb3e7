//! The task of a flight: it waits for its turn, pulls, gives way, pulls again, and brings the reply.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use tokio::sync::watch;
use tonic::Code;

use crate::containerd::LEASE_HEADER;
use crate::cri::Raw;
use crate::error::{Error, Kind, Origin};
use crate::pull::coordinator::Inner;
use crate::pull::flight::{Order, Stage};
use crate::pull::key::Line;
use crate::pull::lease::Held;
use crate::pull::own::LeaseGuard;

/// How long a pull waits for its lease, and how long for the count of what it resumes. Without either it is as good a
/// pull, so a containerd whose database is slow must not hold it up for longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A lease that is on its way to a flight. If the flight does not take it, because it has ended or does not wait any
/// longer, the lease is kept for the next one on its line.
struct Offer {
    inner: Arc<Inner>,
    line: Line,
    held: Option<Held>,
    resumes: bool,
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.inner.leases().keep(&self.line, held);
        }
    }
}

/// Sees to it that nobody waits for a task that is no more, whatever ended it.
struct Landing {
    inner: Arc<Inner>,
    id: u64,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let error = Error::new(Kind::Internal, Origin::Crisp, "the pull ended without a reply; try again");
        // One that has landed is not there any more.
        Inner::land(&self.inner, self.id, Some(Raw::error(&error)));
    }
}

/// The life of a flight.
pub(super) async fn fly(inner: Arc<Inner>, id: u64, mut orders: watch::Receiver<Order>) {
    let _landing = Landing { inner: inner.clone(), id };
    loop {
        let order = orders.wait_for(|order| *order != Order::Wait).await.map_or(Order::End, |order| *order);
        let reply = match order {
            Order::Run => tokio::select! {
                biased;
                reply = inner.attempt(id) => reply,
                _ = orders.wait_for(|order| *order != Order::Run) => None,
            },
            _ => None,
        };
        let stopped = *orders.borrow() == Order::Stop;
        if reply.is_some() || !stopped {
            return Inner::land(&inner, id, reply);
        }
        {
            let mut state = inner.state();
            let Some(flight) = state.flights.get_mut(&id) else { return };
            flight.enter(Stage::Queued(Instant::now()));
            flight.track.restart();
            flight.orders.send_replace(Order::Wait);
        }
        Inner::reconsider(&inner);
    }
}

/// Counts what a pull that succeeded has brought. Its lease tells, and has then done its duty here.
pub(super) async fn account(inner: Arc<Inner>, lease: LeaseGuard, since: SystemTime) {
    match inner.leases().containerd().fetched(lease.id(), since).await {
        Ok(Some(brought)) => inner.metrics().pulls.brought(brought.size, brought.fetched),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "cannot tell what a pull has fetched"),
    }
}

/// Asks containerd for a lease.
async fn offer(inner: Arc<Inner>, id: u64, line: Line, image: String) -> Option<Offer> {
    if !inner.leases().supported().await {
        return None;
    }
    match inner.leases().take(&line, id, &image).await {
        Ok((held, resumes)) => Some(Offer { inner, line, held: Some(held), resumes }),
        Err(error) => {
            tracing::debug!(%error, image, "no lease for a pull");
            None
        }
    }
}

fn result(reply: Result<Raw, Error>) -> Raw {
    reply.unwrap_or_else(|error| Raw::error(&error))
}

// === impl Inner ===

impl Inner {
    /// One attempt. Gives the reply, whatever it says.
    async fn attempt(self: &Arc<Self>, id: u64) -> Option<Raw> {
        let (request, line, lease) = {
            let state = self.state();
            let flight = state.flights.get(&id)?;
            (flight.request.clone(), flight.key.line.clone(), flight.lease.clone())
        };
        let lease = match lease {
            Some(held) => {
                self.count_resumed(&held).await;
                Some(held)
            }
            None => self.lease(id, &line, &request.reference).await,
        };
        let mut metadata = request.metadata.clone();
        if let Some(header) = lease.as_ref().and_then(|held| HeaderValue::from_str(&held.id).ok()) {
            metadata.insert(LEASE_HEADER, header);
        }
        let reply = self.call(metadata, request.message.clone()).await;
        match reply {
            Ok(raw) if self.has_lost(lease.as_ref(), &raw).await => {
                tracing::warn!(image = request.reference, "a pull's lease is gone; pulling without one");
                self.set_lease(id, None);
                Some(result(self.call(request.metadata, request.message).await))
            }
            reply => Some(result(reply)),
        }
    }

    /// A lease for a flight. A pull does not fail for want of one.
    async fn lease(self: &Arc<Self>, id: u64, line: &Line, image: &str) -> Option<Held> {
        // In a task of its own: a flight that ends meanwhile must not lose a lease that containerd has just made.
        let offer = self.handle().spawn(offer(self.clone(), id, line.clone(), image.to_owned()));
        let Ok(offer) = tokio::time::timeout(PATIENCE, offer).await else {
            tracing::debug!(image, "no lease for a pull in time");
            return None;
        };
        let mut offer = offer.ok().flatten()?;
        let held = offer.held.take()?;
        self.set_lease(id, Some(held.clone()));
        if offer.resumes {
            self.count_resumed(&held).await;
        }
        Some(held)
    }

    /// Whether a pull failed for want of its lease. One that is deleted under a pull makes it fail with words that do
    /// not name it, so containerd is asked.
    async fn has_lost(&self, lease: Option<&Held>, raw: &Raw) -> bool {
        let Some(held) = lease.filter(|_| raw.code() != Code::Ok) else { return false };
        let found = self.leases().containerd().find_lease(&held.id);
        matches!(tokio::time::timeout(PATIENCE, found).await, Ok(Ok(None)))
    }

    async fn count_resumed(&self, held: &Held) {
        let kept = self.leases().containerd().kept(&held.id);
        if let Ok(Ok(bytes)) = tokio::time::timeout(PATIENCE, kept).await {
            self.metrics().pulls.resumed_bytes.inc_by(bytes);
        }
    }

    fn set_lease(&self, id: u64, lease: Option<Held>) {
        if let Some(flight) = self.state().flights.get_mut(&id) {
            flight.lease = lease;
        }
    }
}
