//! Writing header blocks.
//!
//! Strings are written plainly. Huffman coding would save a few bytes of a socket's memory and cost time at both ends.

use bytes::{BufMut, BytesMut};

use super::{
    MAX_TABLE_SIZE, names,
    table::{STATIC, Table},
};
use crate::http2::fields::Field;

/// Longer values are not put in the table: one of them would push out many.
const MAX_KEPT_VALUE: usize = 256;

/// How many entries are found without a search.
const SLOTS: usize = 64;

/// How a field is spelled out: the bits that say so and how many are left for the index of its name.
const INDEXED: (u8, u32) = (0x40, 6);
const NOT_INDEXED: (u8, u32) = (0x00, 4);
const NEVER_INDEXED: (u8, u32) = (0x10, 4);

/// Writes the header blocks of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Encoder {
    table: Table,
    /// How many entries were ever put in the table. Only differences matter, so it may wrap.
    inserted: u32,
    /// By hash of a field, `inserted` when it was put in the table. A guess, to be compared with the entry.
    slots: [u32; SLOTS],
    /// The size that the table is to have from the next block on.
    next_size: usize,
    /// The smallest size that was asked for since the last block.
    smallest_size: usize,
}

// === impl Encoder ===

impl Encoder {
    /// An encoder with a table of the size that every connection starts with.
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(MAX_TABLE_SIZE),
            inserted: 0,
            slots: [0; SLOTS],
            next_size: MAX_TABLE_SIZE,
            smallest_size: MAX_TABLE_SIZE,
        }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. No more than [`MAX_TABLE_SIZE`] of it is used.
    pub(crate) fn set_table_size(&mut self, size: u32) {
        self.next_size = MAX_TABLE_SIZE.min(size as usize);
        self.smallest_size = self.smallest_size.min(self.next_size);
    }

    /// Appends a block with these fields.
    pub(crate) fn encode<'a>(&mut self, fields: impl Iterator<Item = Field<'a>>, out: &mut BytesMut) {
        // The smallest size has to be told as well: the peer has dropped what did not fit.
        for size in [self.smallest_size, self.next_size] {
            if size < self.table.max_size() || (size == self.next_size && size != self.table.max_size()) {
                self.table.set_max_size(size);
                put_integer(out, 0x20, 5, size);
            }
        }
        self.smallest_size = self.next_size;
        for field in fields {
            self.put_field(field, out);
        }
    }

    fn put_field(&mut self, field: Field<'_>, out: &mut BytesMut) {
        let Field { name, value, sensitive } = field;
        let known = names::find(name);
        let index = usize::from(known.index);
        if sensitive {
            return put_literal(out, NEVER_INDEXED, index, name, value);
        }
        for same_name in index..index + usize::from(known.entries) {
            if STATIC.get(same_name - 1).is_some_and(|entry| entry.1.as_bytes() == value) {
                return put_integer(out, 0x80, 7, same_name);
            }
        }
        if !known.kept || value.len() > MAX_KEPT_VALUE {
            return put_literal(out, NOT_INDEXED, index, name, value);
        }
        let slot = slot(name, value);
        if let Some(found) = self.find(slot, name, value) {
            return put_integer(out, 0x80, 7, STATIC.len() + 1 + found);
        }
        if Table::size_of(name, value) > self.table.max_size() {
            return put_literal(out, NOT_INDEXED, index, name, value);
        }
        self.table.insert(name, value);
        self.inserted = self.inserted.wrapping_add(1);
        self.slots[slot] = self.inserted;
        put_literal(out, INDEXED, index, name, value);
    }

    /// Finds an entry of the table.
    fn find(&mut self, slot: usize, name: &[u8], value: &[u8]) -> Option<usize> {
        let guess = self.inserted.wrapping_sub(self.slots[slot]) as usize;
        if self.table.get(guess) == Some((name, value)) {
            return Some(guess);
        }
        let found = self.table.find(name, value)?;
        self.slots[slot] = self.inserted.wrapping_sub(found as u32);
        Some(found)
    }
}

/// Where to look for a field. Paths are told apart by how they end, most other fields by their lengths.
fn slot(name: &[u8], value: &[u8]) -> usize {
    let tail = match value.last_chunk::<8>() {
        Some(tail) => u64::from_le_bytes(*tail),
        None => value.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte)),
    };
    let lengths = (value.len() << 8 ^ name.len()) as u64;
    ((tail ^ lengths).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SLOTS
}

/// A field that is spelled out, with its name by index unless that is 0.
fn put_literal(out: &mut BytesMut, (bits, prefix): (u8, u32), index: usize, name: &[u8], value: &[u8]) {
    put_integer(out, bits, prefix, index);
    if index == 0 {
        put_string(out, name);
    }
    put_string(out, value);
}

fn put_string(out: &mut BytesMut, text: &[u8]) {
    put_integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

/// An integer whose first byte has room for `prefix` bits of it.
fn put_integer(out: &mut BytesMut, bits: u8, prefix: u32, value: usize) {
    let mask = (1 << prefix) - 1;
    if value < mask {
        return out.put_u8(bits | value as u8);
    }
    out.put_u8(bits | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_c_1_integers() {
        for (prefix, value, bytes) in
            [(5, 10, &[0x0a][..]), (5, 1337, &[0x1f, 0x9a, 0x0a]), (8, 42, &[0x2a]), (5, 31, &[0x1f, 0])]
        {
            let mut out = BytesMut::new();
            put_integer(&mut out, 0, prefix, value);
            assert_eq!(out[..], *bytes);
        }
    }
}
