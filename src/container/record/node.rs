//! What records are made of: trees of plain values, with one way to write each of them.
//!
//! Canonical JSON: names sorted by their bytes, no spaces, integers only, no `null`. A hash is a text `~` with 22 more
//! letters; any other text that begins with `~` gets one more in front, so that neither is taken for the other.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

/// A map of nodes by name.
pub(crate) type Fields = BTreeMap<String, Node>;

/// A value in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Flag(bool),
    Number(i64),
    Text(String),
    /// Of something that may be secret.
    Hash([u8; HASH_BYTES]),
    List(Vec<Node>),
    Map(Fields),
}

/// HMAC-SHA256 is cut to this: enough that nobody finds two values with the same hash by chance.
pub(crate) const HASH_BYTES: usize = 16;

const MARK: char = '~';

/// Writes a map canonically.
pub(crate) fn write_map(fields: &Fields, to: &mut String) {
    to.push('{');
    for (n, (name, node)) in fields.iter().enumerate() {
        if n > 0 {
            to.push(',');
        }
        write_text("", name, to);
        to.push(':');
        node.write(to);
    }
    to.push('}');
}

/// Reads a map of at most `max` nodes. What it takes is what [`write_map`] writes, in any order and spacing.
pub(crate) fn parse_map(json: &[u8], max: usize) -> Result<Fields, serde_json::Error> {
    let left = Cell::new(max);
    let mut from = serde_json::Deserializer::from_slice(json);
    let node = Seed(&left).deserialize(&mut from)?;
    from.end()?;
    match node {
        Node::Map(fields) => Ok(fields),
        _ => Err(serde_json::Error::custom("expected an object")),
    }
}

fn write_text(mark: &str, text: &str, to: &mut String) {
    // Writing a text as JSON cannot fail.
    let quoted = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned());
    to.push('"');
    to.push_str(mark);
    to.push_str(quoted.strip_prefix('"').unwrap_or("\""));
}

// === impl Node ===

impl Node {
    pub(crate) fn write(&self, to: &mut String) {
        match self {
            Self::Flag(flag) => to.push_str(if *flag { "true" } else { "false" }),
            Self::Number(number) => to.push_str(&number.to_string()),
            Self::Text(text) => write_text(if text.starts_with(MARK) { "~" } else { "" }, text, to),
            Self::Hash(hash) => {
                to.push_str("\"~");
                BASE64_URL_SAFE_NO_PAD.encode_string(hash, to);
                to.push('"');
            }
            Self::List(nodes) => {
                to.push('[');
                for (n, node) in nodes.iter().enumerate() {
                    if n > 0 {
                        to.push(',');
                    }
                    node.write(to);
                }
                to.push(']');
            }
            Self::Map(fields) => write_map(fields, to),
        }
    }

    /// The node that a text of JSON stands for; `None` if it can be none.
    fn of_text(text: &str) -> Option<Self> {
        let Some(marked) = text.strip_prefix(MARK) else { return Some(Self::Text(text.to_owned())) };
        if marked.starts_with(MARK) {
            return Some(Self::Text(marked.to_owned()));
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(marked).ok()?;
        bytes.try_into().ok().map(Self::Hash)
    }
}

/// Reads one node and takes it off the number of those that may still come.
#[derive(Clone, Copy)]
struct Seed<'a>(&'a Cell<usize>);

// === impl Seed ===

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Node, D::Error> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| D::Error::custom("has too many values"))?;
        self.0.set(left);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a record")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Node, E> {
        i64::try_from(number).map(Node::Number).map_err(|_| E::custom("has a number that is too large"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Node, E> {
        Node::of_text(text).ok_or_else(|| E::custom("has a text that begins as a hash and is none"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Fields::new();
        while let Some(name) = map.next_key::<String>()? {
            if fields.insert(name, map.next_value_seed(self)?).is_some() {
                return Err(A::Error::custom("has a name twice"));
            }
        }
        Ok(Node::Map(fields))
    }
}
