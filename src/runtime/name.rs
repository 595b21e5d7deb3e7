//! Image names that the embedded runtime can pull.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::digest::Sha256;
use crate::image::reference::{DEFAULT_TAG, DOCKER_HUB};
use crate::image::{Reference, ReferenceError};

/// A normalised image name that selects one thing in its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageName {
    reference: Reference,
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

/// Why a name cannot be pulled.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidName {
    /// It is no image name at all.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Docker's grammar has room for hosts that no URL has.
    #[error("the image's registry has no usable host and port")]
    Host,
    /// Blobs are kept by SHA-256.
    #[error("the image's digest is not a sha256 digest")]
    Digest,
}

// === impl ImageName ===

impl ImageName {
    /// Reads and normalises `name`.
    pub(super) fn parse(name: &str) -> Result<Self, InvalidName> {
        let reference = Reference::parse(name)?;
        let (host, port) = split_port(reference.registry());
        let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host_ok = !host.is_empty() && address.is_none_or(|text| text.parse::<Ipv6Addr>().is_ok());
        if !host_ok || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(InvalidName::Host);
        }
        let version = match reference.digest() {
            None => Version::Tag(reference.tag().unwrap_or(DEFAULT_TAG).to_owned()),
            Some(digest) => Version::Digest(Sha256::parse(digest).ok_or(InvalidName::Digest)?),
        };
        Ok(Self { reference, version })
    }

    /// The registry host, with its port if the name has one.
    pub(super) fn host(&self) -> &str {
        self.reference.registry()
    }

    /// The host that serves the registry's API: Docker Hub's is not the one in its names.
    pub(super) fn api_host(&self) -> &str {
        match self.host() {
            DOCKER_HUB => "registry-1.docker.io",
            host => host,
        }
    }

    /// The repository path within the registry.
    pub(super) fn path(&self) -> &str {
        self.reference.path()
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
            Version::Tag(tag) => write!(f, "{}:{tag}", self.reference.name()),
            Version::Digest(digest) => write!(f, "{}@{digest}", self.reference.name()),
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

/// Splits `host[:port]`; the colons of a bracketed IPv6 address are not the port's.
fn split_port(host: &str) -> (&str, Option<&str>) {
    let address_end = host.rfind(']').map_or(0, |at| at + 1);
    match host[address_end..].find(':') {
        Some(colon) => (&host[..address_end + colon], Some(&host[address_end + colon + 1..])),
        None => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_digest_alone_decides() {
        let digest = format!("sha256:{HEX}");
        for (name, normal) in [
            ("nginx".to_owned(), "docker.io/library/nginx:latest".to_owned()),
            ("[::1]:5000/x".into(), "[::1]:5000/x:latest".into()),
            (format!("quay.io/x:v1@{digest}"), format!("quay.io/x@{digest}")),
        ] {
            assert_eq!(ImageName::parse(&name).unwrap().to_string(), normal, "{name}");
        }
    }

    #[test]
    fn names_that_no_url_can_have_are_refused() {
        let sha512 = format!("quay.io/x@sha512:{HEX}{HEX}");
        for name in ["", "a.io:99999/b", "[:::]:1/x", "a_b.io/c", "quay.io/A", &sha512] {
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
