//! The latest so many of something, each once; the oldest is forgotten first.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// What was added lately.
#[derive(Debug)]
pub(super) struct Recent<T> {
    most: usize,
    known: HashSet<T>,
    order: VecDeque<T>,
}

impl<T: Clone + Eq + Hash> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: HashSet::new(), order: VecDeque::new() }
    }

    /// Whether it is new.
    pub(super) fn add(&mut self, one: T) -> bool {
        if !self.known.insert(one.clone()) {
            return false;
        }
        self.order.push_back(one);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    pub(super) fn remove(&mut self, one: &T) {
        if self.known.remove(one) {
            self.order.retain(|other| other != one);
        }
    }

    pub(super) fn has(&self, one: &T) -> bool {
        self.known.contains(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_no_more() {
        let mut recent = Recent::new(10);
        (0..20).for_each(|n| assert!(recent.add(n)));
        (0..20).for_each(|_| assert!(!recent.add(19), "twice is once"));
        assert!(!recent.has(&9) && recent.has(&10) && recent.has(&19));
        recent.remove(&15);
        recent.remove(&3);
        assert!(!recent.has(&15) && recent.add(20) && recent.has(&10));
        assert_eq!((recent.known.len(), recent.order.len()), (10, 10));
        assert!(recent.add(9), "it was forgotten");
    }
}
