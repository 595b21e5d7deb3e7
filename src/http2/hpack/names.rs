//! The names that the encoder knows.

use super::table::STATIC;

/// Names whose values come again and again: a field of them is put in the table.
///
/// What is of one call only (deadlines, identifiers, messages) would push these out.
const KEPT: [&str; 8] = [
    ":authority",
    ":path",
    "content-type",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-status",
    "te",
    "user-agent",
];

/// What the encoder knows of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    name: &'static str,
    /// The first index of the static table with it, or 0.
    pub(super) index: u8,
    /// How many entries of the static table have it.
    pub(super) entries: u8,
    /// Whether its fields are put in the table.
    pub(super) kept: bool,
}

/// All names, each at its hash, or after it if that is taken.
static NAMES: [Name; SLOTS] = names();

const SLOTS: usize = 256;

/// A place without a name, and what is known of any other name.
const UNKNOWN: Name = Name { name: "", index: 0, entries: 0, kept: false };

/// Finds a name.
pub(super) fn find(name: &[u8]) -> Name {
    let mut slot = hash(name);
    loop {
        let found = NAMES[slot];
        if found.name.is_empty() || found.name.as_bytes() == name {
            return found;
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// Short, and with factors for which every name has a place of its own.
const fn hash(name: &[u8]) -> usize {
    let [first, .., last] = name else { return 0 };
    let middle = name[name.len() / 2] as usize;
    (name.len() * 17 + *first as usize * 9 + *last as usize * 11 + middle * 5) % SLOTS
}

const fn names() -> [Name; SLOTS] {
    let mut names = [UNKNOWN; SLOTS];
    let mut index = 0;
    while index < STATIC.len() {
        let slot = place(&names, STATIC[index].0);
        if names[slot].entries == 0 {
            names[slot] = Name { name: STATIC[index].0, index: index as u8 + 1, entries: 0, kept: false };
        }
        names[slot].entries += 1;
        index += 1;
    }
    let mut kept = 0;
    while kept < KEPT.len() {
        let slot = place(&names, KEPT[kept]);
        names[slot] = Name { name: KEPT[kept], kept: true, ..names[slot] };
        kept += 1;
    }
    names
}

/// Where a name is or has to be.
const fn place(names: &[Name; SLOTS], name: &str) -> usize {
    let mut slot = hash(name.as_bytes());
    while !names[slot].name.is_empty() && !equal(names[slot].name, name) {
        slot = (slot + 1) % SLOTS;
    }
    slot
}

const fn equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_knows_and_nothing_else() {
        for (index, (name, _)) in STATIC.iter().enumerate() {
            let found = find(name.as_bytes());
            let first = usize::from(found.index) - 1;
            assert_eq!(found.name, *name);
            assert_eq!(found.kept, KEPT.contains(name));
            assert!((first..first + usize::from(found.entries)).contains(&index));
            assert_eq!(STATIC[first].0, *name);
        }
        for name in KEPT {
            assert!(find(name.as_bytes()).kept, "{name}");
        }
        assert_eq!(find(b"te"), Name { name: "te", index: 0, entries: 0, kept: true });
        for name in ["", "t", "grpc-timeout", "grpc-message", "x-cache", ":statu"] {
            assert_eq!(find(name.as_bytes()), UNKNOWN, "{name}");
        }
    }

    #[test]
    fn every_name_has_a_place_of_its_own() {
        for (slot, name) in NAMES.iter().enumerate().filter(|(_, name)| !name.name.is_empty()) {
            assert_eq!(hash(name.name.as_bytes()), slot, "{name:?}");
        }
    }
}
