//! How far each flight is, for those who look. Nothing is asked of the runtime while nobody does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::containerd::{Containerd, Error, Progress, Tracker};
use crate::pull::coordinator::{Coordinator, Inner};
use crate::pull::flight::{Flight, Stage};
use crate::pull::{Class, schedule};

/// How old an answer may be before the runtime is asked again.
const FRESH: Duration = Duration::from_secs(1);

/// Over how long the rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(10);

/// How long somebody who asks waits for the runtime, and how many pulls are looked at at a time.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
const ABREAST: usize = 8;

/// All pulls under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pulls {
    /// The oldest first.
    pub pulls: Vec<Pull>,
}

/// One pull under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pull {
    /// Tells it from others as long as crisp runs.
    pub id: u64,
    /// The image, normalised.
    pub image: String,
    /// The class of the most urgent of those who wait.
    pub class: Class,
    /// What it does.
    pub phase: PullPhase,
    /// The pod of the one who asked first, as `namespace/name`.
    pub pod: Option<String>,
    /// How many wait for it.
    pub waiters: u32,
    /// How often it has given way to more urgent ones.
    pub preemptions: u32,
    /// Seconds since it was asked for.
    pub seconds: f64,
    /// Compressed bytes that are there.
    pub bytes_done: u64,
    /// Compressed bytes of the image, once they are known.
    pub bytes_total: Option<u64>,
    /// Layers that are there.
    pub layers_done: usize,
    /// Layers of the image, once they are known.
    pub layers_total: Option<usize>,
    /// Bytes per second over the last seconds.
    pub rate: Option<u64>,
    /// Seconds until everything is downloaded at that rate.
    pub eta_seconds: Option<u64>,
}

/// What a pull does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullPhase {
    /// Waits for its turn.
    Queued,
    /// Runs, on a runtime that does not tell more.
    Pulling,
    /// Asks the registry what there is.
    Resolving,
    /// Downloads.
    Downloading,
    /// Is unpacked.
    Unpacking,
    /// Gives way.
    Stopping,
}

/// What has been seen of a flight's progress.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Not there while somebody looks with it.
    tracker: Option<Tracker>,
    last: Option<Seen>,
    /// When, and how many bytes were there. The oldest first, within [`RATE_WINDOW`].
    samples: Vec<(Instant, u64)>,
    looked: Option<Instant>,
    /// Tells of each look that has ended.
    looks: watch::Sender<()>,
}

/// What was seen last.
#[derive(Debug)]
struct Seen {
    progress: Progress,
    at: Instant,
    /// When it was first seen to be so.
    since: Instant,
}

// === impl PullPhase ===

impl PullPhase {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Pulling => "pulling",
            Self::Resolving => "resolving",
            Self::Downloading => "downloading",
            Self::Unpacking => "unpacking",
            Self::Stopping => "stopping",
        }
    }
}

// === impl Coordinator ===

impl Coordinator {
    /// All pulls under way, none of them looked at longer ago than a second.
    pub async fn pulls(&self) -> Pulls {
        let stale: Vec<u64> = {
            let (now, state) = (Instant::now(), self.inner.state());
            let running =
                state.flights.iter().filter(|(_, flight)| matches!(flight.stage, Stage::Running(_)));
            running.filter(|(_, flight)| flight.track.is_older_than(FRESH, now)).map(|(id, _)| *id).collect()
        };
        // Abreast, and not for long: who asks is told what is known, above all when the runtime is slow.
        let looks = stream::iter(stale).for_each_concurrent(ABREAST, |id| self.look(id));
        if tokio::time::timeout(LOOK_LIMIT, looks).await.is_err() {
            tracing::debug!("the runtime does not say in time how far its pulls are");
        }
        let (now, state) = (Instant::now(), self.inner.state());
        let mut flights: Vec<_> = state.flights.iter().collect();
        flights.sort_unstable_by_key(|(id, _)| **id);
        Pulls { pulls: flights.into_iter().map(|(id, flight)| flight.told(*id, now)).collect() }
    }

    async fn look(&self, id: u64) {
        let tracker = {
            let mut state = self.inner.state();
            let Some(flight) = state.flights.get_mut(&id) else { return };
            flight.start_look(self.inner.leases().containerd())
        };
        let Some(tracker) = tracker else { return };
        // In a task of its own: who looks may go away, and the tracker has to come back.
        let inner = self.inner.clone();
        let look = async move { inner.look(id, tracker).await };
        if self.inner.handle().spawn(look).await.is_err() {
            tracing::debug!("a look at a pull's progress broke off");
        }
    }
}

// === impl Inner ===

impl Inner {
    /// How far a flight is right now. While somebody looks already, what they see is as good.
    pub(super) async fn look_now(inner: &Arc<Self>, id: u64) -> Option<Progress> {
        let asked = Instant::now();
        let (tracker, mut looks) = {
            let mut state = inner.state();
            let flight = state.flights.get_mut(&id).filter(|flight| flight.lease.is_some())?;
            (flight.start_look(inner.leases().containerd()), flight.track.looks.subscribe())
        };
        match tracker {
            Some(tracker) => {
                // In a task of its own: who looks may go away, and the tracker has to come back.
                let looking = inner.clone();
                inner.handle().spawn(async move { looking.look(id, tracker).await }).await.ok()?;
            }
            None => looks.changed().await.ok()?,
        }
        let state = inner.state();
        let seen = state.flights.get(&id)?.track.last.as_ref();
        seen.filter(|seen| seen.at >= asked).map(|seen| seen.progress.clone())
    }
}

// === impl Flight ===

impl Flight {
    /// What to look with. `None` if there is nothing to see, or somebody looks already.
    pub(super) fn start_look(&mut self, containerd: &Containerd) -> Option<Tracker> {
        let lease = self.lease.as_ref()?;
        let looked = self.track.looked.replace(Instant::now());
        match self.track.tracker.take() {
            None if looked.is_some() => None,
            None => Some(containerd.track(&lease.id)),
            tracker => tracker,
        }
    }

    fn told(&self, id: u64, now: Instant) -> Pull {
        let phase = match (self.stage, self.track.phase()) {
            (Stage::Queued(_), _) => PullPhase::Queued,
            (Stage::Stopping, _) => PullPhase::Stopping,
            (Stage::Running(_), schedule::Phase::Unknown) => PullPhase::Pulling,
            (Stage::Running(_), schedule::Phase::Resolving) => PullPhase::Resolving,
            (Stage::Running(_), schedule::Phase::Downloading) => PullPhase::Downloading,
            (Stage::Running(_), schedule::Phase::Unpacking) => PullPhase::Unpacking,
        };
        let progress = self.track.last.as_ref().map(|seen| &seen.progress);
        let bytes_done = progress.map_or(0, |progress| progress.bytes_done);
        let bytes_total = progress.and_then(|progress| progress.bytes_total);
        let rate = self.track.rate().filter(|_| phase == PullPhase::Downloading);
        let left = bytes_total.map(|total| total.saturating_sub(bytes_done));
        Pull {
            id,
            image: self.request.reference.clone(),
            class: self.class,
            phase,
            pod: self.request.pod_name(),
            waiters: self.waiting(),
            preemptions: self.preempted,
            seconds: now.duration_since(self.asked).as_secs_f64(),
            bytes_done,
            bytes_total,
            layers_done: progress.map_or(0, |progress| progress.layers_done),
            layers_total: bytes_total.and(progress.map(|progress| progress.layers.len())),
            rate,
            eta_seconds: left.zip(rate).and_then(|(left, rate)| left.checked_div(rate)),
        }
    }
}

// === impl Track ===

impl Track {
    /// Notes what was seen.
    pub(super) fn saw(&mut self, tracker: Tracker, seen: Result<Progress, Error>, now: Instant) {
        self.tracker = Some(tracker);
        self.looked = Some(now);
        match seen {
            Ok(progress) => self.note(progress, now),
            Err(error) => tracing::debug!(%error, "cannot see how far a pull is"),
        }
        self.looks.send_replace(());
    }

    /// Forgets what belonged to an attempt that is over. What it has fetched stays.
    pub(super) fn restart(&mut self) {
        self.samples.clear();
        if let Some(seen) = &mut self.last {
            seen.progress.phase = crate::containerd::Phase::Resolving;
        }
    }

    /// What the flight does, as far as has been seen.
    pub(super) fn phase(&self) -> schedule::Phase {
        use crate::containerd::Phase;
        match self.last.as_ref().map(|seen| seen.progress.phase) {
            None => schedule::Phase::Unknown,
            Some(Phase::Resolving) => schedule::Phase::Resolving,
            Some(Phase::Downloading) => schedule::Phase::Downloading,
            Some(Phase::Unpacking) => schedule::Phase::Unpacking,
        }
    }

    /// The same for the rules. To them a download that was seen to stand still is none, and that nothing comes is
    /// not known from a look long ago.
    pub(super) fn phase_at(&self, now: Instant) -> schedule::Phase {
        let Some(seen) = &self.last else { return schedule::Phase::Unknown };
        match self.phase() {
            schedule::Phase::Downloading if seen.at.duration_since(seen.since) >= schedule::STUCK => {
                schedule::Phase::Resolving
            }
            schedule::Phase::Resolving if now.duration_since(seen.at) >= schedule::STUCK / 2 => {
                schedule::Phase::Unknown
            }
            phase => phase,
        }
    }

    /// Whether nobody has looked for that long.
    pub(super) fn is_older_than(&self, age: Duration, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now.duration_since(looked) >= age)
    }

    /// The rate is that of downloading: before the manifest is there nothing comes, and what an earlier attempt has left
    /// is not seen yet.
    fn note(&mut self, progress: Progress, now: Instant) {
        let same = |seen: &&Seen| {
            (seen.progress.phase, seen.progress.bytes_done) == (progress.phase, progress.bytes_done)
        };
        let since = self.last.as_ref().filter(same).map_or(now, |seen| seen.since);
        if progress.phase != crate::containerd::Phase::Resolving {
            self.sample(progress.bytes_done, now);
        }
        self.last = Some(Seen { progress, at: now, since });
    }

    fn sample(&mut self, bytes: u64, now: Instant) {
        // Two at least, however seldom somebody looks.
        let old = self.samples.iter().filter(|(time, _)| now.duration_since(*time) > RATE_WINDOW).count();
        self.samples.drain(..old.min(self.samples.len().saturating_sub(1)));
        self.samples.push((now, bytes));
    }

    fn rate(&self) -> Option<u64> {
        let ((start, before), (end, after)) = (self.samples.first()?, self.samples.last()?);
        let seconds = end.duration_since(*start).as_secs_f64();
        (seconds > 0.0).then(|| (after.saturating_sub(*before) as f64 / seconds) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of resolving counted as time of downloading, and what a resumed pull found as if it had just come.
    #[test]
    fn the_rate_is_that_of_downloading() {
        use crate::containerd::Phase;
        let (mut track, start) = (Track::default(), Instant::now());
        for (second, phase, bytes_done) in
            [(0, Phase::Resolving, 0), (5, Phase::Downloading, 70_000), (6, Phase::Downloading, 71_000)]
        {
            track.note(seen(phase, bytes_done), start + Duration::from_secs(second));
        }
        assert_eq!(track.rate(), Some(1000));
    }

    fn seen(phase: crate::containerd::Phase, bytes_done: u64) -> Progress {
        Progress { phase, bytes_done, bytes_total: Some(100), layers: Vec::new(), layers_done: 0 }
    }

    /// A registry that hung in the middle of a layer once kept all background pulls from starting; and then one look,
    /// long ago, was enough to take a download for stuck.
    #[test]
    fn a_download_that_was_seen_to_stand_still_is_none() {
        use crate::containerd::Phase::Downloading;
        let (mut track, start) = (Track::default(), Instant::now());
        let late = start + schedule::STUCK;
        track.note(seen(Downloading, 1), start);
        assert_eq!(track.phase_at(late), schedule::Phase::Downloading, "nobody has looked again");
        track.note(seen(Downloading, 1), late);
        assert_eq!(track.phase_at(late), schedule::Phase::Resolving);
        track.note(seen(Downloading, 2), late);
        assert_eq!(track.phase_at(late), schedule::Phase::Downloading);
    }

    #[test]
    fn that_nothing_comes_is_not_known_for_long() {
        use crate::containerd::Phase::Resolving;
        let (mut track, start) = (Track::default(), Instant::now());
        assert_eq!(track.phase_at(start), schedule::Phase::Unknown);
        track.note(seen(Resolving, 0), start);
        assert_eq!(track.phase_at(start), schedule::Phase::Resolving);
        assert_eq!(track.phase_at(start + schedule::STUCK), schedule::Phase::Unknown);
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (mut track, start) = (Track::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        track.sample(0, at(0));
        assert_eq!(track.rate(), None);
        track.sample(1000, at(1));
        assert_eq!(track.rate(), Some(1000));
        for second in 2..=20 {
            track.sample(1000, at(second));
        }
        assert_eq!(track.rate(), Some(0), "nothing has come for ten seconds");
        assert!(track.samples.len() <= 12);
        track.sample(61_000, at(80));
        assert_eq!(track.rate(), Some(1000), "somebody looks again after a minute");
    }
}
