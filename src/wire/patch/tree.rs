//! The message while it is being patched: a tree that is opened only where a patch leads.
//!
//! Operations are carried out on the tree one after the other, so that several patches behave as if each had been
//! applied to the result of the one before; the bytes are written once, at the end.

use std::borrow::Cow;

use bytes::Bytes;

use super::{Literal, Patch, Scalar, encode};
use crate::wire::{
    Error, MAX_DEPTH,
    scan::{self, Value, WireType},
};

/// A message split into its fields.
#[derive(Debug)]
pub(super) struct Node {
    /// The message as it came; the fields are spans of it.
    content: Bytes,
    parts: Vec<Part>,
    depth: usize,
    /// Whether the message is to be written from its parts instead of as it came.
    changed: bool,
    /// The length to be written, once [`Node::measure`] has run.
    len: usize,
}

/// A field: a span of its node's content, unless it was edited.
///
/// Offsets have 32 bits so that a message of many tiny fields does not take up that much more memory than its bytes.
#[derive(Debug)]
struct Part {
    number: u32,
    wire: WireType,
    start: u32,
    /// Where the value begins, for a length-delimited field.
    body: u32,
    end: u32,
    edit: Edit,
}

#[derive(Debug)]
enum Edit {
    /// The field is as it came.
    Keep,
    /// The value was replaced.
    Put(Box<Literal>),
    /// The value is an embedded message that an operation went into, and perhaps changed.
    Open(Box<Node>),
}

// === impl Node ===

impl Node {
    /// Splits a message that is `depth` levels below the root.
    pub(super) fn open(content: Bytes, depth: usize) -> Result<Self, Error> {
        if depth >= MAX_DEPTH {
            return Err(Error::Depth);
        }
        // Checked here once, so that no offset below can be cut off.
        u32::try_from(content.len()).map_err(|_| Error::TooLarge)?;
        // A guess that spares most messages of the CRI from growing the list step by step.
        let mut parts = Vec::with_capacity((content.len() / 32).clamp(2, 32));
        let mut start = 0;
        for field in scan::fields(&content) {
            let scan::Field { number, value, raw } = field?;
            let end = start + raw.len() as u32;
            let body = end - value.as_bytes().map_or(0, <[u8]>::len) as u32;
            parts.push(Part { number, wire: value.wire_type(), start, body, end, edit: Edit::Keep });
            start = end;
        }
        Ok(Self { content, parts, depth, changed: false, len: 0 })
    }

    /// Calls `f` for every occurrence of the message at `path`, the last one first.
    ///
    /// The order is for those who set a field: its last occurrence wins, so they want to see that one first.
    pub(super) fn visit(
        &mut self,
        path: &[u32],
        f: &mut dyn FnMut(&mut Node) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some((&number, rest)) = path.split_first() else {
            return f(self);
        };
        for part in self.parts.iter_mut().rev().filter(|part| part.is(number, WireType::Len)) {
            part.open(&self.content, self.depth)?.visit(rest, f)?;
        }
        Ok(())
    }

    /// The last occurrence of the message at `path`; what is missing is created.
    pub(super) fn last(&mut self, path: &[u32]) -> Result<&mut Node, Error> {
        let Some((&number, rest)) = path.split_first() else {
            return Ok(self);
        };
        if !self.parts.iter().any(|part| part.is(number, WireType::Len)) {
            self.push(number, Literal::Len(Bytes::new()));
        }
        let part = self.parts.iter_mut().rfind(|part| part.is(number, WireType::Len));
        // There is one, so the error is never seen.
        part.ok_or(Error::Path)?.open(&self.content, self.depth)?.last(rest)
    }

    /// Adds a field at the end.
    pub(super) fn push(&mut self, number: u32, value: Literal) {
        self.changed = true;
        let wire = value.wire_type();
        self.parts.push(Part { number, wire, start: 0, body: 0, end: 0, edit: Edit::Put(Box::new(value)) });
    }

    /// Removes all fields with this number, whatever their type.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), Error> {
        let hits = self.find(|part, _| Ok(part.number == number))?;
        self.discard(&hits);
        Ok(())
    }

    /// Removes those length-delimited fields with this number which `keep` does not want.
    pub(super) fn retain(
        &mut self,
        number: u32,
        keep: &dyn Fn(&[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let hits =
            self.find(|part, content| Ok(part.is(number, WireType::Len) && !keep(&part.payload(content))?))?;
        self.discard(&hits);
        Ok(())
    }

    /// Removes those elements of a repeated scalar which `keep` does not want.
    pub(super) fn retain_scalars(
        &mut self,
        number: u32,
        scalar: Scalar,
        keep: &dyn Fn(u64) -> bool,
    ) -> Result<(), Error> {
        let mut changed = false;
        let hits = self.find(|part, content| {
            if part.is(number, scalar.wire_type()) {
                return Ok(!part.scalar(content).and_then(encode::bits).is_none_or(keep));
            }
            if !part.is(number, WireType::Len) {
                return Ok(false);
            }
            let packed = part.payload(content);
            let kept = encode::filter(scalar, &packed, keep)?;
            if kept.len() == packed.len() {
                return Ok(false);
            }
            changed = true;
            let emptied = kept.is_empty();
            part.edit = Edit::Put(Box::new(kept.into()));
            Ok(emptied)
        })?;
        self.changed |= changed;
        self.discard(&hits);
        Ok(())
    }

    /// Runs the patch that `patch` gives back for each length-delimited field with this number.
    pub(super) fn each(&mut self, number: u32, patch: &dyn Fn(&[u8]) -> Option<Patch>) -> Result<(), Error> {
        for part in self.parts.iter_mut().filter(|part| part.is(number, WireType::Len)) {
            if let Some(patch) = patch(&part.payload(&self.content))
                && !patch.is_empty()
            {
                patch.run(part.open(&self.content, self.depth)?)?;
            }
        }
        Ok(())
    }

    /// Puts what `change` gives back in the place of each length-delimited field with this number.
    pub(super) fn replace(&mut self, number: u32, change: &super::Replacement) -> Result<(), Error> {
        for part in self.parts.iter_mut().filter(|part| part.is(number, WireType::Len)) {
            let payload = part.payload(&self.content);
            if let Some(new) = change(&payload)?
                && *new != *payload
            {
                part.edit = Edit::Put(Box::new(Literal::Len(new)));
                self.changed = true;
            }
        }
        Ok(())
    }

    /// Sets the singular field `number` of the message at `path`.
    pub(super) fn set(&mut self, path: &[u32], number: u32, value: &Literal) -> Result<(), Error> {
        let mut done = false;
        self.visit(path, &mut |node| {
            let hits = node.find(|part, _| Ok(part.is(number, value.wire_type())))?;
            let Some(index) = node.settle(&hits, &mut done) else {
                return Ok(());
            };
            if let Some(part) = node.parts.get_mut(index)
                && !part.holds(&node.content, value)
            {
                part.edit = Edit::Put(Box::new(value.clone()));
                node.changed = true;
            }
            Ok(())
        })?;
        if !done {
            self.last(path)?.push(number, value.clone());
        }
        Ok(())
    }

    /// Sets a key of the map `number` in the message at `path`.
    pub(super) fn set_entry(
        &mut self,
        path: &[u32],
        number: u32,
        key: &Bytes,
        value: &Literal,
    ) -> Result<(), Error> {
        let mut done = false;
        self.visit(path, &mut |node| {
            let hits = node.find(|part, content| {
                Ok(part.is(number, WireType::Len) && scan::entry_key(&part.payload(content))? == key)
            })?;
            match node.settle(&hits, &mut done).and_then(|index| node.parts.get_mut(index)) {
                // Only the value is set, so that anything else in the entry stays as it is.
                Some(part) => part.open(&node.content, node.depth)?.set(&[], 2, value),
                None => Ok(()),
            }
        })?;
        if !done {
            let mut entry = Vec::new();
            encode::field(&mut entry, 1, &Literal::Len(key.clone()));
            encode::field(&mut entry, 2, value);
            self.last(path)?.push(number, entry.into());
        }
        Ok(())
    }

    /// The message with all changes; the same buffer if there are none.
    pub(super) fn finish(mut self) -> Bytes {
        if self.measure() { self.encode().into() } else { self.content }
    }

    /// The indices of the parts that `test` holds for.
    fn find(
        &mut self,
        mut test: impl FnMut(&mut Part, &Bytes) -> Result<bool, Error>,
    ) -> Result<Vec<usize>, Error> {
        let mut hits = Vec::new();
        for (index, part) in self.parts.iter_mut().enumerate() {
            if test(part, &self.content)? {
                hits.push(index);
            }
        }
        Ok(hits)
    }

    /// Removes the parts at the given indices, which are in order.
    fn discard(&mut self, hits: &[usize]) {
        if hits.is_empty() {
            return;
        }
        self.changed = true;
        let mut hits = hits.iter().peekable();
        let mut index = 0;
        self.parts.retain(|_| {
            let keep = hits.next_if_eq(&&index).is_none();
            index += 1;
            keep
        });
    }

    /// Of the occurrences of a field that is about to be set, keeps the very last one and gives back where it is now.
    fn settle(&mut self, hits: &[usize], done: &mut bool) -> Option<usize> {
        let (last, earlier) = hits.split_last()?;
        if *done {
            self.discard(hits);
            return None;
        }
        *done = true;
        self.discard(earlier);
        Some(last - earlier.len())
    }

    /// Works out whether the message changed, and how long it is now.
    fn measure(&mut self) -> bool {
        for part in &mut self.parts {
            if let Edit::Open(node) = &mut part.edit {
                self.changed |= node.measure();
            }
        }
        self.len = match self.changed {
            true => self.parts.iter().map(Part::len).sum(),
            false => self.content.len(),
        };
        self.changed
    }

    /// The message, which was measured before, as it is now.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        // Neighbours that stay as they are get copied in one go.
        let (mut start, mut end) = (0, 0);
        for part in &self.parts {
            let kept = part.is_kept();
            if !kept || part.start != end {
                out.extend_from_slice(span(&self.content, start, end));
                (start, end) = (part.start, part.start);
            }
            match &part.edit {
                _ if kept => end = part.end,
                Edit::Put(value) => encode::field(out, part.number, value),
                Edit::Open(node) => {
                    encode::header(out, part.number, node.len);
                    node.write(out);
                }
                Edit::Keep => {}
            }
        }
        out.extend_from_slice(span(&self.content, start, end));
    }
}

// === impl Part ===

impl Part {
    fn is(&self, number: u32, wire: WireType) -> bool {
        self.number == number && self.wire == wire
    }

    /// Whether the field is written as it came.
    fn is_kept(&self) -> bool {
        match &self.edit {
            Edit::Keep => true,
            Edit::Put(_) => false,
            Edit::Open(node) => !node.changed,
        }
    }

    /// The embedded message, to be changed.
    fn open(&mut self, content: &Bytes, depth: usize) -> Result<&mut Node, Error> {
        let (inner, changed) = match &self.edit {
            Edit::Keep => (content.slice(self.body as usize..self.end as usize), false),
            // There is no span to fall back on, so the message is written even if nothing changes in it.
            Edit::Put(value) => (value.as_bytes(), true),
            Edit::Open(_) => (Bytes::new(), false),
        };
        if !matches!(self.edit, Edit::Open(_)) {
            let node = Node::open(inner, depth + 1)?;
            self.edit = Edit::Open(Box::new(Node { changed, ..node }));
        }
        match &mut self.edit {
            Edit::Open(node) => Ok(node),
            // It was opened just now, so the error is never seen.
            Edit::Keep | Edit::Put(_) => Err(Error::Path),
        }
    }

    /// The value of a length-delimited field as it is now; nothing for other fields.
    fn payload<'a>(&'a mut self, content: &'a [u8]) -> Cow<'a, [u8]> {
        match &mut self.edit {
            Edit::Keep => Cow::Borrowed(span(content, self.body, self.end)),
            Edit::Put(value) => Cow::Borrowed(value.as_value().as_bytes().unwrap_or_default()),
            Edit::Open(node) => match node.measure() {
                true => Cow::Owned(node.encode()),
                false => Cow::Borrowed(&node.content),
            },
        }
    }

    /// The value of a field that is not length-delimited.
    fn scalar<'a>(&'a self, content: &'a [u8]) -> Option<Value<'a>> {
        match &self.edit {
            Edit::Put(value) => Some(value.as_value()),
            Edit::Keep | Edit::Open(_) => {
                scan::fields(span(content, self.start, self.end)).next()?.ok().map(|field| field.value)
            }
        }
    }

    fn holds(&mut self, content: &[u8], value: &Literal) -> bool {
        match value {
            Literal::Len(bytes) => *self.payload(content) == **bytes,
            value => self.scalar(content) == Some(value.as_value()),
        }
    }

    /// The length to be written.
    fn len(&self) -> usize {
        match &self.edit {
            Edit::Put(value) => encode::field_len(self.number, value),
            Edit::Open(node) if node.changed => encode::header_len(self.number, node.len) + node.len,
            Edit::Keep | Edit::Open(_) => (self.end - self.start) as usize,
        }
    }
}

fn span(content: &[u8], start: u32, end: u32) -> &[u8] {
    content.get(start as usize..end as usize).unwrap_or_default()
}
