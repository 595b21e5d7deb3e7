//! An intercepted call as the features see it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::uri::Authority;

use crate::cri::Method;

/// An intercepted call: who calls, what, and the request message.
///
/// A caller that goes away is seen by a feature as its future being dropped; there is no flag to watch.
#[derive(Debug)]
pub struct Call {
    /// The downstream connection, unique within the process.
    pub connection: u64,
    /// `:authority` as the caller sent it.
    pub authority: Option<Authority>,
    /// Which method.
    pub method: Method,
    /// Request headers, as they came.
    pub metadata: HeaderMap,
    /// When the caller stops waiting, if it said so.
    pub deadline: Option<Instant>,
    /// The request message, without its prefix.
    pub message: Bytes,
}

impl Call {
    /// The caller's `user-agent`, by which kubelet generations are told apart.
    pub fn user_agent(&self) -> Option<&str> {
        self.metadata.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok())
    }
}

/// Reads `grpc-timeout`: up to eight digits and a unit. What cannot be read counts as none; the header itself
/// goes on to the runtime as it came.
pub fn grpc_timeout(metadata: &HeaderMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn timeouts_are_read_as_the_grpc_protocol_spells_them() {
        let read = |text: &str| {
            let mut map = HeaderMap::new();
            map.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            grpc_timeout(&map)
        };
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "S", "5", "-1S", "123456789S", "1x", "1.5S", "1é"] {
            assert_eq!(HeaderValue::from_str(bad).ok().and_then(|_| read(bad)), None, "{bad}");
        }
    }
}
