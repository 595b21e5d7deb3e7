//! One difference between two records, in a form that can be shown to anybody.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::container::record::Node;

/// So many differences are listed.
pub const MAX_DIFFERENCES: usize = 50;

/// Characters of a value that are shown.
const MAX_SHOWN: usize = 160;
/// Characters of a path that are shown.
const MAX_PATH: usize = 240;
/// Characters before the first that differs that are still shown when values are long.
const BEFORE: usize = 20;

/// A field that differs: `path: old → new`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Where it is, for example `resources.memoryLimit` or `mounts["/data"].readonly`.
    pub path: String,
    /// What it was.
    pub old: Shown,
    /// What it is.
    pub new: Shown,
}

/// What may be shown of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Shown {
    /// There is none.
    Absent,
    /// There is one, and only its hash is known.
    Hidden,
    /// The value, cut if it is long.
    Text(String),
}

// === impl Difference ===

impl Difference {
    pub(super) fn new(path: &str, old: Option<&Node>, new: Option<&Node>) -> Self {
        let (mut old, mut new) = (Shown::of(old), Shown::of(new));
        if let (Shown::Text(old), Shown::Text(new)) = (&mut old, &mut new)
            && old.chars().count().max(new.chars().count()) > MAX_SHOWN
        {
            // Two long values would be cut to the same beginning.
            let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
            if same > BEFORE {
                for text in [old, new] {
                    *text = format!("…{}", text.chars().skip(same - BEFORE).collect::<String>());
                }
            }
        }
        for shown in [&mut old, &mut new] {
            if let Shown::Text(text) = shown {
                *text = cut(text, MAX_SHOWN);
            }
        }
        Self { path: cut(path, MAX_PATH), old, new }
    }

    /// Whether it is in that section of a record.
    pub(super) fn is_below(&self, section: &str) -> bool {
        self.path.strip_prefix(section).is_some_and(|rest| rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match (&self.old, &self.new) {
            (Shown::Absent, Shown::Hidden) => f.write_str("added"),
            (Shown::Hidden, Shown::Absent) => f.write_str("removed"),
            (Shown::Hidden, _) | (_, Shown::Hidden) => f.write_str("changed"),
            (old, new) => write!(f, "{old} → {new}"),
        }
    }
}

// === impl Shown ===

impl Shown {
    fn of(node: Option<&Node>) -> Self {
        match node {
            None => Self::Absent,
            Some(Node::Hash(_)) => Self::Hidden,
            Some(Node::Text(text)) => Self::Text(printable(text)),
            Some(node) => {
                let mut text = String::new();
                write(node, &mut text);
                Self::Text(text)
            }
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "none",
            Self::Hidden => "hidden",
            Self::Text(text) => text,
        })
    }
}

/// As people write it; a hash is never shown.
fn write(node: &Node, to: &mut String) {
    let comma = |n: usize, to: &mut String| {
        if n > 0 {
            to.push_str(", ");
        }
    };
    match node {
        Node::Flag(flag) => to.push_str(&flag.to_string()),
        Node::Number(number) => to.push_str(&number.to_string()),
        Node::Text(text) => to.push_str(&printable(text)),
        Node::Hash(_) => to.push_str("hidden"),
        Node::List(nodes) => {
            to.push('[');
            for (n, node) in nodes.iter().enumerate() {
                comma(n, to);
                write(node, to);
            }
            to.push(']');
        }
        Node::Map(fields) => {
            to.push('{');
            for (n, (name, node)) in fields.iter().enumerate() {
                comma(n, to);
                to.push_str(&printable(name));
                to.push_str(": ");
                write(node, to);
            }
            to.push('}');
        }
    }
}

/// Without what moves a terminal's cursor, turns the direction of text, or makes two lines of one.
pub(super) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            ' '..='~' => printable.push(character),
            character => printable.extend(character.escape_debug()),
        }
    }
    printable
}

pub(super) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
    }
}
