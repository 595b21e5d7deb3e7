//! Reading and changing protobuf messages without decoding them.
//!
//! crisp never decodes a message and encodes it again, because every decoder drops or reorders something: unknown
//! fields, overlong encodings, the order of fields. Instead [`scan`] walks over the spans of a message, and a
//! [`Patch`] replaces some of them and copies all others verbatim. A patch that changes nothing gives back the very
//! same [`Bytes`](bytes::Bytes).
//!
//! ```
//! use bytes::Bytes;
//! use crisp::wire::{Patch, entry};
//!
//! // CreateContainerRequest { pod_sandbox_id: "p" } gets config(2).labels(9)["a"] = "b".
//! let request = Bytes::from_static(b"\x0a\x01p");
//! let patched = Patch::new().set_entry([2, 9], "a", "b").apply(&request)?;
//! assert_eq!(entry(&patched, [2, 9], "a")?, Some(&b"b"[..]));
//! assert!(patched.starts_with(&request));
//! # Ok::<(), crisp::wire::Error>(())
//! ```
//!
//! # Paths
//!
//! A path is a list of field numbers. Every field on it but the last is taken for a *singular* message, so that
//! several occurrences of it count as one, as the protobuf specification wants it: decoders merge them, which is the
//! same as decoding the concatenation. The elements of a repeated message are reached with [`Patch::each`].
//!
//! # Current limitations
//!
//! There is no schema here. A field whose wire type does not fit what is asked for is an unknown field, as it is to
//! Go's decoder, and stays as it is. Setting one member of a `oneof` does not clear the others, paths do not lead into
//! groups (those are copied verbatim), and the keys of maps are strings.

#[cfg(test)]
mod model;
pub mod patch;
pub mod scan;

pub use patch::{Literal, Patch, Scalar};
pub use scan::{Counter, Field, Fields, Value, count, entry, entry_key, fields, last};

/// How deep messages and groups may be nested, as in the decoders of C++ and prost.
pub const MAX_DEPTH: usize = 100;

/// The highest field number that protobuf allows.
pub const MAX_FIELD: u32 = (1 << 29) - 1;

/// Why a message could not be read or patched. The caller forwards the original bytes then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message ends inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint does not fit into 64 bits.
    #[error("a varint does not fit into 64 bits")]
    Varint,
    /// A tag has a field number or a wire type that does not exist.
    #[error("{0:#x} is not a valid tag")]
    Tag(u64),
    /// A group ends that was not begun, or with another field number.
    #[error("the end of group {0} has no beginning")]
    Group(u32),
    /// Messages or groups are nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
    /// The message is larger than 4 GiB, which no protobuf message may be.
    #[error("the message is larger than 4 GiB")]
    TooLarge,
    /// The path of a patch is empty or holds an invalid field number: a mistake in crisp, not in the message.
    #[error("the path of a patch is empty or holds an invalid field number")]
    Path,
}
