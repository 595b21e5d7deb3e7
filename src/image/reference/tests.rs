use proptest::prelude::*;

use super::*;

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn normal(name: &str) -> String {
    Reference::parse(name).unwrap().with_default_tag().to_string()
}

#[test]
fn names_are_normalised_as_the_kubelet_does() {
    let digest = format!("sha256:{HEX}");
    let long = format!("sha512:{HEX}{HEX}");
    for (name, expected) in [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.27", "docker.io/library/nginx:1.27"),
        ("library/nginx", "docker.io/library/nginx:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
        ("bitnami/redis", "docker.io/bitnami/redis:latest"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x/y:v1", "localhost:5000/x/y:v1"),
        ("nginx:1/2", "nginx:1/2:latest"),
        ("[::1]:5000/x", "[::1]:5000/x:latest"),
        ("Foo/bar", "Foo/bar:latest"),
        ("a.io:99999/b", "a.io:99999/b:latest"),
        ("quay.io/a__b/c-----d", "quay.io/a__b/c-----d:latest"),
        ("coreos.com/etcd:v2.2.0", "coreos.com/etcd:v2.2.0"),
        ("a_b.io/c", "a_b.io/c:latest"),
        (&digest, &format!("docker.io/library/{digest}")),
        (&format!("{HEX}:v1"), &format!("docker.io/library/{HEX}:v1")),
        (&format!("quay.io/x@{digest}"), &format!("quay.io/x@{digest}")),
        (&format!("quay.io/x:v1@{digest}"), &format!("quay.io/x:v1@{digest}")),
        (&format!("x@{long}"), &format!("docker.io/library/x@{long}")),
    ] {
        assert_eq!(normal(name), expected, "{name}");
    }
}

#[test]
fn what_the_kubelet_refuses_is_refused() {
    let long = "a".repeat(256);
    let tag = format!("a:{}", "t".repeat(129));
    for (name, part) in [
        ("", "repository"),
        ("UPPER", "lower case"),
        ("a//b", "repository"),
        ("/a", "repository"),
        ("a/", "repository"),
        ("a:", "tag"),
        ("a:-x", "tag"),
        (&tag, "tag"),
        ("quay.io/../etc", "repository"),
        ("a b", "repository"),
        ("a\n", "repository"),
        ("docker://x", "repository"),
        ("aci://x/y", "repository"),
        ("etcd,version=1", "repository"),
        ("quay.io/A", "lower case"),
        ("a@sha256:12", "digest"),
        ("a@sha512:00", "digest"),
        (&format!("a@SHA256:{HEX}"), "digest"),
        (&format!("a@md5:{HEX}"), "digest"),
        (&format!("a@sha256:{HEX}@sha256:{HEX}"), "digest"),
        ("-a.io/b", "registry"),
        ("a.io:/b", "registry"),
        ("[::1/x", "registry"),
        ("[zz]:1/x", "registry"),
        ("a_b:5000/x", "registry"),
        ("quay.io/a_-b", "repository"),
        (HEX, "image id"),
        (&long, "255"),
    ] {
        let error = Reference::parse(name).unwrap_err();
        assert!(error.reason().contains(part), "{name}: {error}");
    }
}

#[test]
fn an_error_shows_only_the_beginning_of_a_long_name() {
    let error = Reference::parse(&"/ü".repeat(1 << 19)).unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
}

#[test]
fn familiar_names_are_what_people_know() {
    for (name, familiar) in [
        ("docker.io/library/nginx:1", "nginx:1"),
        ("bitnami/redis", "bitnami/redis"),
        ("docker.io/library/a/b", "library/a/b"),
        ("quay.io/library/x", "quay.io/library/x"),
    ] {
        assert_eq!(Reference::parse(name).unwrap().familiar(), familiar);
    }
}

#[test]
fn the_default_tag_is_only_for_names_that_select_nothing() {
    let digest = format!("sha256:{HEX}");
    let reference = Reference::parse(&format!("x@{digest}")).unwrap().with_default_tag();
    assert_eq!((reference.tag(), reference.digest()), (None, Some(digest.as_str())));
    assert_eq!(Reference::parse("x").unwrap().tag(), None);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = Reference::parse(&text);
    }

    #[test]
    fn nearly_valid_text_reads_the_same_again(text in "[a-cA0/._:@\\[\\]-]{0,24}") {
        if let Ok(reference) = Reference::parse(&text) {
            prop_assert_eq!(&Reference::parse(&reference.to_string()).unwrap(), &reference);
            let tagged = reference.with_default_tag();
            prop_assert_eq!(Reference::parse(&tagged.to_string()).unwrap(), tagged.clone());
            prop_assert_eq!(tagged.clone().with_default_tag(), tagged);
        }
    }

    #[test]
    fn a_name_has_the_parts_that_it_was_made_of(
        registry in "[a-z0-9]{1,5}(\\.[a-z0-9]{1,5}){1,2}(:[0-9]{1,5})?",
        path in "[a-z0-9]{1,5}((\\.|_|__|-{1,3}|/)[a-z0-9]{1,5}){1,4}",
        tag in proptest::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"),
        digest in proptest::option::of("sha256:[0-9a-f]{64}"),
    ) {
        let text = format!("{registry}/{path}{}", Version { tag: tag.as_deref(), digest: digest.as_deref() });
        let reference = Reference::parse(&text).unwrap();
        prop_assert_eq!(reference.to_string(), text);
        prop_assert_eq!(reference.registry(), registry);
        prop_assert_eq!(reference.path(), path);
        prop_assert_eq!(reference.tag(), tag.as_deref());
        prop_assert_eq!(reference.digest(), digest.as_deref());
    }
}
