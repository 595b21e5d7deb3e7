//! Which containers somebody has had stopped lately: such an end is no crash.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::container::recent::Recent;

/// So many are remembered. A kubelet that stops a container makes the next one within seconds.
const MOST: usize = 1024;

/// The longest ID that is remembered; runtimes' have 64 letters.
const LONGEST: usize = 256;

/// IDs of containers, the latest ones. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Stops(Arc<Mutex<Recent<String>>>);

impl Default for Stops {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Recent::new(MOST))))
    }
}

impl Stops {
    /// Whether it is new.
    pub(super) fn add(&self, id: &str) -> bool {
        !id.is_empty() && id.len() <= LONGEST && self.lock().add(id.to_owned())
    }

    pub(super) fn remove(&self, id: &str) {
        self.lock().remove(&id.to_owned());
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.lock().has(&id.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, Recent<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_is_not_remembered() {
        let stops = Stops::default();
        assert!(stops.add("id") && !stops.add("id") && stops.clone().has("id"));
        assert!(!stops.add("") && !stops.has("") && !stops.add(&"long".repeat(100)));
        stops.remove("id");
        assert!(!stops.has("id"));
    }
}
