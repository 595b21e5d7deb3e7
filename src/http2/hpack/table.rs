//! The two tables of header fields that an index can name: the one of RFC 7541, and the one a connection builds.

use std::collections::VecDeque;

use crate::http2::fields::FIELD_OVERHEAD;

/// How much dead memory a table carries along, beyond as much as it uses, before it moves its entries together.
const SLACK: usize = 256;

/// The static table, RFC 7541, appendix A. Its first index is 1. Fields of the same name follow each other.
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The dynamic table.
#[derive(Debug)]
pub(super) struct Table {
    /// Oldest first, so that the first index is the last entry.
    entries: VecDeque<Entry>,
    /// Names and values of the entries in their order, without gaps; before them, those of entries that are gone.
    bytes: Vec<u8>,
    /// As RFC 7541, section 4.1 counts it.
    size: usize,
    max_size: usize,
}

/// Where an entry is in the bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    name: usize,
    end: usize,
}

// === impl Table ===

impl Table {
    /// An empty table. Memory is taken as entries come.
    pub(super) fn new(max_size: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: Vec::new(), size: 0, max_size }
    }

    /// What a field counts.
    pub(super) fn size_of(name: &[u8], value: &[u8]) -> usize {
        name.len() + value.len() + FIELD_OVERHEAD
    }

    /// What the entries may count together.
    pub(super) fn max_size(&self) -> usize {
        self.max_size
    }

    /// Name and value of an entry. The newest is the first, 0.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(self.entries.len().checked_sub(index + 1)?)?;
        Some((self.bytes.get(entry.start..entry.name)?, self.bytes.get(entry.name..entry.end)?))
    }

    /// The entry of that name and value.
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> Option<usize> {
        self.entries.iter().rev().position(|entry| {
            // Lengths first: they tell most entries apart without a look at their bytes.
            entry.end - entry.name == value.len()
                && entry.name - entry.start == name.len()
                && self.bytes.get(entry.name..entry.end) == Some(value)
                && self.bytes.get(entry.start..entry.name) == Some(name)
        })
    }

    /// Changes what the entries may count together. The oldest go until that holds.
    pub(super) fn set_max_size(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.evict(0);
    }

    /// Adds an entry; the oldest make room. One that is larger than the table leaves it empty.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = Self::size_of(name, value);
        self.evict(size);
        if size > self.max_size {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry { start, name: start + name.len(), end: self.bytes.len() });
        self.size += size;
    }

    /// Removes the oldest entries until there is room for a new one.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.max_size
            && let Some(gone) = self.entries.pop_front()
        {
            self.size -= gone.end - gone.start + FIELD_OVERHEAD;
        }
        let dead = self.entries.front().map_or(self.bytes.len(), |first| first.start);
        // Only when more is dead than is moved: each byte that comes in pays for at most one that is moved.
        if dead > self.bytes.len() - dead + SLACK || self.entries.is_empty() {
            self.bytes.drain(..dead);
            for entry in &mut self.entries {
                *entry = Entry { start: entry.start - dead, name: entry.name - dead, end: entry.end - dead };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// What the RFC says, without care for memory or time.
    #[derive(Default)]
    struct Model(VecDeque<(Vec<u8>, Vec<u8>)>);

    impl Model {
        fn fit(&mut self, max_size: usize) {
            while self.0.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > max_size {
                self.0.pop_back();
            }
        }
    }

    /// A new entry, or a new size of the table.
    fn step() -> impl Strategy<Value = Result<(Vec<u8>, Vec<u8>), usize>> {
        let entry = |length| (vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..length)).prop_map(Ok);
        prop_oneof![20 => entry(60), 2 => entry(5000), 1 => (0..=4096_usize).prop_map(Err)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn holds_what_the_rfc_says_in_little_memory(steps in vec(step(), 0..300)) {
            let (mut table, mut model) = (Table::new(4096), Model::default());
            for step in steps {
                match step {
                    Ok((name, value)) => {
                        table.insert(&name, &value);
                        model.0.push_front((name, value));
                    }
                    Err(max_size) => table.set_max_size(max_size),
                }
                model.fit(table.max_size());
                prop_assert_eq!(table.entries.len(), model.0.len());
                prop_assert!(table.get(model.0.len()).is_none());
                for (index, (name, value)) in model.0.iter().enumerate() {
                    prop_assert_eq!(table.get(index), Some((&name[..], &value[..])));
                    let found = table.find(name, value).unwrap();
                    prop_assert!(found <= index && model.0[found] == model.0[index]);
                }
                // Twice what is in use and a little, rounded up by the vector.
                prop_assert!(table.bytes.capacity() <= 4 * 4096);
            }
        }
    }
}
