//! What pods were told already, as far as it is remembered.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::container::recent::Recent;

/// How much is remembered.
const MEMORY: usize = 2000;

/// One number for each thing told.
#[derive(Debug)]
pub(super) struct Told(Recent<u64>);

impl Default for Told {
    fn default() -> Self {
        Self(Recent::new(MEMORY))
    }
}

impl Told {
    /// Whether a pod was not told this yet. From now on it was.
    pub(super) fn is_new(&mut self, uid: &str, reason: &str, message: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (uid, reason, message).hash(&mut hasher);
        self.0.add(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_once() {
        let mut told = Told::default();
        assert!(told.is_new("a", "r", "m") && !told.is_new("a", "r", "m"));
        assert!(told.is_new("b", "r", "m") && told.is_new("a", "s", "m") && told.is_new("a", "r", "n"));
    }
}
