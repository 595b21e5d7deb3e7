//! Points in time that outlive the process.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970. In JSON it is RFC 3339.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// The last moment of the year 9999, which is as far as RFC 3339 goes.
const LAST: u64 = 253_402_300_799_999;

// === impl Time ===

impl Time {
    /// Now, by the node's clock.
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// What the system's clock said.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(LAST).min(LAST))
    }

    /// So much later.
    pub fn after(self, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(LAST);
        Self(self.0.saturating_add(wait).min(LAST))
    }

    /// How long ago `earlier` was; nothing if it is still to come.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    fn timestamp(self) -> prost_types::Timestamp {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.min(LAST));
        prost_types::Timestamp::from(time)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom("expected a time such as 2026-11-16T08:30:00Z");
        let time: prost_types::Timestamp = text.parse().map_err(|_| wrong())?;
        SystemTime::try_from(time).map(Self::of).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_and_kubernetes_write_them() {
        let time = Time(1_800_000_000_250);
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2027-01-15T08:00:00.250Z\"");
        for time in [Time(0), time, Time(LAST)] {
            let text = serde_json::to_string(&time).unwrap();
            assert_eq!(serde_json::from_str::<Time>(&text).unwrap(), time, "{text}");
        }
        assert_eq!(
            serde_json::from_str::<Time>("\"2027-01-15T10:00:00+02:00\"").unwrap(),
            Time(1_800_000_000_000)
        );
        for wrong in ["\"tomorrow\"", "\"\"", "7", "\"1960-01-01\""] {
            let read = serde_json::from_str::<Time>(wrong);
            assert!(read.is_err() || read.unwrap() == Time(0), "{wrong}");
        }
        assert_eq!(Time(u64::MAX).after(Duration::MAX), Time(LAST));
    }
}
