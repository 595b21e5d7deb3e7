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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tried(registries: &[&str], image: &str) -> Vec<String> {
        let credentials: Vec<_> = registries
            .iter()
            .enumerate()
            .map(|(at, registry)| Credential::password(registry, &format!("u{at}"), "p").unwrap())
            .collect();
        let image = Reference::parse(image).unwrap();
        matching(&credentials, &image).iter().map(|found| found.username.0.clone()).collect()
    }

    #[test]
    fn hosts_match_label_by_label() {
        for (registry, image, fits) in [
            ("gcr.io", "gcr.io/a", true),
            ("gcr.io", "eu.gcr.io/a", false),
            ("https://gcr.io", "gcr.io/a", true),
            ("http://gcr.io/", "gcr.io/a", true),
            ("https://gcr.io/v2/", "gcr.io/a", true),
            ("https://gcr.io/v2/a", "gcr.io/a", true),
            ("https://gcr.io/v2/a", "gcr.io/b", false),
            ("*.example.com", "a.example.com/x", true),
            ("*.example.com", "example.com/x", false),
            ("*.example.com", "a.b.example.com/x", false),
            ("*.*.example.com", "a.b.example.com/x", true),
            ("re*y.example.?om", "registry.example.com/x", true),
            ("re*z.example.com", "registry.example.com/x", false),
            ("*.com", "example.com:5000/x", false),
            ("*.com:5000", "example.com:5000/x", true),
            ("example.com:5000", "example.com/x", false),
            ("localhost:5000", "localhost:5000/x", true),
            ("[::1]:5000", "[::1]:5000/x", true),
            ("[::1]", "[::1]/x", true),
            ("[::1]", "[::1]:5000/x", false),
            ("gcr.io/team", "gcr.io/team/app", true),
            ("gcr.io/team", "gcr.io/team-b/app", true),
            ("gcr.io/team/", "gcr.io/team-b/app", false),
            ("gcr.io/other", "gcr.io/team/app", false),
            ("*", "gcr.io/a", false),
            ("*", "localhost/a", true),
        ] {
            assert_eq!(!tried(&[registry], image).is_empty(), fits, "{registry} for {image}");
        }
    }

    #[test]
    fn docker_hub_has_many_names() {
        let names = ["docker.io", "*.io", "index.docker.io", "https://index.docker.io/v1/"];
        for image in ["nginx", "docker.io/library/nginx", "index.docker.io/nginx:1"] {
            // The pattern comes last: it is less specific.
            assert_eq!(tried(&names, image), ["u0", "u2", "u3", "u1"], "{image}");
        }
        assert_eq!(tried(&["docker.io/library"], "nginx"), ["u0"]);
        assert!(tried(&["docker.io"], "gcr.io/nginx").is_empty());
    }

    #[test]
    fn the_more_specific_comes_first_and_equals_keep_their_order() {
        let given = ["gcr.io", "*.io/a", "gcr.io/a/b", "*.io", "gcr.io/a", "https://gcr.io/v2/a/b", "gcr.io"];
        assert_eq!(tried(&given, "gcr.io/a/b/c:1"), ["u2", "u5", "u4", "u0", "u6", "u1", "u3"]);
    }

    #[test]
    fn what_has_no_host_is_no_registry() {
        for text in ["", "/", "https://", ":5000", "/team", "user@gcr.io", "a b", "a%2f", "a\n"] {
            assert_eq!(Pattern::of(text), None, "{text:?}");
        }
    }

    /// The same, slowly.
    fn fits_slowly(pattern: &[u8], label: &[u8]) -> bool {
        match pattern.split_first() {
            None => label.is_empty(),
            Some((b'*', rest)) => (0..=label.len()).any(|at| fits_slowly(rest, &label[at..])),
            Some((letter, rest)) => label.split_first().is_some_and(|(first, label)| {
                (*letter == b'?' || letter == first) && fits_slowly(rest, label)
            }),
        }
    }

    proptest! {
        #[test]
        fn patterns_fit_as_defined(pattern in "[ab*?]{0,8}", label in "[ab]{0,8}") {
            prop_assert_eq!(fits(&pattern, &label), fits_slowly(pattern.as_bytes(), label.as_bytes()));
        }

        /// Whatever is given: every match is one by itself, none is lost, and the order is of the more specific first.
        #[test]
        fn matching_is_a_stable_sort_of_what_matches(
            registries in prop::collection::vec("(https://)?(a|\\*|b)\\.(io|\\*)(/x(/y)?)?", 0..8),
            image in "(a|b)\\.io/x(/y)?(:1)?",
        ) {
            let credentials: Vec<_> = registries
                .iter()
                .map(|registry| Credential::password(registry, "u", "p").unwrap())
                .collect();
            let image = Reference::parse(&image).unwrap();
            let found = matching(&credentials, &image);
            let alone = credentials.iter().filter(|one| !matching(std::slice::from_ref(one), &image).is_empty());
            prop_assert_eq!(found.len(), alone.count());
            let place = |credential: &Credential| {
                let at = credentials.iter().position(|other| std::ptr::eq(other, credential)).unwrap();
                (Reverse(Pattern::of(credentials[at].registry()).unwrap()), at)
            };
            prop_assert!(found.is_sorted_by_key(|credential| place(credential)));
        }

        #[test]
        fn no_text_is_too_odd(text in "\\PC{0,40}") {
            if let Some(pattern) = Pattern::of(&text) {
                pattern.matches(&Reference::parse("gcr.io/a").unwrap());
            }
        }
    }
}
