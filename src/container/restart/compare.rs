//! What is different between two records.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::difference::{Difference, MAX_DIFFERENCES, printable};
use crate::container::record::{Fields, Node, Record};

/// A field that came into records with a version, and what a record from before it means by not having it.
///
/// Most new fields need no line here: records leave out what is false, zero or empty, so an older record says by itself
/// what a new field's default is. A line is for a default that is written.
struct Since {
    version: u64,
    path: &'static [&'static str],
    default: fn() -> Node,
}

/// The fields that came after version 1.
const DEFAULTS: &[Since] = &[];

/// Lists of words, which are compared one by one. Other lists are sets, shown whole.
const WORDS: [&str; 2] = ["command", "args"];

/// Everything in which two records of a container differ: the image first, then by name; at most [`MAX_DIFFERENCES`].
///
/// Both should be made with the same key and in the same form ([`Record::of`]). Where they are not, hashes cannot be
/// compared, and only what was added and removed is told.
pub fn differences(old: &Record, new: &Record) -> Vec<Difference> {
    compare(old, new, DEFAULTS)
}

fn compare(old: &Record, new: &Record, defaults: &[Since]) -> Vec<Difference> {
    let mut found = Found { list: Vec::new(), same_key: old.key() == new.key() };
    if old.image() != new.image() {
        let image = |record: &Record| Node::Text(record.image().to_owned());
        found.add("image", Some(&image(old)), Some(&image(new)));
    }
    let (before, after) = (completed(old, defaults), completed(new, defaults));
    for name in names(&before, &after) {
        // The form of a record is not a part of the container.
        if name == Record::CLEAR {
            continue;
        }
        let (old, new) = (before.get(name), after.get(name));
        match (old, new) {
            // Of a section that is there on one side only, each part is new.
            (Some(Node::Map(all)), None) => found.maps(name, all, &Fields::new()),
            (None, Some(Node::Map(all))) => found.maps(name, &Fields::new(), all),
            _ if WORDS.contains(&name.as_str()) => found.words(name, words(old), words(new)),
            _ => found.nodes(name, old, new),
        }
    }
    found.list
}

/// A record with the defaults of the fields that are newer than it.
fn completed<'a>(record: &'a Record, defaults: &[Since]) -> Cow<'a, Fields> {
    let mut fields = Cow::Borrowed(record.fields());
    for since in defaults.iter().filter(|since| since.version > record.version()) {
        complete(fields.to_mut(), since.path, since.default);
    }
    fields
}

fn complete(fields: &mut Fields, path: &[&str], default: fn() -> Node) {
    match path {
        [] => {}
        [last] => {
            fields.entry((*last).to_owned()).or_insert_with(default);
        }
        [parent, rest @ ..] => {
            let inner = fields.entry((*parent).to_owned()).or_insert_with(|| Node::Map(Fields::new()));
            // Something else there is not as crisp writes it: compared as it is.
            if let Node::Map(inner) = inner {
                complete(inner, rest, default);
            }
        }
    }
}

/// The names in either, sorted.
fn names<'a>(old: &'a Fields, new: &'a Fields) -> BTreeSet<&'a String> {
    old.keys().chain(new.keys()).collect()
}

fn words(node: Option<&Node>) -> &[Node] {
    match node {
        Some(Node::List(words)) => words,
        _ => &[],
    }
}

struct Found {
    list: Vec<Difference>,
    same_key: bool,
}

// === impl Found ===

impl Found {
    fn add(&mut self, path: &str, old: Option<&Node>, new: Option<&Node>) {
        if self.list.len() < MAX_DIFFERENCES {
            self.list.push(Difference::new(path, old, new));
        }
    }

    fn nodes(&mut self, path: &str, old: Option<&Node>, new: Option<&Node>) {
        match (old, new) {
            (Some(Node::Map(old)), Some(Node::Map(new))) => self.maps(path, old, new),
            // Of two forms, or under two keys, nobody can tell.
            (Some(Node::Hash(_)), Some(Node::Hash(_))) if !self.same_key => {}
            (Some(Node::Hash(_)), Some(Node::Text(_))) | (Some(Node::Text(_)), Some(Node::Hash(_))) => {}
            (old, new) if old == new => {}
            (old, new) => self.add(path, old, new),
        }
    }

    fn maps(&mut self, path: &str, old: &Fields, new: &Fields) {
        for name in names(old, new) {
            self.nodes(&below(path, name), old.get(name), new.get(name));
        }
    }

    fn words(&mut self, path: &str, old: &[Node], new: &[Node]) {
        for n in 0..old.len().max(new.len()) {
            self.nodes(&format!("{path}[{n}]"), old.get(n), new.get(n));
        }
    }
}

/// `path.name`, or `path["name"]` if the name is not a plain word.
fn below(path: &str, name: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if !name.is_empty() && name.chars().all(plain) {
        format!("{path}.{name}")
    } else {
        format!("{path}[\"{}\"]", printable(name))
    }
}

#[cfg(test)]
mod tests;
