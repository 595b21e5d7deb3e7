//! HPACK, RFC 7541: header fields on the wire.
//!
//! The decoder takes all that the RFC allows. The encoder writes what is short where that is cheap: fields that every
//! call has are put in the table and are a byte from then on, the others are spelled out.

mod decoder;
mod encoder;
mod huffman;
mod names;
mod table;

pub(crate) use self::{
    decoder::{DecodeError, Decoder},
    encoder::Encoder,
};

/// The size of the dynamic table that a connection starts with. We announce no other, and use no more of the peer's.
const MAX_TABLE_SIZE: usize = 4096;

#[cfg(test)]
mod interop;
#[cfg(test)]
mod tests;
