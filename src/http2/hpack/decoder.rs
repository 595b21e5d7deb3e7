//! Reading header blocks.

use super::{
    MAX_TABLE_SIZE, huffman,
    table::{STATIC, Table},
};
use crate::http2::fields::{Field, Fields};

/// Why a header block was not taken.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum DecodeError {
    /// The connection's compression state is lost: COMPRESSION_ERROR.
    Broken,
    /// The list is longer than the limit. The table is in step all the same, so only the stream fails.
    TooLarge,
}

/// Reads the header blocks of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
}

/// Two sizes say all there is to say, the smallest and the last; millions would only take time.
const MOST_SIZES: usize = 16;

/// What is left of a block.
struct Input<'a>(&'a [u8]);

// === impl Decoder ===

impl Decoder {
    /// A decoder with a table of the size that every connection starts with.
    pub(crate) fn new() -> Self {
        Self { table: Table::new(MAX_TABLE_SIZE) }
    }

    /// Appends the fields of a whole block to a list, whose size is to stay within `limit`.
    ///
    /// After [`DecodeError::TooLarge`] the list has the fields up to the first that was too much. After
    /// [`DecodeError::Broken`] the decoder is of no use any more.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        limit: usize,
        into: &mut Fields,
    ) -> Result<(), DecodeError> {
        self.read(Input(block), limit, into)
            .ok_or(DecodeError::Broken)?
            .then_some(())
            .ok_or(DecodeError::TooLarge)
    }

    /// Whether the fields are within the limit, or `None` if the block is broken.
    fn read(&mut self, mut input: Input<'_>, limit: usize, into: &mut Fields) -> Option<bool> {
        let mut fits = true;
        let mut fields_began = false;
        let mut sizes = 0;
        while let Some(first) = input.byte() {
            match first {
                0x80.. => {
                    let (name, value) = self.entry(input.integer(first, 7)?)?;
                    if !fits {
                        // A byte may stand for thousands; they are not copied for nothing.
                        continue;
                    }
                    into.push(Field { name, value, sensitive: false });
                }
                0x40.. => {
                    let field = self.literal(&mut input, first, 6, false, into)?;
                    self.table.insert(field.name, field.value);
                }
                0x20.. => {
                    let size = input.integer(first, 5)?;
                    sizes += 1;
                    if fields_began || size > MAX_TABLE_SIZE || sizes > MOST_SIZES {
                        return None;
                    }
                    self.table.set_max_size(size);
                    continue;
                }
                _ => {
                    self.literal(&mut input, first, 4, first & 0x10 != 0, into)?;
                }
            }
            fields_began = true;
            fits = fits && into.size() <= limit;
            if !fits {
                // It was read for the table's sake; a list that lacks a field is not kept growing.
                into.pop();
            }
        }
        Some(fits)
    }

    /// Reads a field that is spelled out, apart from its name perhaps, right into the list.
    fn literal<'a>(
        &self,
        input: &mut Input<'_>,
        first: u8,
        prefix: u32,
        sensitive: bool,
        into: &'a mut Fields,
    ) -> Option<Field<'a>> {
        into.push_with(sensitive, |bytes| {
            match input.integer(first, prefix)? {
                0 => input.string(bytes)?,
                index => bytes.extend_from_slice(self.entry(index)?.0),
            }
            let name_end = bytes.len();
            input.string(bytes)?;
            Some(name_end)
        })
    }

    /// Name and value of an index.
    fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        match STATIC.get(index) {
            Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
            None => self.table.get(index - STATIC.len()),
        }
    }
}

// === impl Input ===

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// An integer that starts in the lowest `prefix` bits of `first`.
    fn integer(&mut self, first: u8, prefix: u32) -> Option<usize> {
        let mask = (1 << prefix) - 1;
        let mut value = usize::from(first & mask as u8);
        if value < mask {
            return Some(value);
        }
        // Four more bytes are 28 bits: more than any block has, and never more than fits.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Appends a string.
    fn string(&mut self, into: &mut Vec<u8>) -> Option<()> {
        let first = self.byte()?;
        let length = self.integer(first, 7)?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        if first & 0x80 != 0 {
            return huffman::decode(text, into);
        }
        into.extend_from_slice(text);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(prefix: u32, bytes: &[u8]) -> Option<usize> {
        let mut input = Input(bytes);
        let first = input.byte()?;
        let value = input.integer(first, prefix)?;
        input.0.is_empty().then_some(value)
    }

    #[test]
    fn rfc_c_1_integers() {
        assert_eq!(integer(5, &[0xea]), Some(10));
        assert_eq!(integer(5, &[0xff, 0x9a, 0x0a]), Some(1337));
        assert_eq!(integer(8, &[0x2a]), Some(42));
        assert_eq!(integer(7, &[0xff, 0xff, 0xff, 0xff, 0x7f]), Some(127 + (1 << 28) - 1));
        assert_eq!(integer(7, &[0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(integer(7, &[0xff, 0x80, 0x80, 0x80, 0x80, 0x00]), None);
    }
}
