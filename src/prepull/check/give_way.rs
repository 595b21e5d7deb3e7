//! Who gives way: pins and parked images are let go before the kubelet evicts a pod for lack of space, the least important
//! first, and the oldest of those: it has had the longest time to be of use.

use crate::pull::Class;

/// An image that crisp keeps from being removed, by a pin or by a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold<Id> {
    /// Which one.
    pub id: Id,
    /// Its class; of several owners the highest.
    pub class: Class,
    /// Its priority within the class.
    pub priority: i64,
    /// Since when it is held, in milliseconds.
    pub since: u64,
    /// Bytes that can go when it is let go.
    pub bytes: u64,
}

/// Which ones to let go so that `floor_percent` of the filesystem become free. `given` is what has been let go and is not
/// free yet: the kubelet and the runtime take their time, and nothing more is to go for the same lack.
pub fn give_way<Id: Clone>(
    free: u64,
    total: u64,
    floor_percent: u8,
    given: u64,
    holds: &[Hold<Id>],
) -> Vec<Id> {
    let lack = super::percent_of(total, floor_percent).saturating_sub(free).saturating_sub(given);
    let mut covered = 0u64;
    least_first(holds)
        .take_while(|hold| {
            let needed = covered < lack;
            covered = covered.saturating_add(hold.bytes);
            needed
        })
        .map(|hold| hold.id.clone())
        .collect()
}

/// Which ones to let go so that the rest has at most `max` bytes.
pub fn over_bound<Id: Clone>(max: u64, holds: &[Hold<Id>]) -> Vec<Id> {
    let mut held: u128 = holds.iter().map(|hold| u128::from(hold.bytes)).sum();
    least_first(holds)
        .take_while(|hold| {
            let needed = held > u128::from(max);
            held -= u128::from(hold.bytes);
            needed
        })
        .map(|hold| hold.id.clone())
        .collect()
}

/// In the order in which they go. One without bytes would go in vain.
fn least_first<Id>(holds: &[Hold<Id>]) -> impl Iterator<Item = &Hold<Id>> {
    let mut order: Vec<_> = holds.iter().filter(|hold| hold.bytes > 0).collect();
    order.sort_by_key(|hold| (hold.class, hold.priority, hold.since));
    order.into_iter()
}
