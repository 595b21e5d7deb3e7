//! How urgent a pull is.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cri::view;

/// The mark of OpenKruise's daemon on the pulls that it makes ahead of time.
const KRUISE_MARK: (&str, &str) = ("apps.kruise.io/pulling-image-by", "kruise-daemon");

/// Classes of pulls, the least urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Made ahead of time; nobody waits for it.
    Background,
    /// Made ahead of time, before others of that kind.
    Normal,
    /// Somebody waits, but no pod that is known: crictl, kubeadm.
    Urgent,
    /// A pod waits.
    Kubelet,
}

impl Class {
    /// All of them, the least urgent first.
    pub const ALL: [Self; 4] = [Self::Background, Self::Normal, Self::Urgent, Self::Kubelet];

    /// The name in metrics, JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Normal => "normal",
            Self::Urgent => "urgent",
            Self::Kubelet => "kubelet",
        }
    }

    /// The class of a pull that came over the socket. The mark counts only where there is no pod: one that has a uid
    /// is waited for by a kubelet, whatever its annotations say.
    pub fn of(sandbox: Option<&view::PodSandboxConfig>, bare_is_background: bool) -> Self {
        let Some(sandbox) = sandbox else {
            return if bare_is_background { Self::Background } else { Self::Urgent };
        };
        if sandbox.metadata.as_ref().is_some_and(|pod| !pod.uid.is_empty()) {
            return Self::Kubelet;
        }
        let (key, value) = KRUISE_MARK;
        match sandbox.annotations.get(key) {
            Some(mark) if mark == value => Self::Background,
            _ => Self::Urgent,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(uid: &str, mark: Option<&str>) -> view::PodSandboxConfig {
        let metadata = view::PodSandboxMetadata { uid: uid.into(), ..Default::default() };
        let mark = mark.map(|value| (KRUISE_MARK.0.to_owned(), value.to_owned()));
        view::PodSandboxConfig { metadata: Some(metadata), annotations: mark.into_iter().collect() }
    }

    #[test]
    fn a_pull_is_as_urgent_as_who_waits_for_it() {
        let marked = Some("kruise-daemon");
        assert_eq!(Class::of(Some(&sandbox("u", None)), false), Class::Kubelet);
        // A pod cannot be slowed down, nor slow itself down, by an annotation.
        assert_eq!(Class::of(Some(&sandbox("u", marked)), false), Class::Kubelet);
        assert_eq!(Class::of(Some(&sandbox("", marked)), false), Class::Background);
        assert_eq!(Class::of(Some(&sandbox("", Some("me"))), false), Class::Urgent);
        assert_eq!(Class::of(None, false), Class::Urgent);
        assert_eq!(Class::of(None, true), Class::Background);
    }

    #[test]
    fn kubelets_come_first() {
        assert!(Class::ALL.is_sorted());
        assert_eq!(Class::ALL.last(), Some(&Class::Kubelet));
    }
}
