use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::image::spec::tests::any_spec;

fn wrong(text: &str) -> String {
    Specs::parse(text).unwrap_err().to_string()
}

#[test]
fn a_pod_may_mix_formats_and_volumes() {
    let text = r#"{
        "etcd": {"aci": {"name": "coreos.com/etcd", "tag": "v2.2.0"}},
        "web": {"dockerImage": {"registry": "docker.io", "name": "nginx"}},
        "volume/web": {"dockerImage": {"registry": "gcr.io", "name": "models"}}
    }"#;
    let specs = Specs::parse(text).unwrap();
    let images: Vec<_> = specs.iter().map(|(container, spec)| (container, spec.image())).collect();
    let expected =
        [("etcd", "coreos.com/etcd:v2.2.0"), ("volume/web", "gcr.io/models"), ("web", "docker.io/nginx")];
    assert_eq!(images, expected.map(|(container, image)| (container, image.to_owned())));
    assert_eq!(Specs::parse("{}").unwrap(), Specs::default());
}

#[test]
fn a_mistake_is_told_with_container_and_field() {
    for (text, expected) in [
        ("", "EOF while parsing"),
        ("[]", "invalid type: sequence, expected an object with a spec for each container"),
        (r#"{"web": 1}"#, "container \"web\": invalid type: integer `1`, expected an object"),
        (r#"{"web": {}}"#, "container \"web\": the spec has no member"),
        (r#"{"web": {"aci": {"nmae": "x"}}}"#, "container \"web\": aci.nmae: unknown field `nmae`"),
        (r#"{"web": {"aci": {"name": "X"}}}"#, "container \"web\": aci.name: \"X\" must be"),
        (r#"{"web": {"aci": {"name": "x"}}, "web": {"aci": {"name": "x"}}}"#, "has \"web\" twice"),
        (r#"{"We b": {"aci": {"name": "x"}}}"#, "container \"We b\": is neither the name of a container"),
        (r#"{"volume/": {"aci": {"name": "x"}}}"#, "container \"volume/\": is neither"),
        (r#"{"a.b": {"aci": {"name": "X"}}}"#, "container \"a.b\": is neither"),
    ] {
        let said = wrong(text);
        assert!(said.starts_with(expected), "{said:?} does not begin with {expected:?}");
    }
}

fn many(count: usize) -> String {
    let mut text = String::from("{");
    for n in 0..count {
        write!(text, r#"{}"c{n}":{{"aci":{{"name":"x"}}}}"#, if n == 0 { "" } else { "," }).unwrap();
    }
    text + "}"
}

/// What is too large is refused for its size alone; what is read is bounded by that size, and so is the error.
#[test]
fn hostile_sizes_are_refused() {
    assert_eq!(Specs::parse(&many(MAX_SPECS)).unwrap().iter().count(), MAX_SPECS);
    assert!(wrong(&many(MAX_SPECS + 1)).starts_with("has more than 512 specs"));
    let hundred_thousand = many(100_000);
    assert_eq!(
        wrong(&hundred_thousand),
        format!("has {} bytes; at most 262144 (256 KiB) are read", hundred_thousand.len())
    );
    for filler in [" ", "[", "{\"a\":", "\"", "\\", "ü", "{\"aci\":{\"name\":\""] {
        let mega = filler.repeat((1 << 20) / filler.len() + 1);
        assert!(wrong(&mega).contains("at most 262144"), "{filler}");
        let large = filler.repeat(MAX_BYTES / filler.len());
        assert!(wrong(&large).len() < 500, "{filler}");
    }
    let long_key = format!(r#"{{"{}":1}}"#, "k".repeat(200_000));
    assert!(wrong(&long_key).len() < 500);
    let long_value = format!(r#"{{"a":"{}"}}"#, "v".repeat(200_000));
    assert!(wrong(&long_value).len() < 500);
}

proptest! {
    #[test]
    fn any_text_is_specs_or_an_error(text in any::<String>()) {
        let _ = Specs::parse(&text);
    }

    #[test]
    fn nearly_valid_text_is_specs_or_an_error(
        text in "\\{(\"[a-c/-]{0,4}\":\\{(\"(aci|dockerImage)\":\\{(\"(name|registry)\":\"[a-c./]{1,4}\",?){0,2}\\},?){0,2}\\},?){0,3}\\}",
    ) {
        let _ = Specs::parse(&text);
    }

    #[test]
    fn specs_are_what_they_are_written_as(
        specs in proptest::collection::btree_map("(volume/)?[a-z0-9]{1,8}", any_spec(), 0..8),
    ) {
        let text = serde_json::to_string(&specs).unwrap();
        let read = Specs::parse(&text).unwrap();
        prop_assert_eq!(&read.0, &specs);
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
}
