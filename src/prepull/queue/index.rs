//! Who is next and what is due, without a look at every item.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::rules::TOGETHER;
use crate::prepull::item::{Id, Item, State};
use crate::prepull::spec::Pin;
use crate::prepull::time::Time;
use crate::pull::Class;

/// Every so many starts of a class, the one that has waited longest gets its turn.
const FAIR_TURN: u32 = 8;

/// Where every item is found.
#[derive(Debug, Default)]
pub(super) struct Index {
    places: HashMap<Id, Place>,
    /// Ready to start, by class: the higher number first, then the older.
    ready: [BTreeSet<(Reverse<i32>, Id)>; Class::ALL.len()],
    /// The same, the one that has waited longest first.
    waited: [BTreeSet<(Time, Id)>; Class::ALL.len()],
    /// Sorted. Most have one.
    by_source: HashMap<Arc<str>, Vec<Id>>,
    due: BTreeSet<(Time, Id)>,
    /// Ended, and nothing is kept.
    forgettable: BTreeSet<(Time, Id)>,
    /// Became ready since they were last asked for.
    fresh: Vec<Id>,
    starts: [u32; Class::ALL.len()],
}

#[derive(Debug, Default)]
struct Place {
    ready: Option<Ready>,
    due: Option<Time>,
    forgettable: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Ready {
    class: Class,
    priority: i32,
    asked: Time,
    source: Arc<str>,
}

// === impl Index ===

impl Index {
    /// Puts an item where it belongs now.
    pub(super) fn place(&mut self, item: &Item, runs: bool, timeout: Option<Time>, ttl: Duration) {
        let id = item.id;
        let status = &item.status;
        let is_ready = status.state == State::Waiting && status.until.is_none() && !runs;
        let ready = is_ready.then(|| Ready {
            class: item.spec.class,
            priority: item.spec.priority,
            asked: status.asked,
            source: self
                .by_source
                .get_key_value(item.source.as_str())
                .map_or_else(|| Arc::from(item.source.as_str()), |(source, _)| source.clone()),
        });
        let due = match status.finished {
            Some(finished) => end(item, finished, ttl),
            None => [status.until, item.spec.deadline, timeout].into_iter().flatten().min(),
        };
        let forgettable = status.finished.filter(|_| status.kept.is_none());
        let old = self.places.get(&id);
        if old.is_some_and(|old| old.ready == ready && old.due == due && old.forgettable == forgettable) {
            return;
        }
        self.remove(id);
        if let Some(ready) = &ready {
            if let Some(set) = self.ready.get_mut(ready.class as usize) {
                set.insert((Reverse(ready.priority), id));
            }
            if let Some(set) = self.waited.get_mut(ready.class as usize) {
                set.insert((ready.asked, id));
            }
            let same = self.by_source.entry(ready.source.clone()).or_default();
            if let Err(at) = same.binary_search(&id) {
                same.reserve_exact(usize::from(same.is_empty()));
                same.insert(at, id);
            }
            self.fresh.push(id);
        }
        self.due.extend(due.map(|time| (time, id)));
        self.forgettable.extend(forgettable.map(|time| (time, id)));
        self.places.insert(id, Place { ready, due, forgettable });
    }

    pub(super) fn remove(&mut self, id: Id) {
        let Some(place) = self.places.remove(&id) else { return };
        if let Some(ready) = place.ready {
            if let Some(set) = self.ready.get_mut(ready.class as usize) {
                set.remove(&(Reverse(ready.priority), id));
            }
            if let Some(set) = self.waited.get_mut(ready.class as usize) {
                set.remove(&(ready.asked, id));
            }
            if let Some(same) = self.by_source.get_mut(&ready.source) {
                same.retain(|other| *other != id);
                if same.is_empty() {
                    self.by_source.remove(&ready.source);
                }
            }
        }
        if let Some(time) = place.due {
            self.due.remove(&(time, id));
        }
        if let Some(time) = place.forgettable {
            self.forgettable.remove(&(time, id));
        }
    }

    /// The next of a class, which starts now.
    pub(super) fn pick(&mut self, class: Class) -> Option<Id> {
        let (ready, waited) = (self.ready.get(class as usize)?, self.waited.get(class as usize)?);
        let starts = self.starts.get_mut(class as usize)?;
        let fair = *starts % FAIR_TURN == FAIR_TURN - 1;
        let id = if fair { waited.first().map(|(_, id)| *id) } else { ready.first().map(|(_, id)| *id) }?;
        *starts = starts.wrapping_add(1);
        Some(id)
    }

    /// Items that are ready and want this, as many as may go together.
    pub(super) fn same_source(&self, source: &str) -> Vec<Id> {
        self.by_source.get(source).into_iter().flatten().take(TOGETHER).copied().collect()
    }

    /// Those that became ready since this was last asked, and still are.
    pub(super) fn take_fresh(&mut self) -> Vec<Id> {
        let fresh = std::mem::take(&mut self.fresh);
        let is_ready = |id: &Id| self.places.get(id).is_some_and(|place| place.ready.is_some());
        fresh.into_iter().filter(is_ready).collect()
    }

    /// An item for which something is due.
    pub(super) fn due(&self, now: Time) -> Option<Id> {
        self.due.first().filter(|(time, _)| *time <= now).map(|(_, id)| *id)
    }

    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    /// How many have ended and nothing is kept of them.
    pub(super) fn forgettable(&self) -> usize {
        self.forgettable.len()
    }

    pub(super) fn oldest_forgettable(&self) -> Option<Id> {
        self.forgettable.first().map(|(_, id)| *id)
    }
}

/// When something is due for an item that has ended: the end of what is kept, then its own. What is to be kept as long
/// as the item is there is not forgotten by default.
fn end(item: &Item, finished: Time, ttl: Duration) -> Option<Time> {
    let own = item.spec.ttl_seconds.map(Duration::from_secs);
    match &item.status.kept {
        Some(kept) if kept.until.is_some() => kept.until,
        Some(_) if item.spec.pin == Pin::WithOwner => own.map(|ttl| finished.after(ttl)),
        _ => Some(finished.after(own.unwrap_or(ttl))),
    }
}
