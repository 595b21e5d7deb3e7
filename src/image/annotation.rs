//! The pod annotation `crisp.dev/image-specs`: a JSON object with a spec for each container that wants one.
//!
//! A key is the name of a container (of whatever kind) or of an image volume; `volume/NAME` is an image volume that has
//! a container's name. Anybody who may create a pod writes this text, so its size is bounded before it is read.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::shown;
use super::spec::{self, ImageSpec, SpecError};

/// The annotation's key.
pub const ANNOTATION: &str = "crisp.dev/image-specs";
/// The longest value that is read. Kubernetes allows no more for all annotations of an object together.
pub const MAX_BYTES: usize = 256 << 10;
/// The most specs that one pod may have.
pub const MAX_SPECS: usize = 512;

/// The specs of one pod, by container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Specs(BTreeMap<String, ImageSpec>);

/// What is wrong with the annotation, and in which container's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationError {
    /// The key under which it is wrong; `None` for the annotation as a whole.
    pub container: Option<String>,
    /// What is wrong there.
    pub error: SpecError,
}

// === impl Specs ===

impl Specs {
    /// Reads the annotation's value.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        let whole = |reason: String| AnnotationError {
            container: None,
            error: SpecError { field: String::new(), reason },
        };
        if text.len() > MAX_BYTES {
            let size = text.len();
            return Err(whole(format!("has {size} bytes; at most {MAX_BYTES} (256 KiB) are read")));
        }
        let entries: Entries = spec::read_json(text).map_err(|(path, reason)| {
            let mut path = path.into_iter();
            AnnotationError {
                container: path.next(),
                error: SpecError { field: path.collect::<Vec<_>>().join("."), reason },
            }
        })?;
        let mut specs = BTreeMap::new();
        for (container, raw) in entries.0 {
            let at = |error| AnnotationError { container: Some(shown(&container)), error };
            if !is_key(&container) {
                let reason = "is neither the name of a container or an image volume nor volume/NAME";
                return Err(at(SpecError { field: String::new(), reason: reason.to_owned() }));
            }
            let spec = ImageSpec::try_from(raw).map_err(at)?;
            specs.insert(container, spec);
        }
        Ok(Self(specs))
    }

    /// The spec of one container.
    pub fn get(&self, container: &str) -> Option<&ImageSpec> {
        self.0.get(container)
    }

    /// All of them, by container.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ImageSpec)> {
        self.0.iter().map(|(container, spec)| (container.as_str(), spec))
    }
}

/// As Kubernetes names containers and volumes: a DNS label.
fn is_key(key: &str) -> bool {
    let label = key.strip_prefix("volume/").unwrap_or(key);
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The entries as they are written, not checked yet.
struct Entries(BTreeMap<String, spec::Written>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded;

        impl<'de> Visitor<'de> for Bounded {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a spec for each container")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((container, spec)) = map.next_entry::<String, spec::Written>()? {
                    if entries.len() == MAX_SPECS {
                        return Err(A::Error::custom(format_args!("has more than {MAX_SPECS} specs")));
                    }
                    if entries.contains_key(&container) {
                        return Err(A::Error::custom(format_args!("has {:?} twice", shown(&container))));
                    }
                    entries.insert(container, spec);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Bounded)
    }
}

// === impl AnnotationError ===

impl fmt::Display for AnnotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(container) = &self.container {
            write!(f, "container {container:?}: ")?;
        }
        self.error.fmt(f)
    }
}

impl std::error::Error for AnnotationError {}

#[cfg(test)]
mod tests;
