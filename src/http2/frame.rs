//! Frames: the nine bytes before each, and the short ones that are written whole.

use bytes::{BufMut, BytesMut};

/// Bytes before a frame's payload.
pub(super) const HEAD: usize = 9;
/// The longest payload that everybody takes, and the longest that is taken here: nobody is told of another.
pub(super) const MAX_PAYLOAD: usize = 16_384;
/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

/// Why a stream or a connection ends, as numbers on the wire. Others than these pass as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) u32);

impl Reason {
    pub(crate) const NO_ERROR: Self = Self(0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(1);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(3);
    pub(crate) const STREAM_CLOSED: Self = Self(5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(6);
    pub(crate) const REFUSED_STREAM: Self = Self(7);
    pub(crate) const CANCEL: Self = Self(8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(11);
    pub(crate) const INADEQUATE_SECURITY: Self = Self(12);
}

/// What the other side did that a connection does not survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    pub(crate) why: &'static str,
}

impl Fault {
    pub(super) const fn new(reason: Reason, why: &'static str) -> Self {
        Self { reason, why }
    }

    pub(crate) const fn protocol(why: &'static str) -> Self {
        Self::new(Reason::PROTOCOL_ERROR, why)
    }

    /// A window became larger than windows can be.
    pub(crate) const fn window() -> Self {
        Self::new(Reason::FLOW_CONTROL_ERROR, "a window that is too large")
    }

    pub(super) const fn size(why: &'static str) -> Self {
        Self::new(Reason::FRAME_SIZE_ERROR, why)
    }
}

/// What is said before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// Reads the head of a frame, if it is there.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        })
    }

    pub(super) fn bytes(self) -> [u8; HEAD] {
        let [_, a, b, c] = u32::try_from(self.length).unwrap_or(0).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload of DATA or HEADERS without padding and priority.
    pub(super) fn content(self, mut payload: &[u8]) -> Result<&[u8], Fault> {
        let short = Fault::protocol("a frame shorter than its padding");
        if self.has(PADDED) {
            let (&padding, rest) = payload.split_first().ok_or(short)?;
            let length = rest.len().checked_sub(usize::from(padding)).ok_or(short)?;
            payload = rest.get(..length).ok_or(short)?;
        }
        if self.kind == HEADERS && self.has(WITH_PRIORITY) {
            payload = payload.get(5..).ok_or(short)?;
        }
        Ok(payload)
    }
}

/// Writes a frame without a payload of its own, or with a short one.
pub(super) fn put(out: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.reserve(HEAD + payload.len());
    out.put_slice(&Head { length: payload.len(), kind, flags, stream }.bytes());
    out.put_slice(payload);
}

/// Reads a number of four bytes.
pub(super) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back() {
        let head = Head { length: 0x01_02_03, kind: HEADERS, flags: 5, stream: 0x7fff_fffe };
        assert_eq!(Head::read(&head.bytes()), Some(head));
        assert_eq!(Head::read(&head.bytes()[..8]), None);
        let reserved = [0, 0, 0, 0, 0, 0x80, 0, 0, 1];
        assert_eq!(Head::read(&reserved).unwrap().stream, 1, "the reserved bit means nothing");
    }

    #[test]
    fn padding_and_priority_are_taken_off() {
        let head = |kind, flags| Head { length: 0, kind, flags, stream: 1 };
        assert_eq!(head(DATA, PADDED).content(&[2, 7, 8, 0, 0]), Ok(&[7u8, 8][..]));
        assert_eq!(head(DATA, PADDED).content(&[2, 0, 0]), Ok(&[][..]));
        assert!(head(DATA, PADDED).content(&[2, 0]).is_err());
        assert!(head(DATA, PADDED).content(&[]).is_err());
        let both = PADDED | WITH_PRIORITY;
        assert_eq!(head(HEADERS, both).content(&[1, 0, 0, 0, 0, 9, 42, 0]), Ok(&[42u8][..]));
        assert!(head(HEADERS, both).content(&[1, 0, 0, 0, 0, 0]).is_err());
    }
}
