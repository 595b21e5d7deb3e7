//! Which restarts are remembered: pure.

use std::collections::BTreeMap;

use super::Restart;

/// Most restarts of one container.
pub(super) const PER_CONTAINER: usize = 20;

/// The latest restarts, by the number under which each is written down.
#[derive(Debug)]
pub(super) struct Kept {
    entries: BTreeMap<u64, Restart>,
    most: usize,
}

impl Kept {
    pub(super) fn new(most: usize) -> Self {
        Self { entries: BTreeMap::new(), most }
    }

    /// Takes one that is written down already.
    pub(super) fn put(&mut self, id: u64, restart: Restart) {
        self.entries.insert(id, restart);
    }

    /// Takes a new one. Gives its number and the numbers of those that are forgotten for it.
    pub(super) fn add(&mut self, restart: Restart) -> (u64, Vec<u64>) {
        let same = |other: &Restart| other.uid == restart.uid && other.container == restart.container;
        let of_container: Vec<u64> =
            self.entries.iter().filter(|(_, other)| same(other)).map(|(id, _)| *id).collect();
        let surplus = (of_container.len() + 1).saturating_sub(PER_CONTAINER);
        let mut dropped: Vec<u64> = of_container.into_iter().take(surplus).collect();
        dropped.iter().for_each(|id| _ = self.entries.remove(id));
        // More than one only if less are to be kept than before.
        while self.entries.len() >= self.most.max(1)
            && let Some((id, _)) = self.entries.pop_first()
        {
            dropped.push(id);
        }
        let id = self.entries.last_key_value().map_or(0, |(id, _)| id.saturating_add(1));
        // The last number there is would be taken twice; a node would have to restart 2^64 containers.
        let id = dropped.iter().copied().max().map_or(id, |old| id.max(old.saturating_add(1)));
        self.entries.insert(id, restart);
        (id, dropped)
    }

    /// All of them, the latest last.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Restart> {
        self.entries.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restart(container: &str, attempt: u32) -> Restart {
        Restart { uid: "u".into(), container: container.into(), attempt, ..Restart::default() }
    }

    #[test]
    fn the_oldest_are_forgotten_by_container_and_in_all() {
        let mut kept = Kept::new(30);
        for attempt in 0..25 {
            let (id, dropped) = kept.add(restart("a", attempt));
            assert_eq!(id, u64::from(attempt));
            let expected = u64::from(attempt).checked_sub(PER_CONTAINER as u64);
            assert_eq!(dropped, expected.into_iter().collect::<Vec<_>>());
        }
        assert_eq!(kept.iter().count(), PER_CONTAINER);
        for attempt in 0..10 {
            assert!(kept.add(restart("b", attempt)).1.is_empty());
        }
        assert_eq!(kept.add(restart("c", 0)), (35, vec![5]));
        assert_eq!(kept.iter().count(), 30);
    }

    #[test]
    fn fewer_than_before_are_kept_from_the_next_one_on() {
        let mut kept = Kept::new(2);
        (0..5).for_each(|id| kept.put(id * 10, restart("a", 0)));
        assert_eq!(kept.add(restart("b", 1)), (41, vec![0, 10, 20, 30]));
        let mut one = Kept::new(1);
        assert_eq!(one.add(restart("a", 0)), (0, vec![]));
        assert_eq!(one.add(restart("a", 1)), (1, vec![0]));
    }
}
