//! Which pulls start and which give way: the rules, as a pure function of what is under way.
//!
//! - A kubelet's pull starts at once.
//! - All others share `max_background` slots, the most urgent first, then the oldest. None starts while a kubelet's
//!   pull is young or presses.
//! - A kubelet's pull *presses* when it has been running for [`PATIENCE`]: an `Always` pull of an image that is there
//!   takes a few milliseconds and is no reason to disturb anybody. One that gets nothing for [`STUCK`] does not
//!   press any more: its registry does not answer, and others need not wait for that.
//! - While one presses, every other class gives way, but only while it downloads: what was downloaded is kept and
//!   resumed, whereas an unpacking that is interrupted starts again.
//! - A pull gives way at most [`MAX_PREEMPTIONS`] times. Then it runs to its end; and if it has to wait for
//!   [`STUCK`] after the last time, it runs beside one that presses, one such pull at a time.
//! - One that has waited for a slot for [`PATIENCE`] takes that of a less urgent one, by the same rules.
//! - On a runtime that would download the same image twice for two credentials (`one_per_line`) the second waits for
//!   the first and lends it its class.

use std::collections::HashMap;
use std::time::Duration;

use crate::pull::Class;

/// How long a pull runs, or waits for a slot, before others give way to it.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// How long a kubelet's pull may press without a byte of the image to show for it, and how long one waits for it that
/// has given way often enough.
pub const STUCK: Duration = Duration::from_secs(10);

/// The same where nobody can tell whether there are bytes.
pub const LONG: Duration = Duration::from_secs(300);

/// How often a pull gives way.
pub const MAX_PREEMPTIONS: u32 = 5;

/// One flight as the rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Which one. Smaller is older.
    pub id: u64,
    /// The class of the most urgent of those who wait for it.
    pub class: Class,
    /// Pulls on the same line download the same things.
    pub line: usize,
    /// How often it has given way.
    pub preempted: u32,
    /// What it is doing.
    pub stage: Stage,
}

/// What a flight is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It has to wait, so far this long.
    Queued(Duration),
    /// It runs, in its present class this long.
    Running(Duration, Phase),
    /// It has been told to stop.
    Stopping,
}

/// What is known of a running pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing yet, or the runtime cannot tell.
    Unknown,
    /// It asks the registry what there is.
    Resolving,
    /// It downloads.
    Downloading,
    /// Everything is there and is being unpacked.
    Unpacking,
}

/// What the rules depend on besides.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Slots for everything but kubelets' pulls.
    pub max_background: usize,
    /// Whether a pull that is stopped can resume where it was.
    pub resumes: bool,
    /// Whether two pulls on one line must not run together.
    pub one_per_line: bool,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// This one starts.
    Start(u64),
    /// This one stops, if it downloads, and waits for its turn.
    Preempt(u64),
}

/// Says what is to be done now. Doing it and asking again with the same time gives nothing more to do.
pub fn schedule(flights: &[View], limits: Limits) -> Vec<Action> {
    let mut flights = flights.to_vec();
    if limits.one_per_line {
        lend_classes(&mut flights);
    }
    let mut actions = Vec::new();
    start(&mut flights, limits, &mut actions);
    if limits.resumes {
        preempt(&flights, limits, &mut actions);
    }
    actions
}

/// Whether time alone may change what [`schedule`] says.
pub fn waits_for_time(flights: &[View]) -> bool {
    flights.iter().any(|flight| matches!(flight.stage, Stage::Queued(_)))
        || flights.iter().any(|flight| flight.class == Class::Kubelet && flight.is_running())
            && flights.iter().any(|flight| flight.class < Class::Kubelet && flight.is_running())
}

/// A flight is as urgent as those that wait for its line.
fn lend_classes(flights: &mut [View]) {
    let mut most = HashMap::new();
    for flight in flights.iter() {
        let class = most.entry(flight.line).or_insert(flight.class);
        *class = flight.class.max(*class);
    }
    for flight in flights.iter_mut().filter(|flight| !flight.is_queued()) {
        flight.class = most.get(&flight.line).copied().unwrap_or(flight.class);
    }
}

fn start(flights: &mut [View], limits: Limits, actions: &mut Vec<Action>) {
    let mut queue: Vec<usize> = (0..flights.len()).filter(|at| flights[*at].is_queued()).collect();
    queue.sort_by_key(|at| (std::cmp::Reverse(flights[*at].class), flights[*at].id));
    for at in queue {
        let flight = &flights[at];
        // Kubelets' come first in the queue, so there is nothing for the rest of it either. It may be long.
        if flight.class < Class::Kubelet && !has_slot(flights, limits) {
            return;
        }
        let line_taken = limits.one_per_line
            && flights.iter().any(|other| other.line == flight.line && !other.is_queued());
        if !line_taken && (flight.class == Class::Kubelet || has_turn(flight, flights)) {
            actions.push(Action::Start(flight.id));
            flights[at].stage = Stage::Running(Duration::ZERO, Phase::Unknown);
        }
    }
}

/// Those that are not a kubelet's and have a slot.
fn others(flights: &[View]) -> impl Iterator<Item = &View> {
    flights.iter().filter(|other| other.class < Class::Kubelet && !other.is_queued())
}

fn has_slot(flights: &[View], limits: Limits) -> bool {
    others(flights).count() < limits.max_background
}

/// Whether a flight that is not a kubelet's may take a slot that is free.
fn has_turn(flight: &View, flights: &[View]) -> bool {
    if !flights.iter().any(View::holds_back) {
        return true;
    }
    let long = matches!(flight.stage, Stage::Queued(time) if time >= STUCK);
    long && flight.preempted >= MAX_PREEMPTIONS
        && !others(flights).any(|other| other.preempted >= MAX_PREEMPTIONS)
}

fn preempt(flights: &[View], limits: Limits, actions: &mut Vec<Action>) {
    if flights.iter().any(View::presses) {
        let victims = flights.iter().filter(|flight| flight.class < Class::Kubelet && flight.can_stop());
        actions.extend(victims.map(|flight| Action::Preempt(flight.id)));
        return;
    }
    let waiting =
        flights.iter().filter(|flight| matches!(flight.stage, Stage::Queued(time) if time >= PATIENCE));
    let Some(waiting) = waiting.max_by_key(|flight| flight.class) else { return };
    let stopping = flights.iter().any(|flight| flight.stage == Stage::Stopping);
    if stopping || has_slot(flights, limits) {
        return;
    }
    let victims = flights.iter().filter(|flight| flight.class < waiting.class && flight.can_stop());
    let victim = victims.min_by_key(|flight| (flight.class, std::cmp::Reverse(flight.id)));
    actions.extend(victim.map(|flight| Action::Preempt(flight.id)));
}

// === impl View ===

impl View {
    fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued(_))
    }

    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(..))
    }

    /// Whether less urgent ones must not start now.
    fn holds_back(&self) -> bool {
        let young = matches!(self.stage, Stage::Running(time, _) if time < PATIENCE);
        self.class == Class::Kubelet && (young || self.presses())
    }

    /// Whether less urgent ones have to give way now.
    fn presses(&self) -> bool {
        let Stage::Running(time, phase) = self.stage else { return false };
        let give_up = match phase {
            Phase::Resolving => STUCK,
            Phase::Unknown => LONG,
            Phase::Downloading | Phase::Unpacking => Duration::MAX,
        };
        self.class == Class::Kubelet && PATIENCE <= time && time < give_up
    }

    /// Whether it may be stopped. What is not known is asked for before it is stopped.
    fn can_stop(&self) -> bool {
        matches!(self.stage, Stage::Running(_, phase) if phase != Phase::Unpacking)
            && self.preempted < MAX_PREEMPTIONS
    }
}

#[cfg(test)]
mod tests;
