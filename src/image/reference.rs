//! Image names as the kubelet, Docker and containerd read them: `nginx` is `docker.io/library/nginx:latest`.
//!
//! The grammar and the normalisation are those of Go's `distribution/reference` (`ParseNormalizedNamed`, then
//! `TagNameOnly`), oddities included; `make e2e` compares the two. oci-spec's parser differs for names such as
//! `Foo/bar`, `[::1]:5000/x` and a bare 64-digit hex string.

use std::fmt;
use std::str::FromStr;

use super::grammar::{MAX_PATH, is_digest, is_hex, is_host, is_path, is_tag, looks_like_host};
use super::shown;

/// Where names without a registry lie.
pub const DOCKER_HUB: &str = "docker.io";
/// What Docker Hub was called first.
const OLD_DOCKER_HUB: &str = "index.docker.io";
/// Docker Hub's namespace for names without one.
const OFFICIAL: &str = "library/";
/// The tag of a name that has neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";

/// A normalised image name: registry and repository, and what it selects there. A name may have both a tag and a
/// digest; then both are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Why a text is no image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an image name: {reason}")]
pub struct ReferenceError {
    name: String,
    reason: &'static str,
}

// === impl Reference ===

impl Reference {
    /// Reads and normalises a name. No tag is added, see [`Reference::with_default_tag`].
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let invalid = |reason| Err(ReferenceError { name: shown(text), reason });
        if is_hex(text, 64) {
            return invalid("64 hex digits are an image id");
        }
        let (registry, rest) = split_registry(text);
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        let official = registry == DOCKER_HUB && !path.contains('/');
        let path = if official { format!("{OFFICIAL}{path}") } else { path.to_owned() };
        if !is_path(&path) {
            return invalid(if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
                "the repository must be lower case"
            } else {
                "the repository must be lower-case letters and digits, joined by `/`, `.`, `_`, `__` or `-`"
            });
        }
        // Docker reads a host with an underscore as the beginning of a path, and the name then has no host.
        let (registry, path) =
            if is_host(registry) { (registry, path) } else { ("", format!("{registry}/{path}")) };
        if registry.is_empty() && !is_path(&path) {
            return invalid("the registry must be a host name or address, with or without a port");
        }
        if path.len() > MAX_PATH {
            return invalid("the repository has more than 255 characters");
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return invalid(
                "the tag must be up to 128 letters, digits, `_`, `.` and `-`, not `.` or `-` first",
            );
        }
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return invalid(
                "the digest must be sha256:, sha384: or sha512: and 64, 96 or 128 lower-case hex digits",
            );
        }
        Ok(Self {
            registry: registry.to_owned(),
            path,
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Adds `latest` to a name that has neither tag nor digest.
    #[must_use]
    pub fn with_default_tag(mut self) -> Self {
        if self.tag.is_none() && self.digest.is_none() {
            self.tag = Some(DEFAULT_TAG.to_owned());
        }
        self
    }

    /// The registry's host, with its port if the name has one. Empty for the few names in which Docker finds no host,
    /// such as `a_b.io/c`; no registry can serve those.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository within the registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, algorithm included.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Registry and repository, without tag and digest.
    pub fn name(&self) -> String {
        match self.registry.as_str() {
            "" => self.path.clone(),
            registry => format!("{registry}/{}", self.path),
        }
    }

    /// The name as Docker shows it to people: without what Docker Hub's names have in common.
    pub fn familiar(&self) -> String {
        let name = match self.registry.as_str() {
            DOCKER_HUB => match self.path.strip_prefix(OFFICIAL) {
                Some(rest) if !rest.contains('/') => rest.to_owned(),
                _ => self.path.clone(),
            },
            _ => self.name(),
        };
        format!("{name}{}", self.version())
    }

    fn version(&self) -> Version<'_> {
        Version { tag: self.tag(), digest: self.digest() }
    }
}

/// The normalised form.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name(), self.version())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        Self::parse(text)
    }
}

/// `[:tag][@digest]`
#[derive(Debug, Clone, Copy)]
pub(super) struct Version<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) digest: Option<&'a str>,
}

impl fmt::Display for Version<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tag) = self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Splits off the registry: the part before the first `/`, if it looks like a host and not like a path.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((OLD_DOCKER_HUB, rest)) => (DOCKER_HUB, rest),
        Some((host, rest)) if looks_like_host(host) => (host, rest),
        _ => (DOCKER_HUB, name),
    }
}

// === impl ReferenceError ===

impl ReferenceError {
    /// What is wrong, without the name.
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

#[cfg(test)]
mod tests;
