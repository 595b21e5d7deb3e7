//! What can be configured of the Kubernetes API server, and of what pods may ask for that only it knows.

use std::path::PathBuf;

use super::Field;
use super::value::{absolute, boolean, number};

/// How the Kubernetes API server is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kube {
    /// Where the API server is and who crisp is there. `None`: from the pod that crisp runs in, if it runs in one.
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node in the API. `None`: the host name, in lower case.
    pub node_name: Option<String>,
}

/// What pods may ask of Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Whether the annotations are looked at.
    pub enabled: bool,
    /// Most pods that wait for Services at once.
    pub max_held: usize,
}

/// Their fields, in the order in which they are documented.
pub(super) const FIELDS: &[Field] = &[
    Field {
        key: "kubeconfig",
        default: "",
        form: "FILE",
        help: "How the Kubernetes API server is reached. Without it, crisp asks it only if it runs in a pod with a service \
               account. What needs the API server is off otherwise. The file is read whenever it is needed: one that is \
               missing or broken stops nothing else.",
        set: |config, text| absolute(text).map(|path| config.kube.kubeconfig = Some(path)),
    },
    Field {
        key: "nodeName",
        default: "",
        form: "NAME",
        help: "Name of this node in the Kubernetes API. Without it, the host name in lower case, as the kubelet does.",
        set: |config, text| node_name(text).map(|name| config.kube.node_name = Some(name)),
    },
    Field {
        key: "links.enabled",
        default: "true",
        form: "true or false",
        help: "Whether the annotations crisp.dev/service-dependencies and crisp.dev/env-from of pods are looked at.",
        set: |config, text| boolean(text).map(|flag| config.links.enabled = flag),
    },
    Field {
        key: "links.maxHeld",
        default: "200",
        form: "number, at least 1",
        help: "How many pods wait at once for Services they depend on. More are refused, and tried again by the kubelet.",
        set: |config, text| number(text, 1, 10_000).map(|number| config.links.max_held = number),
    },
];

/// As the API server names nodes: a DNS subdomain.
fn node_name(text: &str) -> Result<String, String> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err("expected the name of a node, as `kubectl get nodes` shows it: lower-case letters, digits, `-` and `.`".into())
}

#[cfg(test)]
mod tests {
    use super::node_name;

    #[test]
    fn a_node_is_named_as_the_api_names_it() {
        for fine in ["a", "node-1", "ip-10-0-0-1.eu-west-1.compute.internal", "7"] {
            assert_eq!(node_name(fine).as_deref(), Ok(fine));
        }
        for wrong in ["", "Node", "a_b", "-a", "a-", "a..b", ".a", "a/b", "a?x", &"a".repeat(254)] {
            assert!(node_name(wrong).is_err(), "{wrong}");
        }
    }
}
