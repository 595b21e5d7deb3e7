//! A record as the text of a label: the record itself, or its digest if it is too long for a label.

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::node::{self, Fields, Node};
use super::{LABEL, ParseError, Record, VERSION};

/// Runtimes refuse a label whose key and value have more than 4096 bytes together.
pub const MAX_VALUE: usize = 4096 - LABEL.len();

/// As many values as fit into [`super::MAX_BODY`] if each is as short as a record's are.
const MAX_NODES: usize = 1 << 18;

/// What a label says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// The record.
    Inline(Record),
    /// Where to find it.
    Digest(Reference),
}

/// Stands for a record that is too long for a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The version of the crisp that wrote the record.
    pub version: u64,
    /// The id of the key under which values are hashed.
    pub key: String,
    /// The image as the user named it, unless that is too long itself.
    pub image: Option<String>,
    /// `sha256:` and 64 hexadecimal digits, of the record's JSON.
    pub digest: String,
    /// Bytes of the record's JSON.
    pub size: u64,
}

/// The text of a record's label, and, if that is only a digest, the record's JSON.
///
/// Inline are records of at most `max_inline` bytes; with `None` none at all. Whatever it says, the text fits into a label.
pub fn label(record: &Record, max_inline: Option<usize>) -> (String, Option<String>) {
    let json = record.json();
    if max_inline.is_some_and(|max| json.len() <= max.min(MAX_VALUE)) {
        return (json, None);
    }
    let mut fields = Fields::from([
        ("v".to_owned(), Node::Number(i64::try_from(record.version).unwrap_or(i64::MAX))),
        ("key".to_owned(), Node::Text(record.key.clone())),
        ("image".to_owned(), Node::Text(record.image.clone())),
        ("digest".to_owned(), Node::Text(digest(json.as_bytes()))),
        ("size".to_owned(), Node::Number(i64::try_from(json.len()).unwrap_or(i64::MAX))),
    ]);
    let mut text = String::new();
    node::write_map(&fields, &mut text);
    if text.len() > MAX_VALUE {
        fields.remove("image");
        text.clear();
        node::write_map(&fields, &mut text);
    }
    (text, Some(json))
}

/// The digest by which a label names a record's JSON.
pub fn digest(json: &[u8]) -> String {
    let hash = Sha256::digest(json);
    let mut text = String::with_capacity(7 + 64);
    text.push_str("sha256:");
    hash.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
    text
}

/// Reads the JSON of a record or of a reference, whose version must be one that this crisp knows.
pub(super) fn read_fields(json: &[u8]) -> Result<Fields, ParseError> {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }

    let wrong = |error: serde_json::Error| ParseError::NotARecord(error.to_string());
    // A newer record may hold what this crisp cannot read, so the version comes first.
    match serde_json::from_slice(json)
        .map_err(|_| ParseError::NotARecord("expected an object with a version `v`".to_owned()))?
    {
        Version { v: 1..=VERSION } => node::parse_map(json, MAX_NODES).map_err(wrong),
        Version { v: 0 } => Err(ParseError::NotARecord("v: is 0".to_owned())),
        Version { v } => Err(ParseError::Newer(v)),
    }
}

pub(super) fn version(fields: &mut Fields) -> Result<u64, ParseError> {
    take_number(fields, "v")
}

pub(super) fn take_text(fields: &mut Fields, name: &str) -> Result<String, ParseError> {
    match fields.remove(name) {
        Some(Node::Text(text)) => Ok(text),
        _ => Err(ParseError::NotARecord(format!("{name}: expected a text"))),
    }
}

fn take_number(fields: &mut Fields, name: &str) -> Result<u64, ParseError> {
    match fields.remove(name) {
        Some(Node::Number(number)) => u64::try_from(number).ok(),
        _ => None,
    }
    .ok_or_else(|| ParseError::NotARecord(format!("{name}: expected a number")))
}

// === impl Label ===

impl Label {
    /// Reads the text of a label, which anybody may have written.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.len() > MAX_VALUE {
            return Err(ParseError::TooLong(text.len()));
        }
        let mut fields = read_fields(text.as_bytes())?;
        if !fields.contains_key("digest") {
            return Record::of_fields(fields).map(Self::Inline);
        }
        let digest = take_text(&mut fields, "digest")?;
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        // It becomes the name of a file.
        if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(ParseError::NotARecord(
                "digest: expected sha256: and 64 hexadecimal digits".to_owned(),
            ));
        }
        let image = match fields.contains_key("image") {
            true => Some(take_text(&mut fields, "image")?),
            false => None,
        };
        let version = version(&mut fields)?;
        let (key, size) = (take_text(&mut fields, "key")?, take_number(&mut fields, "size")?);
        Ok(Self::Digest(Reference { version, key, image, digest, size }))
    }

    /// The image as the user named it.
    pub fn image(&self) -> Option<&str> {
        match self {
            Self::Inline(record) => Some(record.image()),
            Self::Digest(reference) => reference.image.as_deref(),
        }
    }

    /// The id of the key under which values are hashed.
    pub fn key(&self) -> &str {
        match self {
            Self::Inline(record) => record.key(),
            Self::Digest(reference) => &reference.key,
        }
    }
}

// === impl Reference ===

impl Reference {
    /// Reads the record from the JSON that is said to be its own. Another one is refused.
    pub fn open(&self, json: &[u8]) -> Result<Record, ParseError> {
        if json.len() as u64 != self.size || digest(json) != self.digest {
            return Err(ParseError::NotARecord(format!("is not the record {}", self.digest)));
        }
        Record::parse(json)
    }
}
