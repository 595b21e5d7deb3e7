//! Image names as Docker and containerd read them: `nginx` is `docker.io/library/nginx:latest`.
//!
//! The grammar is that of Go's `distribution/reference`; oci-spec's parser differs from it for names such as
//! `Foo/bar`, `[::1]:5000/x` and a bare 64-digit hex string.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::digest::Sha256;

/// Longest repository path that Docker accepts.
const MAX_PATH: usize = 255;
/// Longest tag that Docker accepts.
const MAX_TAG: usize = 128;

/// A normalised image name: registry host, repository path, and a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageName {
    host: String,
    path: String,
    version: Version,
}

/// What a name selects in its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// A tag, `latest` when the name has none.
    Tag(String),
    /// A digest. A tag beside a digest is dropped, as containerd does: the digest alone decides.
    Digest(Sha256),
}

/// Why a name is no image name.
#[derive(Debug, thiserror::Error)]
#[error("invalid image name {name:?}: {reason}")]
pub(super) struct InvalidName {
    name: String,
    reason: &'static str,
}

// === impl ImageName ===

impl ImageName {
    /// Reads and normalises `name`.
    pub(super) fn parse(name: &str) -> Result<Self, InvalidName> {
        let invalid = |reason| InvalidName { name: name.chars().take(512).collect(), reason };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => {
                let digest =
                    Sha256::parse(digest).ok_or_else(|| invalid("the digest is not a sha256 digest"))?;
                (rest, Some(digest))
            }
            None => (name, None),
        };
        if rest.len() == 64 && rest.bytes().all(is_lower_hex) {
            return Err(invalid("64 hex digits are an image id, not a name"));
        }
        let (host, remainder) = split_host(rest);
        // After the host is gone, a colon can only start a tag.
        let (path, tag) = match remainder.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (remainder, None),
        };
        let path = match host {
            "docker.io" if !path.contains('/') => format!("library/{path}"),
            _ => path.to_owned(),
        };
        if !is_host(host) {
            return Err(invalid("the registry host is not valid"));
        }
        if path.len() > MAX_PATH || !path.split('/').all(is_path_component) {
            return Err(invalid("the repository path is not valid"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("the tag is not valid"));
        }
        let version = match digest {
            Some(digest) => Version::Digest(digest),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { host: host.to_owned(), path, version })
    }

    /// The registry host, with its port if the name has one.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The host that serves the registry's API: Docker Hub's is not the one in its names.
    pub(super) fn api_host(&self) -> &str {
        match self.host.as_str() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        }
    }

    /// The repository path within the registry.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The tag or digest.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// The name that pins this repository to `digest`.
    pub(super) fn with_digest(&self, digest: Sha256) -> Self {
        Self { version: Version::Digest(digest), ..self.clone() }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Version::Tag(tag) => write!(f, "{}/{}:{tag}", self.host, self.path),
            Version::Digest(digest) => write!(f, "{}/{}@{digest}", self.host, self.path),
        }
    }
}

/// Whether `host` (with or without a port) is this machine, where plain HTTP is allowed as containerd allows it.
pub(super) fn is_loopback(host: &str) -> bool {
    let (name, _) = split_port(host);
    let name = name.trim_matches(['[', ']']);
    name == "localhost"
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || name.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback())
}

/// Splits off the registry host: the part before the first `/`, if it looks like a host and not like a path.
fn split_host(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some(("index.docker.io", rest)) => ("docker.io", rest),
        Some((host, rest))
            if host == "localhost"
                || host.contains(['.', ':'])
                || host.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (host, rest)
        }
        _ => ("docker.io", name),
    }
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_host(host: &str) -> bool {
    let (name, port) = split_port(host);
    let port_ok =
        port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok());
    let name_ok = match name.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|a| a.parse::<Ipv6Addr>().is_ok()),
        None => name.split('.').all(is_host_label),
    };
    port_ok && name_ok
}

fn is_host_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Splits `host[:port]`; the colons of a bracketed IPv6 address are not the port's.
fn split_port(host: &str) -> (&str, Option<&str>) {
    let address_end = host.rfind(']').map_or(0, |at| at + 1);
    match host[address_end..].find(':') {
        Some(colon) => (&host[..address_end + colon], Some(&host[address_end + colon + 1..])),
        None => (host, None),
    }
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends_ok = bytes.first().copied().is_some_and(is_word) && bytes.last().copied().is_some_and(is_word);
    ends_ok
        && component
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_normalised_as_docker_does() {
        let digest = format!("sha256:{HEX}");
        for (name, normal) in [
            ("nginx".to_owned(), "docker.io/library/nginx:latest".to_owned()),
            ("nginx:1.27".into(), "docker.io/library/nginx:1.27".into()),
            ("bitnami/redis".into(), "docker.io/bitnami/redis:latest".into()),
            ("index.docker.io/nginx".into(), "docker.io/library/nginx:latest".into()),
            ("localhost/x".into(), "localhost/x:latest".into()),
            ("localhost:5000/x/y:v1".into(), "localhost:5000/x/y:v1".into()),
            ("[::1]:5000/x".into(), "[::1]:5000/x:latest".into()),
            ("Foo/bar".into(), "Foo/bar:latest".into()),
            ("quay.io/a__b/c-----d".into(), "quay.io/a__b/c-----d:latest".into()),
            (format!("quay.io/x:v1@{digest}"), format!("quay.io/x@{digest}")),
            (digest.clone(), format!("docker.io/library/{digest}")),
        ] {
            assert_eq!(ImageName::parse(&name).unwrap().to_string(), normal, "{name}");
        }
    }

    #[test]
    fn what_docker_refuses_is_refused() {
        let long = "a".repeat(256);
        for name in [
            "",
            "UPPER",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-x",
            "quay.io/../etc",
            "quay.io/a/../b",
            "a b",
            "docker://x",
            "quay.io/A",
            "a@sha256:12",
            "a@sha512:00",
            "-a.io/b",
            "a.io:99999/b",
            "a.io:/b",
            "[::1/x",
            "[zz]:1/x",
            "quay.io/a_-b",
            HEX,
            &long,
        ] {
            assert!(ImageName::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn loopback_is_by_name_or_address() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:80", "127.8.9.1", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.evil.io", "127.0.0.1.evil.io", "quay.io", "[::2]:5000", "10.0.0.1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
