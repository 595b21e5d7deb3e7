//! What a container was made from, kept with it as a label.
//!
//! A [`Record`] holds everything in a `CreateContainerRequest` that determines the container, and nothing that differs
//! between two containers made from the same spec: attempt, log path, the order of the environment, the variables of
//! Services, random names in host paths. It has one written form (JSON with sorted names and no spaces), so that equal
//! specs have equal texts.
//!
//! Values of environment variables, and the words of command and arguments, come to the CRI with Secrets expanded. They are
//! recorded as keyed hashes ([`crate::container::keys`]), and so is everything else that may hold a secret.
//!
//! # Current limitations
//!
//! - Windows containers, and fields of a newer CRI, are one hash per section. If such a field holds a map inside a message,
//!   the hash changes with the map's order.
//! - A variable that looks in every respect as the kubelet makes it for a Service is taken for one.
//! - The image is the user's name for it: a tag that was moved is not seen.

mod hasher;
mod label;
mod node;
mod other;
mod paths;
mod services;
mod spec;
mod words;

use std::fmt;

use bytes::Bytes;

use crate::container::keys::Key;
use crate::cri::{read, view};
use crate::error::{Error, Kind, Origin};

pub use label::{Label, MAX_VALUE, Reference, digest, label};
pub(crate) use node::{Fields, Node};

/// The label that holds a record.
pub const LABEL: &str = "io.kubernetes.container.spec";

/// The version that this crisp writes.
pub const VERSION: u64 = 1;

/// The largest request that is recorded.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The largest written record that is read.
pub const MAX_BODY: usize = 4 << 20;

/// So many values a request may have, at all depths. It bounds what recording costs.
pub(crate) const MAX_ELEMENTS: usize = 1 << 15;

/// Requests that are recorded quickly have no more bytes.
const QUICK_BYTES: usize = 64 << 10;

/// And no more values, at all depths. A mount or a profile has several.
const QUICK_ELEMENTS: usize = 1000;

/// What a container was made from.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    version: u64,
    key: String,
    image: String,
    fields: Fields,
}

/// Why a text is not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Longer than any record that crisp writes.
    #[error("the record has {0} bytes, which is more than crisp writes")]
    TooLong(usize),
    /// By a crisp that is newer than this one. It is no mistake: the container is simply not compared.
    #[error("the record was written by a newer crisp (version {0})")]
    Newer(u64),
    /// Something else, or damaged.
    #[error("not a record: {0}")]
    NotARecord(String),
}

// === impl Record ===

impl Record {
    /// The field that says that command and arguments are readable.
    pub(crate) const CLEAR: &'static str = "clear";

    /// Records a `CreateContainerRequest`. With `clear_args`, command and arguments stay readable.
    ///
    /// To compare with an older record, use its key and its form: `Record::of(message, keys.get(old.key()), old.clear_args())`.
    /// Costs CPU only, and not much of it: at most [`MAX_MESSAGE`] bytes are hashed.
    pub fn of(message: &Bytes, key: &Key, clear_args: bool) -> Result<Self, Error> {
        let too_large = |what: String| {
            Error::new(Kind::Exhausted, Origin::Kubelet, format!("the container is not recorded: {what}"))
        };
        if message.len() > MAX_MESSAGE {
            return Err(too_large(format!(
                "its request has {} bytes, more than {MAX_MESSAGE}",
                message.len()
            )));
        }
        let unknown = other::unknown(message).map_err(|wrong| match wrong {
            other::Wrong::TooMany => too_large(format!("its request has more than {MAX_ELEMENTS} values")),
            other::Wrong::Wire(error) => {
                Error::new(Kind::Internal, Origin::Crisp, format!("cannot read the message: {error}"))
            }
        })?;
        let request: view::CreateContainerRequest = read(message)?;
        let config = request.config.unwrap_or_default();
        let pod = request.sandbox_config.and_then(|sandbox| sandbox.metadata).unwrap_or_default();
        let container = config.metadata.as_ref().map_or("", |metadata| &metadata.name);
        let subject = spec::Subject {
            pod_uid: &pod.uid,
            container,
            hasher: hasher::Hasher::new(key, &pod.uid, container),
            clear_args,
        };
        let mut fields = spec::fields(&config, &unknown, &subject);
        if clear_args {
            fields.insert(Self::CLEAR.to_owned(), Node::Flag(true));
        }
        let image = config.image.as_ref().map_or("", user_image).to_owned();
        Ok(Self { version: VERSION, key: key.id().to_owned(), image, fields })
    }

    /// Whether a request is recorded so quickly that other calls can wait for it: hashing costs by the value, and 64 KiB
    /// can hold tens of thousands.
    pub(crate) fn is_quick(message: &Bytes) -> bool {
        message.len() <= QUICK_BYTES && !other::has_more(message, QUICK_ELEMENTS)
    }

    /// Reads a record from its JSON.
    pub fn parse(json: &[u8]) -> Result<Self, ParseError> {
        if json.len() > MAX_BODY {
            return Err(ParseError::TooLong(json.len()));
        }
        Self::of_fields(label::read_fields(json)?)
    }

    fn of_fields(mut fields: Fields) -> Result<Self, ParseError> {
        let version = label::version(&mut fields)?;
        let key = label::take_text(&mut fields, "key")?;
        let image = label::take_text(&mut fields, "image")?;
        Ok(Self { version, key, image, fields })
    }

    /// The canonical JSON.
    pub fn json(&self) -> String {
        let mut fields = self.fields.clone();
        fields.insert("v".to_owned(), Node::Number(i64::try_from(self.version).unwrap_or(i64::MAX)));
        fields.insert("key".to_owned(), Node::Text(self.key.clone()));
        fields.insert("image".to_owned(), Node::Text(self.image.clone()));
        let mut json = String::with_capacity(1024);
        node::write_map(&fields, &mut json);
        json
    }

    /// The image as the user named it.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The id of the key under which values are hashed.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The version of the crisp that wrote it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether command and arguments are readable in it.
    pub fn clear_args(&self) -> bool {
        self.fields.contains_key(Self::CLEAR)
    }

    /// The same record as a crisp that writes that version would have written it.
    pub(crate) fn of_version(version: u64, record: &Self) -> Self {
        Self { version, ..record.clone() }
    }

    /// Everything but version, key and image.
    pub(crate) fn fields(&self) -> &Fields {
        &self.fields
    }
}

/// Whose record it is, not what is in it.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("version", &self.version)
            .field("key", &self.key)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

/// The name that the user gave, which kubelets before 1.28 do not tell.
fn user_image(image: &view::ImageSpec) -> &str {
    if image.user_specified_image.is_empty() { &image.image } else { &image.user_specified_image }
}

#[cfg(test)]
pub(super) mod tests;
