//! [`ImageSpec`]: an image named field by field instead of by one string.
//!
//! A spec has exactly one member:
//!
//! ```json
//! {"dockerImage": {"registry": "gcr.io", "name": "test-repo/bar", "tag": "v1", "digest": "sha256:…"}}
//! {"aci": {"name": "coreos.com/etcd", "tag": "v2.2.0", "id": "sha512-…"}}
//! ```
//!
//! Its string form, which pods write as `image`, is `registry/name[:tag][@digest]`, for ACI `name[:tag]`. A string alone
//! is read as Docker. A value of these types is valid: whatever makes one checks it.

mod json;

use serde::{Deserialize, Serialize};

use super::aci::RESERVED_HOST;
use super::grammar::{
    MAX_PATH, is_ac_identifier, is_digest, is_hex, is_host, is_path, is_tag, looks_like_host,
};
use super::reference::Version;
use super::{Reference, shown};

use json::{Object, RawSpec};

pub(super) use json::read as read_json;

/// A spec as it is written, not checked yet.
pub(super) type Written = Object<RawSpec>;

/// An image by format. In JSON it is an object with one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "RawSpec", try_from = "Written")]
pub enum ImageSpec {
    /// `dockerImage`
    Docker(DockerImage),
    /// `aci`
    Aci(AciImage),
}

/// A Docker (or OCI) image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerImage {
    registry: String,
    name: String,
    /// Both of them normalised, and tag and digest as they were given.
    reference: Reference,
}

/// An appc container image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AciImage {
    name: String,
    tag: Option<String>,
    id: Option<String>,
}

/// What is wrong with a spec, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct SpecError {
    /// Path of the field, for example `dockerImage.registry`; empty for the spec as a whole.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
}

// === impl ImageSpec ===

impl ImageSpec {
    /// Reads the JSON form.
    pub fn from_json(text: &str) -> Result<Self, SpecError> {
        let raw: Written =
            read_json(text).map_err(|(path, reason)| SpecError { field: path.join("."), reason })?;
        Self::try_from(raw)
    }

    /// Reads an image string, which is always Docker's.
    pub fn of_image(image: &str) -> Result<Self, SpecError> {
        let reference = Reference::parse(image).map_err(|error| SpecError::at("image", error.to_string()))?;
        let registry = Some(reference.registry().to_owned());
        let [name, tag, digest] =
            [Some(reference.path()), reference.tag(), reference.digest()].map(|part| part.map(str::to_owned));
        Ok(Self::Docker(DockerImage::new(registry, name, tag, digest)?))
    }

    /// The image string that a pod writes.
    pub fn image(&self) -> String {
        match self {
            Self::Docker(image) => image.image(),
            Self::Aci(image) => image.image(),
        }
    }

    /// The first field by which this spec means another image than `wanted` (with its default tag) names.
    pub fn differs(&self, wanted: &Reference) -> Option<&'static str> {
        match self {
            Self::Docker(image) => image.differs(wanted),
            Self::Aci(image) => image.differs(wanted),
        }
    }
}

// === impl DockerImage ===

impl DockerImage {
    /// Checks the fields.
    pub fn new(
        registry: Option<String>,
        name: Option<String>,
        tag: Option<String>,
        digest: Option<String>,
    ) -> Result<Self, SpecError> {
        let registry =
            required("dockerImage.registry", registry, "the registry's host, for example docker.io")?;
        let wrong_host = if registry.eq_ignore_ascii_case(RESERVED_HOST) {
            Some("is reserved for ACI images; use `aci` with the name behind it")
        } else if !is_host(&registry) {
            Some(
                "must be a host name or address, with or without a port, for example gcr.io or localhost:5000",
            )
        } else if !looks_like_host(&registry) {
            Some("would be taken for a part of the name; a registry has a dot or a port, or is localhost")
        } else {
            None
        };
        if let Some(reason) = wrong_host {
            return Err(SpecError::of("dockerImage.registry", &registry, reason));
        }
        let name = required("dockerImage.name", name, "the repository, for example library/nginx")?;
        let path_rule = "must be up to 255 lower-case letters and digits, joined by `/`, `.`, `_`, `__` or `-`; \
                         tag and digest have fields of their own";
        if !is_path(&name) {
            return Err(SpecError::of("dockerImage.name", &name, path_rule));
        }
        check_tag("dockerImage.tag", tag.as_deref())?;
        if let Some(digest) = digest.as_deref().filter(|digest| !is_digest(digest)) {
            let rule = "must be sha256:, sha384: or sha512: and 64, 96 or 128 lower-case hex digits";
            return Err(SpecError::of("dockerImage.digest", digest, rule));
        }
        let version = Version { tag: tag.as_deref(), digest: digest.as_deref() };
        // What is left to go wrong is the length of the name.
        let reference = Reference::parse(&format!("{registry}/{name}{version}"))
            .map_err(|_| SpecError::of("dockerImage.name", &name, path_rule))?;
        Ok(Self { registry, name, reference })
    }

    /// The registry as it was given.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The image, normalised.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    /// `registry/name[:tag][@digest]`
    pub fn image(&self) -> String {
        let version = Version { tag: self.reference.tag(), digest: self.reference.digest() };
        format!("{}/{}{version}", self.registry, self.name)
    }

    fn differs(&self, wanted: &Reference) -> Option<&'static str> {
        let own = self.reference.clone().with_default_tag();
        let fields = [
            ("dockerImage.registry", own.registry() == wanted.registry()),
            ("dockerImage.name", own.path() == wanted.path()),
            ("dockerImage.tag", own.tag() == wanted.tag()),
            ("dockerImage.digest", own.digest() == wanted.digest()),
        ];
        fields.into_iter().find(|(_, same)| !same).map(|(field, _)| field)
    }
}

// === impl AciImage ===

impl AciImage {
    /// Checks the fields.
    pub fn new(name: Option<String>, tag: Option<String>, id: Option<String>) -> Result<Self, SpecError> {
        let name = required("aci.name", name, "the image's name, for example coreos.com/etcd")?;
        if name.len() > MAX_PATH || !is_ac_identifier(&name) {
            let rule = "must be up to 255 lower-case letters and digits, joined by one of `-`, `.`, `_`, `~` and `/`";
            return Err(SpecError::of("aci.name", &name, rule));
        }
        if name.split('/').next() == Some(RESERVED_HOST) {
            return Err(SpecError::of("aci.name", &name, "must be given without the reserved host"));
        }
        check_tag("aci.tag", tag.as_deref())?;
        if let Some(id) = id.as_deref() {
            let hex = id.strip_prefix("sha512-");
            if !hex.is_some_and(|hex| is_hex(hex, 128)) {
                return Err(SpecError::of("aci.id", id, "must be sha512- and 128 lower-case hex digits"));
            }
        }
        Ok(Self { name, tag, id })
    }

    /// The appc name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version, `latest` if there is none.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// `sha512-` and the hash of the uncompressed image.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The same image, pinned to an id.
    pub(super) fn with_id(mut self, id: Option<&str>) -> Self {
        self.id = id.map(str::to_owned);
        self
    }

    /// `name[:tag]`. The id has no place in it.
    pub fn image(&self) -> String {
        format!("{}{}", self.name, Version { tag: self.tag(), digest: None })
    }

    /// The same under the host that is reserved for ACI images.
    pub fn reserved_image(&self) -> String {
        format!("{RESERVED_HOST}/{}", self.image())
    }

    /// How pods can name it, normalised: as itself and under the reserved host. A `~`, which appc allows, no pod can
    /// write.
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        let names = [self.image(), self.reserved_image()];
        names.into_iter().filter_map(|name| Some(Reference::parse(&name).ok()?.with_default_tag()))
    }

    fn differs(&self, wanted: &Reference) -> Option<&'static str> {
        let mut same_name = false;
        for own in self.references() {
            if own == *wanted {
                return None;
            }
            same_name |= own.registry() == wanted.registry() && own.path() == wanted.path();
        }
        Some(if same_name { "aci.tag" } else { "aci.name" })
    }
}

// === impl SpecError ===

impl SpecError {
    fn at(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into() }
    }

    /// A field with a wrong value.
    fn of(field: &str, value: &str, rule: &str) -> Self {
        Self::at(field, format!("{:?} {rule}", shown(value)))
    }
}

fn required(field: &str, value: Option<String>, what: &str) -> Result<String, SpecError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| SpecError::at(field, format!("is required: {what}")))
}

fn check_tag(field: &str, tag: Option<&str>) -> Result<(), SpecError> {
    match tag {
        Some("") => Err(SpecError::at(field, "must not be empty; leave it out for `latest`")),
        Some(tag) if !is_tag(tag) => {
            let rule = "must be up to 128 letters, digits, `_`, `.` and `-`, not `.` or `-` first";
            Err(SpecError::of(field, tag, rule))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests;
