//! What pods were told already, as far as it is remembered.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How much is remembered.
const MEMORY: usize = 2000;

/// One word for each thing told, the oldest forgotten first.
#[derive(Debug, Default)]
pub(super) struct Told {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Told {
    /// Whether a pod was not told this yet. From now on it was.
    pub(super) fn is_new(&mut self, uid: &str, reason: &str, message: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (uid, reason, message).hash(&mut hasher);
        let word = hasher.finish();
        if !self.known.insert(word) {
            return false;
        }
        self.order.push_back(word);
        if self.order.len() > MEMORY
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_once_and_memory_is_bounded() {
        let mut told = Told::default();
        assert!(told.is_new("a", "r", "m") && !told.is_new("a", "r", "m"));
        assert!(told.is_new("b", "r", "m") && told.is_new("a", "s", "m"));
        for number in 0..MEMORY {
            assert!(told.is_new(&number.to_string(), "r", "m"));
        }
        assert_eq!((told.known.len(), told.order.len()), (MEMORY, MEMORY));
        assert!(told.is_new("a", "r", "m"), "it is forgotten by now");
    }
}
