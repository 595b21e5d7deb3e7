//! The pace of all answers together.

use std::time::Duration;

use tokio::time::Instant;

/// How far behind a line may be and still catch up: timers are late by a millisecond now and then.
const SLACK: Duration = Duration::from_millis(50);

/// A line that all connections share, each piece in its turn.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) bytes_per_second: Option<u64>,
    /// Whether it never catches up, so that it is never faster than told.
    pub(super) even: bool,
    /// When what was sent so far is over the line.
    free: Option<Instant>,
}

impl Line {
    /// When `bytes` more are over the line. `None`: at once.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Instant> {
        let speed = self.bytes_per_second?;
        let slack = if self.even { Duration::ZERO } else { SLACK };
        let earliest = Instant::now().checked_sub(slack)?;
        let from = self.free.map_or(earliest, |free| free.max(earliest));
        let free = from + Duration::from_secs_f64(bytes as f64 / speed as f64);
        self.free = Some(free);
        self.free
    }
}
