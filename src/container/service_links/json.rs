//! How the annotations are written.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};

use super::{AnnotationError, MAX_BYTES, shown};

/// Sources by container, as they are written.
#[derive(Debug)]
pub(super) struct Containers(pub(super) BTreeMap<String, Vec<Source>>);

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    #[serde(default)]
    pub(super) prefix: Option<String>,
    pub(super) service: Service,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) name: String,
}

/// Reads an annotation's value.
pub(super) fn read<T: DeserializeOwned>(
    annotation: &'static str,
    value: &[u8],
) -> Result<T, AnnotationError> {
    if value.len() > MAX_BYTES {
        let reason = format!("has {} bytes; at most {MAX_BYTES} (64 KiB) are read", value.len());
        return Err(AnnotationError::new(annotation, "", reason));
    }
    let mut json = serde_json::Deserializer::from_slice(value);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // "." is the whole, "?" a place that has no name yet.
        let path = error.path().to_string();
        let path = shown(if matches!(path.as_str(), "." | "?") { "" } else { &path });
        let error = error.into_inner();
        let is_json = error.classify() != serde_json::error::Category::Syntax;
        let words = if is_json { error.to_string() } else { format!("is not JSON: {error}") };
        AnnotationError::new(annotation, path, shown(&words))
    })?;
    json.end().map_err(|error| AnnotationError::new(annotation, "", shown(&error.to_string())))?;
    Ok(read)
}

impl<'de> Deserialize<'de> for Containers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;

        impl<'de> Visitor<'de> for Once {
            type Value = Containers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a list for each container")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Containers, A::Error> {
                let mut containers = BTreeMap::new();
                while let Some((container, sources)) = map.next_entry::<String, Vec<Source>>()? {
                    if containers.contains_key(&container) {
                        return Err(A::Error::custom(format_args!("has {:?} twice", shown(&container))));
                    }
                    containers.insert(container, sources);
                }
                Ok(Containers(containers))
            }
        }

        deserializer.deserialize_map(Once)
    }
}
