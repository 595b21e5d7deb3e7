//! The queue as a pure state machine: an event and the time go in, what is to be done comes out. It neither reads a
//! clock nor does any I/O, so every rule can be tried with invented events and times.
//!
//! - An item is one image for one owner. Who starts next is decided by class, then priority, then age; every eighth
//!   start of a class goes to the one that has waited longest, so that nobody waits for ever behind higher numbers.
//! - Starts are bounded for each class by the slots that this class and those above it use, so that an urgent item is
//!   handed over while background ones run: the pulls' coordinator then decides who gives way. Items that want the same
//!   image go together and count once.
//! - An item that waits (for its time, after a failure, for disk space) holds no slot. Its timeout runs only while bytes
//!   may come.
//! - What is to be written down is told with every step; what is not told can be lost without harm.

mod event;
mod index;
mod keys;
mod rules;
mod schedule;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::prepull::item::{How, Id, Item, Kept, Reason, State, Trace};
use crate::prepull::spec::{Pin, Wanted};
use crate::prepull::time::Time;

pub use event::{Action, Added, Answer, Done, Event, Outcome, Step};
use index::Index;
use keys::Keys;

/// What the queue is bound by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Pulls at once.
    pub slots: usize,
    /// Items, those that have ended and of which nothing is kept not counted.
    pub items: usize,
    /// Items that have ended and are remembered.
    pub finished: usize,
    /// How long they are, unless they say themselves.
    pub ttl: Duration,
}

/// All items and what is known of them.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    /// Boxed, because the nodes of a tree that grows at its end are half empty.
    items: BTreeMap<Id, Box<Item>>,
    /// By owner and image.
    keys: Keys,
    runs: BTreeMap<Id, Run>,
    /// What items that are gone may have left for all to see.
    traces: BTreeMap<Id, Trace>,
    /// The attempts of this process that said so last.
    exposing: HashMap<Id, u64>,
    index: Index,
    paused: bool,
    next_id: Id,
    last_token: u64,
    now: Time,
}

/// An attempt under way.
#[derive(Debug, Clone)]
struct Run {
    /// Tells this attempt from those before it.
    token: u64,
    source: String,
    class: crate::pull::Class,
    /// Since when bytes may come, and how long they could before.
    flying: Option<Time>,
    used: Duration,
}

// === impl Queue ===

impl Queue {
    /// A queue with what was written down.
    pub fn new(limits: Limits, items: impl IntoIterator<Item = Item>, next_id: Id, now: Time) -> Self {
        let mut queue = Self {
            limits,
            items: BTreeMap::new(),
            keys: Keys::default(),
            runs: BTreeMap::new(),
            traces: BTreeMap::new(),
            exposing: HashMap::new(),
            index: Index::default(),
            paused: false,
            next_id: next_id.max(1),
            last_token: 0,
            now,
        };
        for item in items {
            queue.put(item);
        }
        queue
    }

    /// Takes in an item that was written down.
    pub fn put(&mut self, mut item: Item) {
        // An attempt that a crash has cut off.
        if item.status.state == State::Pulling {
            item.status.turn(State::Waiting, Reason::Queued, "crisp was restarted", self.now);
        }
        rules::clock_went_back(&mut item, Duration::ZERO, self.now);
        if let Some(kept) = &mut item.status.kept {
            // Not longer than it would be from now on.
            let most = kept_until(item.spec.pin, self.now);
            kept.until = kept.until.map(|until| most.map_or(until, |most| until.min(most)));
        }
        let id = item.id;
        self.skip(id);
        self.keys.insert(&item);
        self.items.insert(id, Box::new(item));
        self.reindex(id);
    }

    /// Never gives this number to an item.
    pub fn skip(&mut self, id: Id) {
        self.next_id = self.next_id.max(id.saturating_add(1));
    }

    /// Takes an event in.
    pub fn step(&mut self, event: Event, now: Time) -> Step {
        let mut step = Step::default();
        if now.after(rules::CLOCK_STEP) < self.now {
            self.clock_went_back(now, &mut step);
        }
        self.now = now;
        match event {
            Event::Add(wanted) => step.answer = self.add(wanted, &mut step),
            Event::Remove(id) if self.items.contains_key(&id) => self.remove(id, &mut step),
            Event::Retry(id) if self.items.contains_key(&id) => self.retry(id, &mut step),
            Event::Remove(_) | Event::Retry(_) => step.answer = Answer::Unknown,
            Event::Pause(paused) => self.pause(paused, &mut step),
            Event::Turn(id, token, flies) => self.turn(id, token, flies),
            Event::Exposes(id, token, trace) => step.answer = self.expose(id, token, trace, &mut step),
            Event::Looks(trace) => step.answer = self.note(trace, &mut step),
            Event::Cleaned(id, token) => self.cleaned(id, token, &mut step),
            Event::Ended(id, token, outcome) => self.ended(id, token, outcome, &mut step),
            Event::GiveWay(ids) => self.give_way(&ids, &mut step),
            Event::Lost(id) => self.lost(id, &mut step),
            Event::Tick => {}
        }
        while let Some(id) = self.index.due(now) {
            self.fire(id, &mut step);
            self.reindex(id);
        }
        self.forget_surplus(&mut step);
        self.schedule(&mut step);
        step
    }

    /// Takes in what was written down of an item that is gone.
    pub fn put_trace(&mut self, id: Id, trace: Trace) {
        self.skip(id);
        self.traces.insert(id, trace);
    }

    /// What may be there for all to see although it should not, and whose it was.
    pub fn traces(&self) -> impl Iterator<Item = (Id, &Trace)> {
        let of_items = self.items.values().filter_map(|item| Some((item.id, item.status.exposed.as_ref()?)));
        self.traces.iter().map(|(id, trace)| (*id, trace)).chain(of_items)
    }

    /// The same of an item that is gone.
    pub fn trace(&self, id: Id) -> Option<&Trace> {
        self.traces.get(&id)
    }

    /// When the queue wants to be asked again although nothing happens.
    pub fn next_due(&self) -> Option<Time> {
        self.index.next_due()
    }

    /// An item.
    pub fn get(&self, id: Id) -> Option<&Item> {
        self.items.get(&id).map(|item| &**item)
    }

    /// All items, the oldest first.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &Item> {
        self.items.values().map(|item| &**item)
    }

    /// The number that the next item gets.
    pub fn next_id(&self) -> Id {
        self.next_id
    }

    /// Whether nothing is started.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    fn add(&mut self, wanted: Vec<Wanted>, step: &mut Step) -> Answer {
        let new: BTreeSet<_> = wanted
            .iter()
            .map(|wanted| (&wanted.spec.owner, &wanted.image))
            .filter(|(owner, image)| self.keys.find(owner, image, &self.items).is_none())
            .collect();
        if self.items.len() - self.index.forgettable() + new.len() > self.limits.items {
            return Answer::Full;
        }
        let added = wanted.into_iter().map(|wanted| self.add_one(wanted, step)).collect();
        Answer::Added(added)
    }

    fn add_one(&mut self, wanted: Wanted, step: &mut Step) -> (Id, Added) {
        let Wanted { image, source, spec } = wanted;
        let Some(id) = self.keys.find(&spec.owner, &image, &self.items) else {
            let id = self.next_id;
            self.next_id += 1;
            let mut item = Item::new(id, image, source, spec, self.now);
            rules::begin(&mut item, self.now);
            self.keys.insert(&item);
            self.items.insert(id, Box::new(item));
            step.changed.insert(id);
            self.reindex(id);
            return (id, Added::New);
        };
        let Some(item) = self.items.get_mut(&id) else { return (id, Added::Unchanged) };
        let same_version = spec.version.is_some() && spec.version == item.spec.version;
        let same = item.source == source && item.spec == spec;
        if same && (same_version || !item.is_finished()) {
            return (id, Added::Unchanged);
        }
        let restart = item.is_finished() && !same_version;
        let other_pull = item.source != source
            || item.spec.secrets != spec.secrets
            || item.spec.policy != spec.policy
            || item.spec.visibility != spec.visibility
            || item.spec.sandbox != spec.sandbox;
        item.source = source;
        item.spec = spec;
        step.changed.insert(id);
        if restart {
            rules::restart(item, "asked for again", self.now);
        } else if other_pull && self.runs.contains_key(&id) {
            self.stop(id, "asked for in another way", step);
        } else if let Some(item) = self.items.get_mut(&id).filter(|item| !self.runs.contains_key(&item.id)) {
            rules::begin(item, self.now);
        }
        self.reindex(id);
        (id, if restart { Added::Restarted } else { Added::Updated })
    }

    fn remove(&mut self, id: Id, step: &mut Step) {
        if let Some(run) = self.runs.remove(&id) {
            step.actions.push(Action::Stop(id, run.token));
        }
        if let Some(item) = self.items.remove(&id) {
            self.keys.remove(&item);
            if let Some(kept) = item.status.kept {
                step.actions.push(Action::Release(id, kept.how));
            }
            if let Some(trace) = item.status.exposed {
                self.traces.insert(id, trace);
            }
        }
        self.index.remove(id);
        step.changed.insert(id);
    }

    fn retry(&mut self, id: Id, step: &mut Step) {
        let Some(item) = self.items.get_mut(&id) else { return };
        match item.status.state {
            State::Pulling => return,
            State::Waiting => {
                item.status.until = None;
                item.status.turn(State::Waiting, Reason::Queued, "to be tried again at once", self.now);
            }
            State::Succeeded | State::Failed => rules::restart(item, "to be tried again", self.now),
        }
        step.changed.insert(id);
        self.reindex(id);
    }

    fn pause(&mut self, paused: bool, step: &mut Step) {
        self.paused = paused;
        if paused {
            for id in self.runs.keys().copied().collect::<Vec<_>>() {
                self.stop(id, "the queue was paused", step);
                self.reindex(id);
            }
        }
    }

    /// Ends an attempt, if there is one, without any harm to the item.
    fn stop(&mut self, id: Id, why: &str, step: &mut Step) {
        if let Some(run) = self.runs.remove(&id) {
            step.actions.push(Action::Stop(id, run.token));
        }
        if let Some(item) = self.items.get_mut(&id) {
            item.status.until = None;
            item.status.turn(State::Waiting, Reason::Queued, why, self.now);
            rules::begin(item, self.now);
        }
    }

    fn turn(&mut self, id: Id, token: u64, flies: bool) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.token == token) else { return };
        let Some(item) = self.items.get_mut(&id) else { return };
        match (run.flying, flies) {
            (None, true) => {
                run.flying = Some(self.now);
                item.status.turn(State::Pulling, Reason::Pulling, "", self.now);
            }
            (Some(since), false) => {
                run.used += self.now.since(since);
                run.flying = None;
                item.status.turn(State::Pulling, Reason::InLine, "waits for more urgent pulls", self.now);
            }
            _ => return,
        }
        self.reindex(id);
    }

    fn expose(&mut self, id: Id, token: u64, trace: Trace, step: &mut Step) -> Answer {
        match self.items.get_mut(&id).filter(|_| self.runs.get(&id).is_some_and(|run| run.token == token)) {
            Some(item) => {
                let earlier = item.status.exposed.take().filter(|earlier| earlier.source == trace.source);
                let since = earlier.map_or(trace.since, |earlier| earlier.since.min(trace.since));
                item.status.exposed = Some(Trace { since, ..trace });
                self.exposing.insert(id, token);
                step.changed.insert(id);
                Answer::Done
            }
            None => Answer::Unknown,
        }
    }

    fn note(&mut self, trace: Trace, step: &mut Step) -> Answer {
        let id = self.next_id;
        self.next_id += 1;
        self.traces.insert(id, trace);
        step.changed.insert(id);
        Answer::Noted(id)
    }

    fn cleaned(&mut self, id: Id, token: u64, step: &mut Step) {
        // An attempt that came later has a word of its own.
        if self.exposing.get(&id).copied().unwrap_or(0) != token {
            return;
        }
        self.exposing.remove(&id);
        let of_item = self.items.get_mut(&id).and_then(|item| item.status.exposed.take());
        if of_item.or(self.traces.remove(&id)).is_some() {
            step.changed.insert(id);
        }
        // An attempt that was stopped too late may have parked what it brought, and nobody heard of it.
        if self.items.get(&id).is_none_or(|item| item.is_finished() && item.status.kept.is_none()) {
            step.actions.push(Action::Release(id, How::Parked));
        }
    }

    fn ended(&mut self, id: Id, token: u64, outcome: Outcome, step: &mut Step) {
        if self.runs.get(&id).is_none_or(|run| run.token != token) {
            return;
        }
        self.runs.remove(&id);
        let Some(item) = self.items.get_mut(&id) else { return };
        match outcome {
            Outcome::Done(done) => rules::succeed(item, done, self.now),
            Outcome::Failed { reason, message, permanent } => {
                rules::fail(item, reason, &message, permanent, self.now);
            }
            Outcome::Later { reason, message } => rules::put_off(item, reason, message, self.now),
        }
        step.changed.insert(id);
        self.reindex(id);
    }

    fn give_way(&mut self, ids: &[Id], step: &mut Step) {
        for id in ids {
            self.release(*id, "gave way for want of disk space", step);
            self.reindex(*id);
        }
    }

    fn release(&mut self, id: Id, why: &str, step: &mut Step) {
        let Some(item) = self.items.get_mut(&id) else { return };
        let Some(Kept { how, .. }) = item.status.kept.take() else { return };
        let status = &mut item.status;
        let word = if how == How::Pinned { "the pin" } else { "what was parked" };
        status.turn(status.state, status.reason, format!("{word} {why}"), self.now);
        step.actions.push(Action::Release(id, how));
        step.changed.insert(id);
    }

    fn lost(&mut self, id: Id, step: &mut Step) {
        let Some(item) = self.items.get_mut(&id) else { return };
        if item.status.kept.as_ref().is_some_and(|kept| kept.how == How::Parked) {
            item.status.kept = None;
            // One that begins again has begun already.
            if item.is_finished() {
                rules::restart(item, "what was parked is gone; it is pulled again", self.now);
            }
            step.changed.insert(id);
            self.reindex(id);
        }
    }

    /// Something is due for an item.
    fn fire(&mut self, id: Id, step: &mut Step) {
        let Some(item) = self.items.get_mut(&id) else { return self.index.remove(id) };
        let now = self.now;
        let reached = |time: Option<Time>| time.is_some_and(|time| time <= now);
        if item.is_finished() {
            if reached(item.status.kept.as_ref().and_then(|kept| kept.until)) {
                self.release(id, "ended, as asked for", step);
            } else {
                self.remove(id, step);
            }
        } else if reached(item.spec.deadline) {
            if let Some(run) = self.runs.remove(&id) {
                step.actions.push(Action::Stop(id, run.token));
            }
            rules::miss_deadline(item, now);
            step.changed.insert(id);
        } else if let Some(run) = self.runs.remove(&id) {
            step.actions.push(Action::Stop(id, run.token));
            let message = format!("the attempt took longer than {} s", item.spec.timeout_seconds);
            rules::fail(item, Reason::Timeout, &message, false, now);
            step.changed.insert(id);
        } else {
            item.status.until = None;
            let message = std::mem::take(&mut item.status.message);
            item.status.turn(State::Waiting, Reason::Queued, message, now);
        }
    }

    /// Finished items beyond the limit go, the oldest first.
    fn forget_surplus(&mut self, step: &mut Step) {
        while self.index.forgettable() > self.limits.finished {
            let Some(id) = self.index.oldest_forgettable() else { return };
            self.remove(id, step);
        }
    }

    /// Nothing that crisp itself has put off may wait for a clock that was wrong when it did.
    fn clock_went_back(&mut self, now: Time, step: &mut Step) {
        let by = self.now.since(now);
        for run in self.runs.values_mut() {
            if let Some(since) = &mut run.flying {
                run.used += self.now.since(*since);
                *since = now;
            }
        }
        for item in self.items.values_mut() {
            rules::clock_went_back(item, by, now);
        }
        for id in self.items.keys().copied().collect::<Vec<_>>() {
            self.reindex(id);
            step.changed.insert(id);
        }
    }

    fn reindex(&mut self, id: Id) {
        let Some(item) = self.items.get(&id) else { return self.index.remove(id) };
        let run = self.runs.get(&id);
        let timeout = run.and_then(|run| {
            let left = Duration::from_secs(item.spec.timeout_seconds).saturating_sub(run.used);
            run.flying.map(|since| since.after(left))
        });
        self.index.place(item, run.is_some(), timeout, self.limits.ttl);
    }
}

/// Until when something is kept.
fn kept_until(pin: Pin, now: Time) -> Option<Time> {
    match pin {
        Pin::Seconds(seconds) => Some(now.after(Duration::from_secs(seconds))),
        Pin::None | Pin::WithOwner => None,
    }
}

#[cfg(test)]
mod tests;
