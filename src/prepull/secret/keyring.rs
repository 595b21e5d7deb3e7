//! Which credentials apply to an image, and in which order they are tried: the kubelet's rules, so that a pre-pull finds
//! what the pod's own pull will find.
//!
//! - A credential is for `HOST[:PORT][/PATH]`. A scheme before it, and Docker's `/v1/` or `/v2/` behind the host, mean
//!   nothing.
//! - Host names are compared label by label; `*` and `?` stand for any characters of one label, so `*.example.com` is
//!   for `a.example.com` and neither for `example.com` nor for `a.b.example.com`. Ports must be equal.
//! - The path must be the beginning of the repository's, letter by letter: as with the kubelet, `gcr.io/team` is for
//!   `gcr.io/team-b/app` too.
//! - `docker.io`, `index.docker.io` and `https://index.docker.io/v1/` are the same.
//! - The more specific comes first: the longer path, a name before a pattern (the kubelet sorts them backwards by the
//!   alphabet). What is for the same place is tried in the order in which it was given.

use std::cmp::Reverse;

use super::Credential;
use crate::image::Reference;
use crate::image::reference::DOCKER_HUB;

/// The names that Docker Hub has had as a registry.
const DOCKER_HUB_NAMES: [&str; 2] = [DOCKER_HUB, "index.docker.io"];

/// The credentials that apply to an image, the first to try first.
pub fn matching<'a>(credentials: &'a [Credential], image: &Reference) -> Vec<&'a Credential> {
    let mut found: Vec<_> = credentials
        .iter()
        .filter_map(|credential| Some((Pattern::of(credential.registry())?, credential)))
        .filter(|(pattern, _)| pattern.matches(image))
        .collect();
    // Stable: equal ones stay in their order.
    found.sort_by(|(one, _), (other, _)| Reverse(one).cmp(&Reverse(other)));
    found.into_iter().map(|(_, credential)| credential).collect()
}

/// The images that a credential is for. The order is the kubelet's of the texts, which begin with the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern<'a> {
    host: &'a str,
    path: &'a str,
}

// === impl Pattern ===

impl<'a> Pattern<'a> {
    /// Reads a registry as it is written. `None` if there is no host in it.
    pub(super) fn of(registry: &'a str) -> Option<Self> {
        let text = registry.strip_prefix("https://").or(registry.strip_prefix("http://")).unwrap_or(registry);
        let (host, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let odd = |letter: char| letter.is_whitespace() || letter.is_control() || "@#%\\".contains(letter);
        if host.is_empty() || host.starts_with(':') || text.contains(odd) {
            return None;
        }
        let host = if DOCKER_HUB_NAMES.contains(&host) { DOCKER_HUB } else { host };
        let path = match path.get(..4) {
            // The slash in front of the path stays.
            Some("/v1/" | "/v2/") => path.get(3..).unwrap_or_default(),
            _ if matches!(path, "/v1" | "/v2") => "",
            _ => path,
        };
        Some(Self { host, path: if path == "/" { "" } else { path } })
    }

    fn matches(&self, image: &Reference) -> bool {
        let (name, port) = split_port(self.host);
        let (image_name, image_port) = split_port(image.registry());
        let path = self.path.strip_prefix('/').unwrap_or(self.path);
        let labels_match = || {
            name.split('.').count() == image_name.split('.').count()
                && name.split('.').zip(image_name.split('.')).all(|(pattern, label)| fits(pattern, label))
        };
        port == image_port
            && image.path().starts_with(path)
            && (name == image_name || (!name.starts_with('[') && labels_match()))
    }
}

/// Splits `host[:port]`; the colons of a bracketed address are not the port's.
fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    }
}

/// Whether a label fits a pattern with `*` and `?`. Looks back to the last `*` only, so the work is bounded by the
/// product of the lengths.
fn fits(pattern: &str, label: &str) -> bool {
    let (pattern, label) = (pattern.as_bytes(), label.as_bytes());
    let (mut at, mut seen) = (0, 0);
    let mut star = None;
    while seen < label.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(letter) if *letter == b'?' || *letter == label[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                // The last star takes one letter more.
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                at = star_at + 1;
                seen = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests;
