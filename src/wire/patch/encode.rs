//! Writing fields, in the shortest encoding.

use super::{Literal, Scalar};
use crate::wire::{
    Error,
    scan::{self, Value, WireType},
};

/// Writes a field.
pub(super) fn field(out: &mut Vec<u8>, number: u32, value: &Literal) {
    tag(out, number, value.wire_type());
    match value {
        Literal::Varint(number) => varint(out, *number),
        Literal::Fixed64(bits) => out.extend_from_slice(&bits.to_le_bytes()),
        Literal::Fixed32(bits) => out.extend_from_slice(&bits.to_le_bytes()),
        Literal::Len(bytes) => {
            varint(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }
}

/// The length of what [`field`] writes.
pub(super) fn field_len(number: u32, value: &Literal) -> usize {
    match value {
        Literal::Varint(value) => tag_len(number) + varint_len(*value),
        Literal::Fixed64(_) => tag_len(number) + 8,
        Literal::Fixed32(_) => tag_len(number) + 4,
        Literal::Len(bytes) => header_len(number, bytes.len()) + bytes.len(),
    }
}

/// Writes the tag and the length of a length-delimited field.
pub(super) fn header(out: &mut Vec<u8>, number: u32, len: usize) {
    tag(out, number, WireType::Len);
    varint(out, len as u64);
}

/// The length of what [`header`] writes.
pub(super) fn header_len(number: u32, len: usize) -> usize {
    tag_len(number) + varint_len(len as u64)
}

/// Those packed scalars that `keep` wants, each as it came.
pub(super) fn filter(
    scalar: Scalar,
    mut packed: &[u8],
    keep: &dyn Fn(u64) -> bool,
) -> Result<Vec<u8>, Error> {
    let mut kept = Vec::with_capacity(packed.len());
    while !packed.is_empty() {
        let before = packed;
        // The field number is needed for groups only, and those are no scalars.
        let value = scan::value(&mut packed, 0, scalar.wire_type())?;
        if bits(value).is_none_or(keep) {
            kept.extend_from_slice(before.get(..before.len() - packed.len()).unwrap_or_default());
        }
    }
    Ok(kept)
}

/// The bits of a scalar.
pub(super) fn bits(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Varint(bits) | Value::Fixed64(bits) => Some(bits),
        Value::Fixed32(bits) => Some(bits.into()),
        Value::Len(_) | Value::Group(_) => None,
    }
}

fn tag(out: &mut Vec<u8>, number: u32, wire: WireType) {
    varint(out, u64::from(number) << 3 | wire as u64);
}

fn tag_len(number: u32) -> usize {
    varint_len(u64::from(number) << 3)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_len(value: u64) -> usize {
    // One byte for every seven bits begun; zero takes one byte as well.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
