//! Which names are ACI images by themselves, without an annotation that says so.

use std::fmt;

use super::grammar::{is_ac_identifier, looks_like_host};
use super::reference::{DEFAULT_TAG, DOCKER_HUB};
use super::spec::{AciImage, SpecError};
use super::{Reference, shown};

/// The host under which every name is an ACI image: `aci.crisp.invalid/<aci name>:<version>`. Nothing can ever answer
/// for it (RFC 6761) when crisp is out of the path.
pub const RESERVED_HOST: &str = "aci.crisp.invalid";

/// The names that are ACI images: those under the reserved host, and those under the configured prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AciNames {
    prefixes: Vec<String>,
}

// === impl AciNames ===

impl AciNames {
    /// Reads a list of prefixes, separated by commas. A prefix is a host, with or without a path: `coreos.com,
    /// example.com/aci`. The error is ready to be shown.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut prefixes = Vec::new();
        for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let prefix = text.strip_suffix('/').unwrap_or(text);
            let host = prefix.split('/').next().unwrap_or_default();
            let wrong = if !is_ac_identifier(prefix) || !looks_like_host(host) {
                "expected a lower-case host, with or without a path, for example coreos.com or example.com/aci"
            } else if host == DOCKER_HUB {
                "is where every name without a registry lies"
            } else {
                prefixes.push(prefix.to_owned());
                continue;
            };
            return Err(format!("{:?}: {wrong}", shown(text)));
        }
        Ok(Self { prefixes })
    }

    /// The ACI image that a name means by itself; `None` if it is a Docker name. An error says why a name that ought to
    /// be an ACI image's is not.
    pub fn image(&self, reference: &Reference) -> Option<Result<AciImage, SpecError>> {
        let name = if reference.registry().eq_ignore_ascii_case(RESERVED_HOST) {
            reference.path().to_owned()
        } else {
            let name = reference.name();
            // By whole components: `coreos.com/etcd` has no say in `coreos.com/etcdctl`.
            let under = |prefix: &String| {
                name.strip_prefix(prefix.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            if !self.prefixes.iter().any(under) {
                return None;
            }
            name
        };
        if let Some(digest) = reference.digest() {
            let reason = format!("an ACI image has no digest such as {digest}; name its id in a spec");
            return Some(Err(SpecError { field: "image".to_owned(), reason }));
        }
        // The kubelet adds `latest` to a name without a version.
        let tag = reference.tag().filter(|tag| *tag != DEFAULT_TAG).map(str::to_owned);
        Some(AciImage::new(Some(name), tag, None))
    }
}

impl fmt::Display for AciNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefixes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &AciNames, text: &str) -> Option<Result<String, String>> {
        let reference = Reference::parse(text).unwrap().with_default_tag();
        Some(names.image(&reference)?.map(|image| image.image()).map_err(|error| error.to_string()))
    }

    #[test]
    fn names_under_the_reserved_host_are_aci() {
        let names = AciNames::default();
        let is = |text: &str| image(&names, text).unwrap().unwrap();
        assert_eq!(is("aci.crisp.invalid/coreos.com/etcd:v2.2.0"), "coreos.com/etcd:v2.2.0");
        assert_eq!(is("aci.crisp.invalid/coreos.com/flannel"), "coreos.com/flannel");
        assert_eq!(is("aci.crisp.invalid/etcd:latest"), "etcd");
        assert_eq!(is("ACI.crisp.invalid/etcd"), "etcd");
        for text in ["coreos.com/etcd", "aci.crisp.invalid.io/x", "x/aci.crisp.invalid", "etcd"] {
            assert_eq!(image(&names, text), None, "{text}");
        }
        let wrong = image(&names, "aci.crisp.invalid/a__b").unwrap().unwrap_err();
        assert!(wrong.starts_with("aci.name: \"a__b\" must be"), "{wrong}");
        let digest = format!("aci.crisp.invalid/a@sha256:{}", "0".repeat(64));
        assert!(image(&names, &digest).unwrap().unwrap_err().contains("has no digest"));
    }

    #[test]
    fn names_under_a_prefix_are_aci_by_whole_components() {
        let names = AciNames::parse(" coreos.com/ , example.com/a,").unwrap();
        assert_eq!(names.to_string(), "coreos.com,example.com/a");
        for text in ["coreos.com/etcd:v1", "coreos.com/a/b", "example.com/a", "example.com/a/b"] {
            assert!(image(&names, text).unwrap().is_ok(), "{text}");
        }
        for text in ["coreos.community/etcd", "example.com/ab", "example.com/b", "coreos.com:5000/x", "nginx"]
        {
            assert_eq!(image(&names, text), None, "{text}");
        }
    }

    #[test]
    fn a_prefix_that_would_take_docker_names_along_is_refused() {
        for list in [
            "docker.io",
            "docker.io/library",
            "etcd",
            "library/etcd",
            "Coreos.com",
            "a.io:5000",
            "a.io//b",
            "/",
        ] {
            let error = AciNames::parse(list).unwrap_err();
            assert!(error.starts_with(&format!("{list:?}: ")), "{error}");
        }
    }
}
