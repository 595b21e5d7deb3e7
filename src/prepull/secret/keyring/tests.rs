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
        Some((letter, rest)) => label
            .split_first()
            .is_some_and(|(first, label)| (*letter == b'?' || letter == first) && fits_slowly(rest, label)),
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
