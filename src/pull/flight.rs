//! What is known of one flight.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::cri::Raw;
use crate::pull::key::Key;
use crate::pull::lease::Held;
use crate::pull::progress::Track;
use crate::pull::schedule::{self, Phase};
use crate::pull::{Class, Request};

/// One pull at the runtime, and all who wait for it.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) key: Key,
    /// The request of the one who asked first. It goes to the runtime as it came.
    pub(super) request: Request,
    /// Who waits, by class.
    waiters: [u32; Class::ALL.len()],
    /// The class, and since when.
    pub(super) class: Class,
    class_since: Instant,
    /// Since when nobody waits.
    pub(super) idle_since: Option<Instant>,
    pub(super) stage: Stage,
    pub(super) asked: Instant,
    /// How often it has given way.
    pub(super) preempted: u32,
    pub(super) lease: Option<Held>,
    pub(super) track: Track,
    /// What its task is to do.
    pub(super) orders: watch::Sender<Order>,
    /// Where the reply appears.
    pub(super) reply: watch::Sender<Option<Raw>>,
}

/// What a flight is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits since then.
    Queued(Instant),
    /// Runs since then.
    Running(Instant),
    /// Was told to stop.
    Stopping,
}

/// What a flight's task is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Wait for the turn.
    Wait,
    /// Pull.
    Run,
    /// Stop pulling, keep what is there, wait again.
    Stop,
    /// Stop for good.
    End,
}

// === impl Flight ===

impl Flight {
    pub(super) fn new(key: Key, request: Request, now: Instant) -> Self {
        let class = request.class;
        Self {
            key,
            request,
            waiters: [0; Class::ALL.len()],
            class,
            class_since: now,
            idle_since: None,
            stage: Stage::Queued(now),
            asked: now,
            preempted: 0,
            lease: None,
            track: Track::default(),
            orders: watch::channel(Order::Wait).0,
            reply: watch::channel(None).0,
        }
    }

    /// Somebody more waits.
    pub(super) fn join(&mut self, class: Class, now: Instant) {
        if let Some(count) = self.waiters.get_mut(class as usize) {
            *count += 1;
        }
        self.idle_since = None;
        self.reclass(now);
    }

    /// Somebody does not wait any more.
    pub(super) fn leave(&mut self, class: Class, now: Instant) {
        if let Some(count) = self.waiters.get_mut(class as usize) {
            *count = count.saturating_sub(1);
        }
        if self.waiting() == 0 {
            self.idle_since = Some(now);
        }
        self.reclass(now);
    }

    /// A flight is as urgent as the most urgent who waits. When nobody is left it stays as it was.
    fn reclass(&mut self, now: Instant) {
        let waiting = Class::ALL.into_iter().zip(self.waiters).filter(|(_, count)| *count > 0);
        let Some(class) = waiting.map(|(class, _)| class).max() else { return };
        if class != self.class {
            (self.class, self.class_since) = (class, now);
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> u32 {
        self.waiters.iter().sum()
    }

    /// As the rules see it. A flight that nobody waits for is not started any more.
    pub(super) fn view(&self, id: u64, line: usize, now: Instant) -> Option<schedule::View> {
        let stage = match self.stage {
            Stage::Queued(_) if self.idle_since.is_some() => return None,
            Stage::Queued(since) => schedule::Stage::Queued(now.duration_since(since)),
            Stage::Running(since) => {
                let phase = self.track.phase_at(now);
                schedule::Stage::Running(now.duration_since(since.max(self.class_since)), phase)
            }
            Stage::Stopping => schedule::Stage::Stopping,
        };
        Some(schedule::View { id, class: self.class, line, preempted: self.preempted, stage })
    }

    /// Whether nobody has waited for it for that long.
    pub(super) fn is_abandoned(&self, grace: Duration, now: Instant) -> bool {
        self.idle_since.is_some_and(|since| now.duration_since(since) >= grace)
    }

    /// Whether a look at its progress would tell something that matters: whether a kubelet's pull still gets anywhere.
    pub(super) fn is_unclear(&self, now: Instant) -> bool {
        let Stage::Running(since) = self.stage else { return false };
        self.class == Class::Kubelet
            && now.duration_since(since) >= schedule::STUCK
            && self.track.phase() != Phase::Unpacking
            && self.track.is_older_than(Duration::from_secs(2), now)
    }
}
