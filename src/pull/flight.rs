//! What is known of one flight.

use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::cri::Raw;
use crate::pull::key::Key;
use crate::pull::lease::Held;
use crate::pull::own::{Landed, LeaseGuard, OwnStage};
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
    /// Whether the last who waited wants it to end at once.
    given_up: bool,
    /// Whether anybody but crisp itself has waited for it, and when the last of them left.
    others: bool,
    others_left: Option<Instant>,
    /// Changed by [`Flight::enter`] only.
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
    /// Where crisp's own pulls hear of the end, one each, and of its stage.
    own: Vec<oneshot::Sender<Landed>>,
    own_stage: watch::Sender<OwnStage>,
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A call that came over the socket.
    Caller,
    /// crisp itself.
    Own,
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
            given_up: false,
            others: false,
            others_left: None,
            stage: Stage::Queued(now),
            asked: now,
            preempted: 0,
            lease: None,
            track: Track::default(),
            orders: watch::channel(Order::Wait).0,
            reply: watch::channel(None).0,
            own: Vec::new(),
            own_stage: watch::channel(OwnStage::Queued).0,
        }
    }

    /// Somebody more waits.
    pub(super) fn join(&mut self, class: Class, waiter: Waiter, now: Instant) {
        if let Some(count) = self.waiters.get_mut(class as usize) {
            *count += 1;
        }
        self.others |= waiter == Waiter::Caller;
        self.idle_since = None;
        self.given_up = false;
        self.reclass(now);
    }

    /// Somebody does not wait any more. With `for_good` nobody of that kind comes back soon, so that a flight that only
    /// crisp itself has waited for need not be kept; a caller that left a moment ago finds it for as long as ever.
    pub(super) fn leave(&mut self, class: Class, waiter: Waiter, for_good: bool, now: Instant) {
        if let Some(count) = self.waiters.get_mut(class as usize) {
            *count = count.saturating_sub(1);
        }
        if waiter == Waiter::Caller {
            self.others_left = Some(now);
        }
        if self.waiting() == 0 {
            self.idle_since = self.others_left.filter(|_| for_good).or(Some(now));
            self.given_up = for_good && !self.others;
        }
        self.reclass(now);
    }

    /// Where one of crisp's own pulls hears of the end and of the stage.
    pub(super) fn tell_own(&mut self) -> (oneshot::Receiver<Landed>, watch::Receiver<OwnStage>) {
        self.own.retain(|waiter| !waiter.is_closed());
        let (tell, landed) = oneshot::channel();
        self.own.push(tell);
        (landed, self.own_stage.subscribe())
    }

    /// Tells all who wait of the end.
    pub(super) fn end(self, reply: Option<Raw>, lease: Option<&LeaseGuard>) {
        if let Some(reply) = &reply {
            for waiter in self.own {
                let landed = Landed { reply: reply.clone(), lease: lease.cloned(), others: self.others };
                // One that has left needs no lease either.
                let _ = waiter.send(landed);
            }
        }
        self.reply.send_replace(reply);
    }

    /// Does something else from now on.
    pub(super) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        // One that is told to stop still runs.
        let told = if matches!(stage, Stage::Queued(_)) { OwnStage::Queued } else { OwnStage::Running };
        self.own_stage.send_if_modified(|before| std::mem::replace(before, told) != told);
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

    /// Whether nobody has waited for it for that long, or the last one has given it up.
    pub(super) fn is_abandoned(&self, grace: Duration, now: Instant) -> bool {
        self.given_up || self.idle_since.is_some_and(|since| now.duration_since(since) >= grace)
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
