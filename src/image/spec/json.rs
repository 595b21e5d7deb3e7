//! The JSON form of a spec, and what is wrong with a JSON text, by path.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_path_to_error::Segment;

use super::{AciImage, DockerImage, ImageSpec, SpecError};
use crate::image::shown;

/// A spec as it is written, not checked yet. An absent member and `null` are the same, as they are to Kubernetes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::image) struct RawSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    docker_image: Option<Object<RawDocker>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aci: Option<Object<RawAci>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDocker {
    registry: Option<String>,
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAci {
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// A struct that is read from an object only: derived code would take an array of its fields as well.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub(in crate::image) struct Object<T>(T);

/// Reads a JSON text. An error has the path to where it is wrong and a reason of bounded length.
pub(in crate::image) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, (Vec<String>, String)> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().iter().filter_map(|segment| match segment {
            Segment::Map { key } => Some(shown(key)),
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Enum { .. } | Segment::Unknown => None,
        });
        // serde quotes what it found, however long that is.
        let reason: String = error.inner().to_string().chars().take(300).collect();
        (path.collect(), reason)
    })?;
    json.end().map_err(|error| (Vec::new(), error.to_string()))?;
    Ok(value)
}

// === impl Object ===

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyObjects<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyObjects<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(OnlyObjects(PhantomData))
    }
}

// === impl ImageSpec ===

impl TryFrom<Object<RawSpec>> for ImageSpec {
    type Error = SpecError;

    fn try_from(Object(raw): Object<RawSpec>) -> Result<Self, SpecError> {
        match (raw.docker_image, raw.aci) {
            (Some(Object(RawDocker { registry, name, tag, digest })), None) => {
                DockerImage::new(registry, name, tag, digest).map(Self::Docker)
            }
            (None, Some(Object(RawAci { name, tag, id }))) => AciImage::new(name, tag, id).map(Self::Aci),
            (None, None) => Err(SpecError::at(
                "",
                "the spec has no member; exactly one of `dockerImage` and `aci` is needed",
            )),
            (Some(_), Some(_)) => Err(SpecError::at(
                "",
                "the spec has both `dockerImage` and `aci`; exactly one of them is allowed",
            )),
        }
    }
}

impl From<ImageSpec> for RawSpec {
    fn from(spec: ImageSpec) -> Self {
        match spec {
            ImageSpec::Docker(image) => {
                let docker = RawDocker {
                    tag: image.reference.tag().map(str::to_owned),
                    digest: image.reference.digest().map(str::to_owned),
                    registry: Some(image.registry),
                    name: Some(image.name),
                };
                Self { docker_image: Some(Object(docker)), aci: None }
            }
            ImageSpec::Aci(AciImage { name, tag, id }) => {
                Self { docker_image: None, aci: Some(Object(RawAci { name: Some(name), tag, id })) }
            }
        }
    }
}
