//! Counting a field of a message that streams past.

use super::{MAX_DEPTH, WireType, split_tag};
use crate::wire::Error;

/// Counts the occurrences of one top-level field in a message that comes in arbitrary chunks.
///
/// It agrees with [`count`](super::count) on the whole message, but needs constant memory, so that big list replies
/// can be observed while they stream past.
///
/// ```
/// use crisp::wire::Counter;
///
/// let mut containers = Counter::new(1);
/// for chunk in [&b"\x0a\x03a"[..], b"bc\x0a", b"\x00"] {
///     containers.push(chunk);
/// }
/// assert_eq!(containers.finish(), Ok(2));
/// ```
#[derive(Debug, Clone)]
pub struct Counter {
    field: u32,
    count: u64,
    state: State,
    /// The varint under way: its bits and how many bytes they came from.
    bits: u64,
    bytes: u32,
    /// The groups that are open, at most [`MAX_DEPTH`].
    groups: Vec<u32>,
    error: Option<Error>,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Tag,
    Varint,
    Length,
    Skip(u64),
}

// === impl Counter ===

impl Counter {
    /// Counts the field with this number.
    pub fn new(field: u32) -> Self {
        Self { field, count: 0, state: State::Tag, bits: 0, bytes: 0, groups: Vec::new(), error: None }
    }

    /// Takes the next chunk. After invalid data all further chunks are ignored.
    pub fn push(&mut self, mut chunk: &[u8]) {
        while self.error.is_none() && !chunk.is_empty() {
            if let State::Skip(left) = self.state {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
                chunk = chunk.get(step..).unwrap_or_default();
                self.skip(left - step as u64);
            } else if let Some((&byte, rest)) = chunk.split_first() {
                chunk = rest;
                self.error = self.byte(byte).err();
            }
        }
    }

    /// The number of occurrences, if the chunks made up a valid message.
    pub fn finish(self) -> Result<u64, Error> {
        match self.error {
            Some(error) => Err(error),
            None if self.state == State::Tag && self.bytes == 0 && self.groups.is_empty() => Ok(self.count),
            None => Err(Error::Truncated),
        }
    }

    fn skip(&mut self, len: u64) {
        self.state = if len == 0 { State::Tag } else { State::Skip(len) };
    }

    /// Takes one byte of a varint, by the same rules as [`varint`](super::varint).
    fn byte(&mut self, byte: u8) -> Result<(), Error> {
        if self.bytes == 9 && byte > 1 {
            return Err(Error::Varint);
        }
        self.bits |= u64::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        if byte >= 0x80 {
            return Ok(());
        }
        let value = std::mem::take(&mut self.bits);
        self.bytes = 0;
        match self.state {
            State::Tag => self.tag(value)?,
            State::Length => self.skip(value),
            State::Varint | State::Skip(_) => self.state = State::Tag,
        }
        Ok(())
    }

    fn tag(&mut self, tag: u64) -> Result<(), Error> {
        let (number, wire) = split_tag(tag)?;
        if number == self.field && self.groups.is_empty() {
            self.count += 1;
        }
        match wire {
            WireType::Varint => self.state = State::Varint,
            WireType::Fixed64 => self.skip(8),
            WireType::Fixed32 => self.skip(4),
            WireType::Len => self.state = State::Length,
            WireType::Start if self.groups.len() >= MAX_DEPTH => return Err(Error::Depth),
            WireType::Start => self.groups.push(number),
            WireType::End if self.groups.pop() != Some(number) => return Err(Error::Group(number)),
            WireType::End => {}
        }
        Ok(())
    }
}
