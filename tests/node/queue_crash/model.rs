//! What the queue has to hold, as far as its answers have said so.

use std::collections::{BTreeMap, BTreeSet};

use crisp::admin::prepull::Taken;
use crisp::prepull::item::State;
use crisp::prepull::queue::Added;
use crisp::prepull::time::Time;
use crisp::prepull::view::{Listed, Summary};
use crisp::prepull::{Id, Item, Spec};

/// An owner, and the image's name.
pub(super) type Key = (String, String);

/// Something that was asked of the queue.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Add(Vec<Spec>),
    Remove(Vec<Key>),
    Retry(Key),
    Pause(bool),
}

/// One item.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: Id,
    /// Without credentials, which nobody is told.
    spec: Spec,
    /// How and when it came to its end, if it was seen there.
    pub(super) finished: Option<(State, Time)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) items: BTreeMap<Key, Held>,
    pub(super) paused: bool,
    /// Asked for, and not answered: it may have happened or not.
    pub(super) open: Option<Asked>,
    /// No number is ever given again.
    last_id: Id,
}

// === impl Model ===

impl Model {
    pub(super) fn is_finished(&self, key: &Key) -> bool {
        self.items.get(key).is_some_and(|held| held.finished.is_some())
    }

    /// Items of which a kill may have left anything: those that were asked for last.
    pub(super) fn touched(&self) -> Vec<Key> {
        match &self.open {
            Some(Asked::Add(specs)) => specs.iter().map(key_of).collect(),
            Some(Asked::Retry(key)) => vec![key.clone()],
            Some(Asked::Remove(keys)) => keys.clone(),
            Some(Asked::Pause(_)) | None => Vec::new(),
        }
    }

    /// The queue has taken what was asked for.
    pub(super) fn added(&mut self, taken: &Taken) {
        let Some(Asked::Add(specs)) = self.open.take() else { panic!("nothing was added") };
        assert_eq!(specs.len(), taken.items.len(), "{taken:?}");
        for (spec, taken) in specs.into_iter().zip(&taken.items) {
            let key = key_of(&spec);
            assert_eq!(taken.image, key.1, "an item for each, in their order");
            match self.items.get(&key) {
                None => assert_eq!(taken.result, Added::New, "{key:?}"),
                Some(held) => assert_eq!((taken.id, taken.result == Added::New), (held.id, false), "{key:?}"),
            }
            if let Some(held) = self.items.get(&key).filter(|held| held.finished.is_some()) {
                let same_version = spec.version.is_some() && spec.version == held.spec.version;
                assert_eq!(taken.result == Added::Restarted, !same_version, "{key:?}: {taken:?}");
            }
            self.put(key, taken.id, spec, taken.result == Added::Restarted);
        }
    }

    fn put(&mut self, key: Key, id: Id, spec: Spec, restarted: bool) {
        let finished = self.items.get(&key).and_then(|held| held.finished).filter(|_| !restarted);
        if !self.items.contains_key(&key) {
            assert!(id > self.last_id, "{key:?} got number {id}, and {} was given before", self.last_id);
            self.last_id = id;
        }
        self.items.insert(key, Held { id, spec, finished });
    }

    /// What was asked for was done; not for what is added.
    pub(super) fn done(&mut self) {
        match self.open.take() {
            Some(Asked::Remove(keys)) => self.items.retain(|key, _| !keys.contains(key)),
            Some(Asked::Retry(key)) => self.begin_again(&key),
            Some(Asked::Pause(paused)) => self.paused = paused,
            Some(Asked::Add(_)) | None => panic!("nothing was asked for"),
        }
    }

    fn begin_again(&mut self, key: &Key) {
        if let Some(held) = self.items.get_mut(key) {
            held.finished = None;
        }
    }

    /// After a crash: the queue has to be as it was answered, and what was not answered has happened as a whole or not
    /// at all. `items` are those of [`Model::touched`], as far as they are there.
    pub(super) fn settle(&mut self, listed: &Listed, items: &BTreeMap<Key, Item>) {
        let there: BTreeMap<Key, Id> = listed.items.iter().map(|item| (key_in(item), item.id)).collect();
        match self.open.take() {
            None => {}
            Some(Asked::Pause(paused)) => {
                assert!([self.paused, paused].contains(&listed.paused));
                self.paused = listed.paused;
            }
            Some(Asked::Retry(key)) => self.begin_again(&key),
            // Several are removed one by one.
            Some(Asked::Remove(keys)) => {
                for key in keys.iter().filter(|key| !there.contains_key(key)) {
                    self.items.remove(key);
                }
            }
            Some(Asked::Add(specs)) => self.settle_added(specs, &there, items),
        }
        self.check(listed);
    }

    fn settle_added(&mut self, specs: Vec<Spec>, there: &BTreeMap<Key, Id>, items: &BTreeMap<Key, Item>) {
        let is_new = |spec: &Spec| match (self.items.get(&key_of(spec)), items.get(&key_of(spec))) {
            (None, now) => Some(now.is_some()),
            // Nobody can tell if both wishes are the same.
            (Some(held), Some(now)) if held.spec == *spec => (now.spec != held.spec).then_some(true),
            (Some(held), Some(now)) if now.spec == held.spec => Some(false),
            (Some(_), Some(now)) => Some(now.spec == *spec),
            (Some(_), None) => Some(false),
        };
        let known: BTreeSet<bool> = specs.iter().filter_map(is_new).collect();
        assert!(known.len() < 2, "a part of what was added is there: {specs:#?}\n{items:#?}");
        let happened = known.first().copied();
        for spec in specs {
            let key = key_of(&spec);
            match happened {
                Some(false) => {}
                // It may have begun again, also where nothing else tells.
                None => self.begin_again(&key),
                Some(true) => self.put(key.clone(), there[&key], spec, true),
            }
        }
    }

    /// The queue has to hold exactly this.
    pub(super) fn check(&mut self, listed: &Listed) {
        let held: BTreeMap<Id, &Key> = self.items.iter().map(|(key, held)| (held.id, key)).collect();
        let there: Vec<(Id, Key)> = listed.items.iter().map(|item| (item.id, key_in(item))).collect();
        let expected: Vec<(Id, Key)> = held.into_iter().map(|(id, key)| (id, key.clone())).collect();
        assert_eq!(there, expected, "the items that were acknowledged, and no others");
        assert_eq!(listed.paused, self.paused);
        for item in &listed.items {
            let Some(held) = self.items.get_mut(&key_in(item)) else { continue };
            assert_eq!((item.class, item.priority), (held.spec.class, held.spec.priority), "{item:?}");
            let now = (item.state, item.since);
            match held.finished {
                Some(before) => assert_eq!(now, before, "it was finished, and is not as it was: {item:#?}"),
                None if matches!(item.state, State::Succeeded | State::Failed) => held.finished = Some(now),
                None => {}
            }
        }
    }

    /// An item has to be as it was asked for.
    pub(super) fn check_item(&self, key: &Key, item: &Item) {
        let held = &self.items[key];
        assert_eq!(item.spec, held.spec, "{item:#?}");
        if let Some((state, since)) = held.finished {
            let last = item.status.history.last().map(|last| (last.state, last.time));
            assert_eq!(last, Some((state, since)), "nothing has happened since its end: {item:#?}");
        }
    }
}

pub(super) fn key_of(spec: &Spec) -> Key {
    (spec.owner.clone(), spec.image.clone())
}

fn key_in(item: &Summary) -> Key {
    (item.owner.clone(), item.image.clone())
}
