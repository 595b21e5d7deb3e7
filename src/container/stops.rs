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
    pub(super) fn add(&self, id: &str) {
        if id.is_empty() || id.len() > LONGEST {
            return;
        }
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id: Arc<str> = id.into();
        if !recent.ids.insert(id.clone()) {
            return;
        }
        recent.order.push_back(id);
        if recent.order.len() > MOST
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.ids.remove(&oldest);
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
        (0..MOST + 10).for_each(|n| stops.add(&n.to_string()));
        (0..MOST).for_each(|_| stops.add("again"));
        stops.add(&"long".repeat(100));
        stops.add("");
        assert!(
            !stops.has("0") && !stops.has("10") && stops.has("11") && stops.has("again") && !stops.has("")
        );
        assert_eq!(stops.0.lock().unwrap().order.len(), MOST);
    }
}
