//! Header fields in order, in one piece of memory.

use std::fmt;

/// Memory beyond this is not kept for the next header list.
const KEPT: usize = 64 * 1024;

/// What SETTINGS_MAX_HEADER_LIST_SIZE counts for a field besides its name and value.
pub(crate) const FIELD_OVERHEAD: usize = 32;

/// A list of header fields. They may be secrets, so they are not printed.
#[derive(Default, Clone, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Each name followed by its value.
    bytes: Vec<u8>,
    ends: Vec<Ends>,
}

/// One header field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Never to be put in a table.
    pub(crate) sensitive: bool,
}

/// Where a field ends in the bytes. It starts where the one before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    name: usize,
    value: usize,
    sensitive: bool,
}

// === impl Fields ===

impl Fields {
    /// Empties the list. Its memory is kept, unless it is large.
    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() + self.ends.capacity() * size_of::<Ends>() > KEPT {
            *self = Self::default();
        }
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a field.
    pub(crate) fn push(&mut self, field: Field<'_>) {
        self.bytes.extend_from_slice(field.name);
        let name = self.bytes.len();
        self.bytes.extend_from_slice(field.value);
        self.ends.push(Ends { name, value: self.bytes.len(), sensitive: field.sensitive });
    }

    /// The fields in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Field<'_>> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |ends| {
            let name = self.bytes.get(start..ends.name).unwrap_or_default();
            let value = self.bytes.get(ends.name..ends.value).unwrap_or_default();
            start = ends.value;
            Field { name, value, sensitive: ends.sensitive }
        })
    }

    /// The value of the first field of that name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.name == name).map(|field| field.value)
    }

    /// The size as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.ends.len() * FIELD_OVERHEAD
    }

    /// Appends a field that `write` writes: its name, whose end it returns, and its value.
    ///
    /// The bytes given to it are those of the whole list. The field is gone again if it says `None`.
    pub(super) fn push_with(
        &mut self,
        sensitive: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Option<usize>,
    ) -> Option<Field<'_>> {
        let start = self.bytes.len();
        let Some(name) = write(&mut self.bytes) else {
            self.bytes.truncate(start);
            return None;
        };
        self.ends.push(Ends { name, value: self.bytes.len(), sensitive });
        Some(Field { name: self.bytes.get(start..name)?, value: self.bytes.get(name..)?, sensitive })
    }

    /// Takes the last field away.
    pub(super) fn pop(&mut self) {
        self.ends.pop();
        self.bytes.truncate(self.ends.last().map_or(0, |ends| ends.value));
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

// === impl Field ===

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes", self.name.escape_ascii(), self.value.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'a>(name: &'a str, value: &'a str) -> Field<'a> {
        Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false }
    }

    #[test]
    fn keeps_order_and_finds_the_first() {
        let mut fields = Fields::default();
        assert!(fields.iter().next().is_none());
        let list =
            [field("a", "1"), field("b", ""), field("", "2"), Field { sensitive: true, ..field("a", "3") }];
        list.iter().for_each(|field| fields.push(*field));
        assert_eq!(fields.iter().collect::<Vec<_>>(), list);
        assert_eq!(fields.get(b"a"), Some(&b"1"[..]));
        assert_eq!(fields.get(b"b"), Some(&b""[..]));
        assert_eq!(fields.get(b"c"), None);
        assert_eq!(fields.size(), 6 + 4 * 32);
        fields.pop();
        assert_eq!(fields.iter().collect::<Vec<_>>(), list[..3]);
        fields.clear();
        assert!(fields.iter().next().is_none());
        fields.pop();
        assert_eq!(fields, Fields::default());
    }

    #[test]
    fn lets_go_of_large_memory_only() {
        let mut fields = Fields::default();
        fields.push(field("a", "1"));
        let kept = fields.bytes.capacity();
        fields.clear();
        assert_eq!(fields.bytes.capacity(), kept);
        fields.push(field("a", &"1".repeat(KEPT)));
        fields.clear();
        assert_eq!(fields.bytes.capacity(), 0);
    }
}
