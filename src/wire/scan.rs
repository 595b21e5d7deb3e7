//! Field spans of a message, read in place.
//!
//! Accepted is what Go's decoder accepts: varints of up to ten bytes, overlong ones included, and groups. Nothing here
//! allocates, except one short stack per group.

mod counter;

use std::iter::FusedIterator;

pub use counter::Counter;

use super::{Error, MAX_DEPTH, MAX_FIELD};

/// One field as it stands in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field number.
    pub number: u32,
    /// The value.
    pub value: Value<'a>,
    /// The whole span, from the first byte of the tag to the last of the value. The spans of a message lie side by side.
    pub raw: &'a [u8],
}

/// A value by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Any integer, a bool or an enum.
    Varint(u64),
    /// `fixed64`, `sfixed64` or the bits of a `double`.
    Fixed64(u64),
    /// A string, bytes, a message, a map entry or packed scalars.
    Len(&'a [u8]),
    /// A group: its fields without the tags around them.
    Group(&'a [u8]),
    /// `fixed32`, `sfixed32` or the bits of a `float`.
    Fixed32(u32),
}

/// Iterator over the fields of a message, made by [`fields`]. It ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// The wire type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Len = 2,
    Start = 3,
    End = 4,
    Fixed32 = 5,
}

/// Iterates over the top-level fields of a message, in order.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// Finds the last occurrence of the field at `path`, which is the one that wins if the field is singular.
///
/// If messages on the path occur several times, all of them are looked into.
pub fn last(message: &[u8], path: impl AsRef<[u32]>) -> Result<Option<Value<'_>>, Error> {
    let mut found = None;
    walk(message, path.as_ref(), &mut |value| {
        found = Some(value);
        Ok(())
    })?;
    Ok(found)
}

/// Counts the occurrences of the field at `path`. Packed scalars count as one occurrence.
pub fn count(message: &[u8], path: impl AsRef<[u32]>) -> Result<u64, Error> {
    let mut count = 0;
    walk(message, path.as_ref(), &mut |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Looks up a key of the map at `path`. A key that occurs several times has its last value.
///
/// The value is empty if it is not a string, bytes or a message.
pub fn entry(message: &[u8], path: impl AsRef<[u32]>, key: impl AsRef<[u8]>) -> Result<Option<&[u8]>, Error> {
    let (mut found, key) = (None, key.as_ref());
    walk(message, path.as_ref(), &mut |value| {
        if let Value::Len(entry) = value
            && entry_key(entry)? == key
        {
            found = Some(last_bytes(entry, 2)?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The key of a map entry; an absent one is the empty string.
pub fn entry_key(entry: &[u8]) -> Result<&[u8], Error> {
    last_bytes(entry, 1)
}

/// The last length-delimited occurrence of a field, which is the one that a decoder takes for a string.
fn last_bytes(message: &[u8], number: u32) -> Result<&[u8], Error> {
    let mut found: &[u8] = &[];
    for field in fields(message) {
        match field? {
            Field { number: n, value: Value::Len(bytes), .. } if n == number => found = bytes,
            _ => {}
        }
    }
    Ok(found)
}

/// Calls `visit` for every occurrence of the field at `path`, in document order.
fn walk<'a>(
    message: &'a [u8],
    path: &[u32],
    visit: &mut dyn FnMut(Value<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    // The recursion is as deep as the path is long, and that comes from crisp, not from the message.
    let (&number, rest) = path.split_first().ok_or(Error::Path)?;
    if rest.len() >= MAX_DEPTH {
        return Err(Error::Depth);
    }
    for field in fields(message) {
        match field? {
            field if field.number != number => {}
            field if rest.is_empty() => visit(field.value)?,
            Field { value: Value::Len(inner), .. } => walk(inner, rest, visit)?,
            _ => {}
        }
    }
    Ok(())
}

/// Reads a varint and moves `buf` behind it.
#[inline]
pub(super) fn varint(buf: &mut &[u8]) -> Result<u64, Error> {
    // Nearly all tags and most lengths are one byte long.
    match buf.split_first() {
        Some((&byte, rest)) if byte < 0x80 => {
            *buf = rest;
            Ok(byte.into())
        }
        _ => long_varint(buf),
    }
}

fn long_varint(buf: &mut &[u8]) -> Result<u64, Error> {
    let mut value = 0;
    for (i, &byte) in buf.iter().take(10).enumerate() {
        // The tenth byte has room for one bit only; a decoder that took more would lose bits.
        if i == 9 && byte > 1 {
            return Err(Error::Varint);
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *buf = buf.get(i + 1..).unwrap_or_default();
            return Ok(value);
        }
    }
    Err(Error::Truncated)
}

/// Splits a tag into field number and wire type.
pub(super) fn split_tag(tag: u64) -> Result<(u32, WireType), Error> {
    let wire = match tag & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed64,
        2 => WireType::Len,
        3 => WireType::Start,
        4 => WireType::End,
        5 => WireType::Fixed32,
        _ => return Err(Error::Tag(tag)),
    };
    match u32::try_from(tag >> 3) {
        Ok(number @ 1..=MAX_FIELD) => Ok((number, wire)),
        _ => Err(Error::Tag(tag)),
    }
}

/// Reads the value that belongs to a tag and moves `buf` behind it.
pub(super) fn value<'a>(buf: &mut &'a [u8], number: u32, wire: WireType) -> Result<Value<'a>, Error> {
    Ok(match wire {
        WireType::Varint => Value::Varint(varint(buf)?),
        WireType::Fixed64 => Value::Fixed64(u64::from_le_bytes(array(buf)?)),
        WireType::Fixed32 => Value::Fixed32(u32::from_le_bytes(array(buf)?)),
        WireType::Start => Value::Group(group(buf, number)?),
        WireType::End => return Err(Error::Group(number)),
        WireType::Len => {
            let len = varint(buf)?;
            Value::Len(take(buf, len)?)
        }
    })
}

fn take<'a>(buf: &mut &'a [u8], len: u64) -> Result<&'a [u8], Error> {
    let len = usize::try_from(len).map_err(|_| Error::Truncated)?;
    let (head, rest) = buf.split_at_checked(len).ok_or(Error::Truncated)?;
    *buf = rest;
    Ok(head)
}

fn array<const N: usize>(buf: &mut &[u8]) -> Result<[u8; N], Error> {
    let (head, rest) = buf.split_first_chunk().ok_or(Error::Truncated)?;
    *buf = rest;
    Ok(*head)
}

/// Moves `buf` behind the end of the group `number`, whose beginning was read, and gives back what lies between.
fn group<'a>(buf: &mut &'a [u8], number: u32) -> Result<&'a [u8], Error> {
    let body = *buf;
    // A stack instead of recursion: the nesting is the sender's choice.
    let mut open = vec![number];
    loop {
        let before = buf.len();
        let (number, wire) = split_tag(varint(buf)?)?;
        match wire {
            WireType::Start if open.len() >= MAX_DEPTH => return Err(Error::Depth),
            WireType::Start => open.push(number),
            WireType::End if open.pop() != Some(number) => return Err(Error::Group(number)),
            WireType::End if open.is_empty() => {
                return Ok(body.get(..body.len() - before).unwrap_or_default());
            }
            WireType::End => {}
            WireType::Varint | WireType::Fixed64 | WireType::Fixed32 | WireType::Len => {
                value(buf, number, wire)?;
            }
        }
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    /// The bytes of a length-delimited value.
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Len(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a length-delimited value, if it is valid UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// The number of a varint; a bool is 0 or 1.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Varint(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn wire_type(self) -> WireType {
        match self {
            Self::Varint(_) => WireType::Varint,
            Self::Fixed64(_) => WireType::Fixed64,
            Self::Len(_) => WireType::Len,
            Self::Group(_) => WireType::Start,
            Self::Fixed32(_) => WireType::Fixed32,
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<Field<'a>, Error> {
        let (start, buf) = (self.rest, &mut self.rest);
        let (number, wire) = split_tag(varint(buf)?)?;
        let value = value(buf, number, wire)?;
        let raw = start.get(..start.len() - buf.len()).unwrap_or_default();
        Ok(Field { number, value, raw })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl FusedIterator for Fields<'_> {}

#[cfg(test)]
mod tests;
