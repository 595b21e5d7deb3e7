//! Waiting for a condition, with a limit.

use std::thread;
use std::time::{Duration, Instant};

/// Asks `probe` until it gives a value; panics with `what` when that takes longer than `limit`.
pub(crate) fn until<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    try_until(limit, probe).unwrap_or_else(|| panic!("{what}: not within {limit:?}"))
}

/// Asks `probe` until it gives a value, or gives up after `limit`.
pub(crate) fn try_until<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(50));
    }
}
