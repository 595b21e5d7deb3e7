//! Changes to a message, given as a list of operations at paths.
//!
//! Patches are values: features make them without knowing of each other, [`Patch::then`] joins them, and
//! [`Patch::apply`] carries out all of them on one scan of the message. The result is the same, byte for byte, as that
//! of applying one patch after the other.
//!
//! A changed message keeps all its other fields verbatim and in order. Only the lengths of the messages around a
//! change are written anew.

mod encode;
mod tree;

use std::{fmt, sync::Arc};

use bytes::Bytes;

use self::tree::Node;
use super::{
    Error, MAX_FIELD,
    scan::{self, Value, WireType},
};

/// A list of changes to a message.
///
/// ```
/// use crisp::wire::{Patch, entry, last};
///
/// // In a ListContainersResponse: hide a label, and explain each container that has it.
/// let patch = Patch::new().each([1], |container| {
///     let spec = entry(container, [8], "spec").ok()??;
///     let size = format!("{} bytes", spec.len());
///     Some(Patch::new().remove_entry([8], "spec").set_entry([9], "spec-size", size))
/// });
///
/// // In an ImageStatusResponse: the image is pinned.
/// let pin = Patch::new().set([1, 8], true);
/// assert_eq!(last(&pin.apply(&Default::default())?, [1, 8])?.and_then(|v| v.as_u64()), Some(1));
/// # assert!(patch.apply(&Default::default())?.is_empty());
/// # Ok::<(), crisp::wire::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Patch {
    ops: Vec<Op>,
}

/// A value to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// Any integer, a bool or an enum.
    Varint(u64),
    /// `fixed64`, `sfixed64` or the bits of a `double`.
    Fixed64(u64),
    /// A string, bytes or an encoded message.
    Len(Bytes),
    /// `fixed32`, `sfixed32` or the bits of a `float`.
    Fixed32(u32),
}

/// How the elements of a repeated scalar are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// Any integer, a bool or an enum.
    Varint,
    /// `fixed64`, `sfixed64` or `double`.
    Fixed64,
    /// `fixed32`, `sfixed32` or `float`.
    Fixed32,
}

/// One change, at the field that the path leads to.
#[derive(Debug, Clone)]
struct Op {
    path: Vec<u32>,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    Set(Literal),
    Remove,
    Append(Literal),
    Retain(Func<Keep>),
    RetainScalars(Scalar, Func<KeepScalar>),
    SetEntry(Bytes, Literal),
    RemoveEntry(Bytes),
    Each(Func<Change>),
    Replace(Func<Replacement>),
}

/// Whether an element stays.
type Keep = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Whether a scalar stays, by its bits.
type KeepScalar = dyn Fn(u64) -> bool + Send + Sync;

/// What is to be changed in an element.
type Change = dyn Fn(&[u8]) -> Option<Patch> + Send + Sync;

/// What takes the place of an element, if anything does.
type Replacement = dyn Fn(&[u8]) -> Result<Option<Bytes>, Error> + Send + Sync;

/// A closure that can be cloned and printed.
struct Func<F: ?Sized>(Arc<F>);

// === impl Patch ===

impl Patch {
    /// A patch that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a singular field.
    ///
    /// Afterwards it occurs exactly once: where its last occurrence was, or else at the end of its message.
    pub fn set(self, path: impl AsRef<[u32]>, value: impl Into<Literal>) -> Self {
        self.op(path, Action::Set(value.into()))
    }

    /// Removes every occurrence of a field. The messages around it stay, even if they are empty now.
    pub fn remove(self, path: impl AsRef<[u32]>) -> Self {
        self.op(path, Action::Remove)
    }

    /// Appends an element to a repeated field. Scalars are written unpacked, which decoders accept beside packed ones.
    pub fn append(self, path: impl AsRef<[u32]>, element: impl Into<Literal>) -> Self {
        self.op(path, Action::Append(element.into()))
    }

    /// Keeps only those elements of a repeated string, bytes or message for which `keep` holds.
    pub fn retain(
        self,
        path: impl AsRef<[u32]>,
        keep: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.op(path, Action::Retain(Func(Arc::new(keep))))
    }

    /// Keeps only those elements of a repeated scalar, packed or not, for which `keep` holds.
    ///
    /// `keep` sees the bits as they are on the wire.
    pub fn retain_scalars(
        self,
        path: impl AsRef<[u32]>,
        scalar: Scalar,
        keep: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.op(path, Action::RetainScalars(scalar, Func(Arc::new(keep))))
    }

    /// Sets a key of the map at `path`. Afterwards the key occurs exactly once, by the rule of [`Patch::set`].
    pub fn set_entry(
        self,
        path: impl AsRef<[u32]>,
        key: impl AsRef<[u8]>,
        value: impl Into<Literal>,
    ) -> Self {
        self.op(path, Action::SetEntry(Bytes::copy_from_slice(key.as_ref()), value.into()))
    }

    /// Removes a key of the map at `path`.
    pub fn remove_entry(self, path: impl AsRef<[u32]>, key: impl AsRef<[u8]>) -> Self {
        self.op(path, Action::RemoveEntry(Bytes::copy_from_slice(key.as_ref())))
    }

    /// Patches the elements of a repeated message: `patch` sees the bytes of each, as earlier changes left them, and
    /// gives back what to change in it.
    pub fn each(
        self,
        path: impl AsRef<[u32]>,
        patch: impl Fn(&[u8]) -> Option<Patch> + Send + Sync + 'static,
    ) -> Self {
        self.op(path, Action::Each(Func(Arc::new(patch))))
    }

    /// Replaces elements of a repeated string, bytes or message: `change` sees the bytes of each, as earlier changes left
    /// them, and gives back those that take their place. For long lists that is quicker than [`Patch::each`].
    pub fn replace(
        self,
        path: impl AsRef<[u32]>,
        change: impl Fn(&[u8]) -> Result<Option<Bytes>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.op(path, Action::Replace(Func(Arc::new(change))))
    }

    /// Carries out `patch` inside of the singular message at `path`.
    pub fn within(mut self, path: impl AsRef<[u32]>, patch: Patch) -> Self {
        self.ops.extend(
            patch
                .ops
                .into_iter()
                .map(|op| Op { path: [path.as_ref(), &op.path].concat(), action: op.action }),
        );
        self
    }

    /// Carries out `next` after this patch.
    pub fn then(mut self, mut next: Patch) -> Self {
        self.ops.append(&mut next.ops);
        self
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Applies the patch to a message. If that changes nothing, the result is the same buffer.
    pub fn apply(&self, message: &Bytes) -> Result<Bytes, Error> {
        if self.is_empty() {
            return Ok(message.clone());
        }
        let mut root = Node::open(message.clone(), 0)?;
        self.run(&mut root)?;
        Ok(root.finish())
    }

    fn run(&self, node: &mut Node) -> Result<(), Error> {
        self.ops.iter().try_for_each(|op| op.run(node))
    }

    fn op(mut self, path: impl AsRef<[u32]>, action: Action) -> Self {
        self.ops.push(Op { path: path.as_ref().to_vec(), action });
        self
    }
}

impl FromIterator<Patch> for Patch {
    fn from_iter<I: IntoIterator<Item = Patch>>(patches: I) -> Self {
        patches.into_iter().fold(Patch::new(), Patch::then)
    }
}

// === impl Op ===

impl Op {
    fn run(&self, node: &mut Node) -> Result<(), Error> {
        if self.path.iter().any(|number| !(1..=MAX_FIELD).contains(number)) {
            return Err(Error::Path);
        }
        let (&leaf, parents) = self.path.split_last().ok_or(Error::Path)?;
        match &self.action {
            Action::Remove => node.visit(parents, &mut |node| node.remove(leaf)),
            Action::Retain(keep) => {
                let keep = |element: &[u8]| Ok((keep.0)(element));
                node.visit(parents, &mut |node| node.retain(leaf, &keep))
            }
            Action::RemoveEntry(key) => {
                let keep = |entry: &[u8]| Ok(scan::entry_key(entry)? != key);
                node.visit(parents, &mut |node| node.retain(leaf, &keep))
            }
            Action::RetainScalars(scalar, keep) => {
                node.visit(parents, &mut |node| node.retain_scalars(leaf, *scalar, &*keep.0))
            }
            Action::Each(patch) => node.visit(parents, &mut |node| node.each(leaf, &*patch.0)),
            Action::Replace(change) => node.visit(parents, &mut |node| node.replace(leaf, &*change.0)),
            Action::Append(element) => {
                node.last(parents)?.push(leaf, element.clone());
                Ok(())
            }
            Action::Set(value) => node.set(parents, leaf, value),
            Action::SetEntry(key, value) => node.set_entry(parents, leaf, key, value),
        }
    }
}

// === impl Literal ===

impl Literal {
    fn wire_type(&self) -> WireType {
        self.as_value().wire_type()
    }

    fn as_bytes(&self) -> Bytes {
        match self {
            Self::Len(bytes) => bytes.clone(),
            _ => Bytes::new(),
        }
    }

    fn as_value(&self) -> Value<'_> {
        match self {
            Self::Varint(number) => Value::Varint(*number),
            Self::Fixed64(bits) => Value::Fixed64(*bits),
            Self::Len(bytes) => Value::Len(bytes),
            Self::Fixed32(bits) => Value::Fixed32(*bits),
        }
    }
}

/// Implements `From` for the types whose values become a variant by the given expression.
macro_rules! literal_from {
    ($($from:ty => |$value:ident| $literal:expr;)*) => {
        $(impl From<$from> for Literal {
            fn from($value: $from) -> Self {
                $literal
            }
        })*
    };
}

literal_from! {
    bool => |value| Self::Varint(value.into());
    u32 => |value| Self::Varint(value.into());
    u64 => |value| Self::Varint(value);
    // Negative numbers are sign-extended to 64 bits on the wire, whatever the width of the field.
    i32 => |value| Self::Varint(i64::from(value).cast_unsigned());
    i64 => |value| Self::Varint(value.cast_unsigned());
    &str => |value| Self::Len(Bytes::copy_from_slice(value.as_bytes()));
    &[u8] => |value| Self::Len(Bytes::copy_from_slice(value));
    String => |value| Self::Len(value.into());
    Vec<u8> => |value| Self::Len(value.into());
    Bytes => |value| Self::Len(value);
}

// === impl Scalar ===

impl Scalar {
    fn wire_type(self) -> WireType {
        match self {
            Self::Varint => WireType::Varint,
            Self::Fixed64 => WireType::Fixed64,
            Self::Fixed32 => WireType::Fixed32,
        }
    }
}

// === impl Func ===

impl<F: ?Sized> Clone for Func<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: ?Sized> fmt::Debug for Func<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<closure>")
    }
}

#[cfg(test)]
mod tests;
