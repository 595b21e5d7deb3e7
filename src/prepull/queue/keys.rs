//! Which item an owner has for an image.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};

use crate::prepull::item::{Id, Item};

/// Finds items by owner and image, without a copy of either.
#[derive(Debug, Default)]
pub(super) struct Keys {
    hashes: RandomState,
    pub(super) ids: BTreeSet<(u64, Id)>,
}

// === impl Keys ===

impl Keys {
    pub(super) fn insert(&mut self, item: &Item) {
        self.ids.insert((self.hash(&item.spec.owner, &item.image), item.id));
    }

    pub(super) fn remove(&mut self, item: &Item) {
        self.ids.remove(&(self.hash(&item.spec.owner, &item.image), item.id));
    }

    pub(super) fn find(&self, owner: &str, image: &str, items: &BTreeMap<Id, Box<Item>>) -> Option<Id> {
        let hash = self.hash(owner, image);
        let mut same = self.ids.range((hash, Id::MIN)..=(hash, Id::MAX)).map(|(_, id)| *id);
        same.find(|id| items.get(id).is_some_and(|item| item.spec.owner == owner && item.image == image))
    }

    fn hash(&self, owner: &str, image: &str) -> u64 {
        self.hashes.hash_one((owner, image))
    }
}
