//! How much the records in labels take on the whole node: every list of containers carries them, and a runtime refuses
//! to send a list of more than 16 MiB to anybody.

use std::sync::Mutex;
use std::sync::PoisonError;

/// What labels take: as the last list of all containers showed it, and what was added since.
#[derive(Debug, Default)]
pub(super) struct Budget(Mutex<Spent>);

/// Where the count stood when a list was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

#[derive(Debug, Default)]
struct Spent {
    /// All that was ever added.
    added: u64,
    /// What the last list showed, and where `added` stood when it was asked for.
    listed: u64,
    mark: u64,
    /// Whether there was a list yet.
    known: bool,
}

// === impl Budget ===

impl Budget {
    /// To be called before a list of all containers is asked for.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.spent().added)
    }

    /// What the list showed. Gives what is spent now.
    pub(super) fn listed(&self, Mark(mark): Mark, bytes: u64) -> u64 {
        let mut spent = self.spent();
        // Of two lists under way, the one that was asked for later counts.
        if mark >= spent.mark {
            (spent.listed, spent.mark, spent.known) = (bytes, mark, true);
        }
        spent.now()
    }

    /// What labels take now.
    pub(super) fn now(&self) -> u64 {
        self.spent().now()
    }

    /// Whether there are no records on the node, as far as anybody knows.
    pub(super) fn is_zero(&self) -> bool {
        let spent = self.spent();
        spent.known && spent.now() == 0
    }

    /// A label of so many bytes goes out.
    pub(super) fn add(&self, bytes: u64) {
        let mut spent = self.spent();
        spent.added = spent.added.saturating_add(bytes);
    }

    fn spent(&self) -> std::sync::MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Spent ===

impl Spent {
    fn now(&self) -> u64 {
        self.listed.saturating_add(self.added - self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_created_while_a_list_is_under_way_counts() {
        let budget = Budget::default();
        assert!(!budget.is_zero(), "nothing is known yet");
        budget.add(100);
        assert_eq!(budget.now(), 100);
        let (first, second) = (budget.mark(), {
            budget.add(10);
            budget.mark()
        });
        budget.add(1);
        assert_eq!(budget.listed(second, 50), 51);
        assert_eq!(budget.listed(first, 7), 51, "it is older");
        assert_eq!(budget.listed(budget.mark(), 0), 0);
        assert!(budget.is_zero());
        budget.add(1);
        assert!(!budget.is_zero());
    }
}
