//! Which containers somebody has had stopped lately: such an end is no crash.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// So many are remembered. A kubelet that stops a container makes the next one within seconds.
const MOST: usize = 1024;

/// The longest ID that is remembered; runtimes' have 64 letters.
const LONGEST: usize = 256;

/// IDs of containers, the latest ones. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Stops(Arc<Mutex<Recent>>);

#[derive(Debug, Default)]
struct Recent {
    order: VecDeque<Arc<str>>,
    ids: HashSet<Arc<str>>,
}

impl Stops {
    /// Whether it is new.
    pub(super) fn add(&self, id: &str) -> bool {
        if id.is_empty() || id.len() > LONGEST {
            return false;
        }
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id: Arc<str> = id.into();
        if !recent.ids.insert(id.clone()) {
            return false;
        }
        recent.order.push_back(id);
        if recent.order.len() > MOST
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.ids.remove(&oldest);
        }
        true
    }

    pub(super) fn remove(&self, id: &str) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.ids.remove(id) {
            recent.order.retain(|other| **other != *id);
        }
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_no_more() {
        let stops = Stops::default();
        (0..MOST + 10).for_each(|n| assert!(stops.add(&n.to_string())));
        assert!(stops.add("again"));
        (0..MOST).for_each(|_| assert!(!stops.add("again")));
        assert!(!stops.add(&"long".repeat(100)) && !stops.add(""));
        assert!(
            !stops.has("0") && !stops.has("10") && stops.has("11") && stops.has("again") && !stops.has("")
        );
        assert_eq!(stops.0.lock().unwrap().order.len(), MOST);
        ["again", "never", ""].iter().for_each(|id| stops.remove(id));
        assert!(!stops.has("again") && stops.has("11"));
        assert_eq!(stops.0.lock().unwrap().order.len(), MOST - 1);
    }
}
