//! Pins, and the pinned images that were seen in replies.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Name, Pin, bare_id};
use crate::cri::view;

/// More pinned images than this are not remembered. Those beyond are still known by the names and IDs of their pins.
const MAX_SEEN: usize = 10_000;

/// The beginning of an ID counts from so many digits on; less may just as well be a name.
const SHORT_ID: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Pins {
    by_name: HashMap<String, Vec<Arc<Pin>>>,
    by_id: HashMap<String, Vec<Arc<Pin>>>,
    /// Pinned images by their bare IDs, with all their names. The pins themselves are looked up anew each time, as they
    /// may have ended.
    seen: HashMap<String, Vec<String>>,
}

// === impl Pins ===

impl Pins {
    pub(super) fn new(pins: impl IntoIterator<Item = Pin>) -> Self {
        let mut table = Self::default();
        for pin in pins {
            let pin = Arc::new(pin);
            table.by_name.entry(Name::of(&pin.name).key).or_default().push(pin.clone());
            if let Some(id) = &pin.image_id {
                table.by_id.entry(bare_id(id).to_owned()).or_default().push(pin);
            }
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Takes other pins, keeps what was seen as long as there are any, and gives back what is not needed any more.
    pub(super) fn replace(&mut self, other: Self) -> Self {
        let before = std::mem::replace(self, other);
        if self.is_empty() {
            return before;
        }
        self.seen = before.seen;
        Self { seen: HashMap::new(), ..before }
    }

    /// Whether the image is pinned; if so it is remembered.
    pub(super) fn see(&mut self, image: &view::Image) -> bool {
        let id = bare_id(&image.id);
        let mut names = image.repo_tags.iter().chain(&image.repo_digests);
        let pinned = self.by_id.contains_key(id) || names.any(|name| self.by_name.contains_key(name));
        if pinned && !id.is_empty() && (self.seen.len() < MAX_SEEN || self.seen.contains_key(id)) {
            let names = image.repo_tags.iter().chain(&image.repo_digests).cloned().collect();
            self.seen.insert(id.to_owned(), names);
        }
        pinned
    }

    pub(super) fn forget_others(&mut self, listed: &HashSet<String>) {
        let listed: HashSet<_> = listed.iter().map(|id| bare_id(id)).collect();
        self.seen.retain(|id, _| listed.contains(id.as_str()));
    }

    /// The pins of the image that a caller names.
    pub(super) fn of(&self, image: &str) -> Vec<Arc<Pin>> {
        let id = bare_id(image);
        let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex && id.len() == 64 {
            return self.of_id(id);
        }
        let key = Name::of(image).key;
        // The runtime may remove all names of an image with any one of them, so the image decides and not the name.
        if let Some((id, _)) = self.seen.iter().find(|(_, names)| names.contains(&key)) {
            return self.of_id(id);
        }
        if let Some(pins) = self.by_name.get(&key) {
            return pins.clone();
        }
        // As the runtimes do it: what is no name they have may be the beginning of an ID.
        if is_hex && id.len() >= SHORT_ID {
            let found = self.seen.keys().chain(self.by_id.keys()).find(|known| known.starts_with(id));
            return found.map(|id| self.of_id(id)).unwrap_or_default();
        }
        Vec::new()
    }

    fn of_id(&self, id: &str) -> Vec<Arc<Pin>> {
        let names = self.seen.get(id).into_iter().flatten();
        let by_name = names.filter_map(|name| self.by_name.get(name)).flatten();
        let mut found: Vec<Arc<Pin>> = Vec::new();
        for pin in by_name.chain(self.by_id.get(id).into_iter().flatten()) {
            if !found.iter().any(|known| Arc::ptr_eq(known, pin)) {
                found.push(pin.clone());
            }
        }
        found
    }
}
