//! An intercepted call as the features see it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::cri::Method;
use crate::http2::Fields;

/// An intercepted call: who calls, what, and the request message.
///
/// A caller that goes away is seen by a feature as its future being dropped; there is no flag to watch.
#[derive(Debug)]
pub struct Call {
    /// The downstream connection, unique within the process.
    pub connection: u64,
    /// Which method.
    pub method: Method,
    /// The request's head, as it came.
    pub(crate) head: Fields,
    /// When the caller stops waiting, if it said so.
    pub deadline: Option<Instant>,
    /// The request message, without its prefix.
    pub message: Bytes,
}

impl Call {
    /// A call of which nothing is known but the method and its message.
    pub fn new(method: Method, message: Bytes) -> Self {
        Self { connection: 0, method, head: Fields::default(), deadline: None, message }
    }

    /// `:authority` as the caller sent it.
    pub fn authority(&self) -> Option<&str> {
        self.text(b":authority")
    }

    /// The caller's `user-agent`, by which kubelet generations are told apart.
    pub fn user_agent(&self) -> Option<&str> {
        self.text(b"user-agent")
    }

    /// The request's metadata as a map, for another call. What cannot be a header is left out.
    pub fn metadata(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for field in self.head.iter().filter(|field| !field.name.starts_with(b":")) {
            if let (Ok(name), Ok(mut value)) =
                (HeaderName::from_bytes(field.name), HeaderValue::from_bytes(field.value))
            {
                value.set_sensitive(field.sensitive);
                // A map has an end; who sends more than that many names gets what fits.
                let _ = map.try_append(name, value);
            }
        }
        map
    }

    fn text(&self, name: &[u8]) -> Option<&str> {
        std::str::from_utf8(self.head.get(name)?).ok()
    }
}

/// Reads `grpc-timeout`: up to eight digits and a unit. What cannot be read counts as none; the header itself
/// goes on to the runtime as it came.
pub(crate) fn grpc_timeout(head: &Fields) -> Option<Duration> {
    let text = std::str::from_utf8(head.get(b"grpc-timeout")?).ok()?;
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
    use super::*;
    use crate::http2::Field;

    fn head(fields: &[(&str, &str)]) -> Fields {
        let mut head = Fields::default();
        for (name, value) in fields {
            head.push(Field {
                name: name.as_bytes(),
                value: value.as_bytes(),
                sensitive: name.starts_with("auth"),
            });
        }
        head
    }

    #[test]
    fn metadata_is_what_was_said_besides_the_call_itself() {
        let mut call = Call::new(Method::PULL_IMAGE, Bytes::new());
        assert_eq!((call.authority(), call.user_agent(), call.metadata().len()), (None, None, 0));
        call.head = head(&[
            (":path", "/a/B"),
            (":authority", "localhost"),
            ("a", "1"),
            ("user-agent", "grpc-go/1.79.3"),
            ("a", "2"),
            ("authorization", "x"),
        ]);
        assert_eq!((call.authority(), call.user_agent()), (Some("localhost"), Some("grpc-go/1.79.3")));
        let map = call.metadata();
        let all: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(all, [("a", "1"), ("a", "2"), ("user-agent", "grpc-go/1.79.3"), ("authorization", "x")]);
        assert!(map["authorization"].is_sensitive() && !map["a"].is_sensitive());
    }

    #[test]
    fn timeouts_are_read_as_the_grpc_protocol_spells_them() {
        let read = |text: &str| grpc_timeout(&head(&[("grpc-timeout", text)]));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "S", "5", "-1S", "123456789S", "1x", "1.5S", "1é"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
