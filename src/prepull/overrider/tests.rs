use proptest::prelude::*;
use serde_json::json;

use super::*;
use ImageComponent::{Registry, Repository, Tag};
use Operator::{Add, Remove, Replace};

const DIGEST: &str = "sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c";

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn image_rules(node_label: &str, rules: &[(ImageComponent, Operator, &str)]) -> ImagePrePullOverrider {
    let rule = |(component, operator, value): &(_, _, &str)| ImageOverrider {
        component: *component,
        operator: *operator,
        value: (*value).to_owned(),
    };
    ImagePrePullOverrider {
        node_label: node_label.into(),
        overriders: Overriders {
            image_overriders: rules.iter().map(rule).collect(),
            ..Overriders::default()
        },
    }
}

/// The result as Docker shows it, or the mistake.
fn changed(image: &str, component: ImageComponent, operator: Operator, value: &str) -> String {
    let rules = [image_rules("", &[(component, operator, value)])];
    match apply(image, &rules, &Labels::new(), "overriders") {
        Ok(reference) => reference.familiar(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_operator_does_to_every_component_what_the_table_says() {
    for (image, component, operator, value, expected) in [
        ("gcr.io/app:v1", Registry, Add, ".cn", "gcr.io.cn/app:v1"),
        ("gcr.io/app", Registry, Add, ":5000", "gcr.io:5000/app"),
        ("nginx:1", Registry, Add, "mirror.io", "mirror.io/nginx:1"),
        ("nginx:latest", Registry, Replace, "hangzhou.registry.io", "hangzhou.registry.io/nginx:latest"),
        ("docker.io/library/nginx", Registry, Replace, "mirror.io", "mirror.io/library/nginx"),
        ("index.docker.io/a/b", Registry, Replace, "mirror.io", "mirror.io/a/b"),
        ("team/app", Registry, Replace, "localhost:5000", "localhost:5000/team/app"),
        ("gcr.io/a/b:v1", Registry, Replace, "harbor.io/hub/", "harbor.io/hub/a/b:v1"),
        ("gcr.io/a/b:v1", Registry, Remove, "", "a/b:v1"),
        ("gcr.io/app:v1", Registry, Remove, "ignored", "app:v1"),
        ("nginx", Registry, Remove, "", "nginx"),
        ("gcr.io/app:v1", Repository, Add, "-arm64", "gcr.io/app-arm64:v1"),
        ("gcr.io/app", Repository, Add, "/arm64", "gcr.io/app/arm64"),
        ("gcr.io/app:v1", Repository, Replace, "x/y", "gcr.io/x/y:v1"),
        ("nginx", Repository, Replace, "x/y", "x/y"),
        ("gcr.io/app:v1", Tag, Add, "-alpine", "gcr.io/app:v1-alpine"),
        ("gcr.io/app", Tag, Add, "v2", "gcr.io/app:v2"),
        ("gcr.io/app:v1", Tag, Replace, "v2", "gcr.io/app:v2"),
        ("gcr.io/app", Tag, Replace, "v2", "gcr.io/app:v2"),
        ("gcr.io/app:v1", Tag, Remove, "", "gcr.io/app"),
    ] {
        assert_eq!(
            changed(image, component, operator, value),
            expected,
            "{image} {component:?} {operator:?}"
        );
    }
}

#[test]
fn digests_are_tags_to_overriders_and_otherwise_stay() {
    let both = format!("gcr.io/app:v1@{DIGEST}");
    assert_eq!(changed(&both, Registry, Replace, "a.io"), format!("a.io/app:v1@{DIGEST}"));
    assert_eq!(changed(&both, Repository, Add, "-x"), format!("gcr.io/app-x:v1@{DIGEST}"));
    assert_eq!(changed(&both, Tag, Remove, ""), "gcr.io/app");
    assert_eq!(changed(&both, Tag, Add, "-x"), "gcr.io/app:v1-x");
    assert_eq!(changed(&both, Tag, Replace, "v2"), "gcr.io/app:v2");
    let digest = format!("gcr.io/app@{DIGEST}");
    for value in [format!("@{DIGEST}"), DIGEST.to_owned()] {
        assert_eq!(changed("gcr.io/app:v1", Tag, Replace, &value), digest);
        assert_eq!(changed("gcr.io/app", Tag, Add, &value), digest);
    }
    assert_eq!(changed("gcr.io/app", Tag, Replace, &format!("v1@{DIGEST}")), both);
    assert!(changed(&digest, Tag, Add, "-x").contains("chosen by its digest"));
}

#[test]
fn what_is_no_image_is_told_of_the_rule_that_makes_it() {
    let start = "overriders[0].overriders.imageOverriders[0].";
    for (image, component, operator, value, expected) in [
        ("nginx", Registry, Replace, "mirror", "value: \"mirror\" would be read as a part of the repository"),
        ("nginx", Registry, Add, "-mirror", "value: makes the image \"-mirror/nginx\""),
        ("gcr.io/a", Registry, Replace, "a b.io", "value: makes the image"),
        ("nginx", Registry, Replace, "", "value: must not be empty"),
        ("nginx", Registry, Add, "", "value: must not be empty"),
        (
            "nginx",
            Repository,
            Replace,
            "Up",
            "value: makes the image \"registry.invalid/Up\": the repository must be",
        ),
        ("nginx", Repository, Replace, "a:v1", "value: has a tag or a digest in it"),
        ("nginx", Repository, Remove, "", "operator: an image without a repository"),
        ("gcr.io/a.b/c", Registry, Remove, "", "value: makes the image \"a.b/c\", whose repository"),
        ("nginx", Tag, Add, "-alpine", "value: makes the image \"nginx:-alpine\": the tag must be"),
        ("nginx", Tag, Replace, "@sha256:1", "value: makes the image"),
        ("gcr.io/app:v1", Tag, Add, "@", "value: has no digest behind its `@`"),
        ("gcr.io/app:v1", Tag, Replace, "@", "value: has no digest behind its `@`"),
    ] {
        let error = changed(image, component, operator, value);
        let expected = format!("{start}{expected}");
        assert!(error.starts_with(&expected), "{image} {component:?} {operator:?} {value:?}: {error}");
    }
    assert!(changed("UP/", Tag, Remove, "").starts_with("image: "));
    let long = changed("nginx", Repository, Add, &"x".repeat(MAX_VALUE + 1));
    assert!(long.ends_with("has more than 512 bytes"), "{long}");
}

#[test]
fn rules_apply_by_label_and_in_order() {
    let rules = [
        image_rules("region", &[(Registry, Replace, "region.io"), (Repository, Add, "-a")]),
        image_rules("region=north", &[(Registry, Add, ".north")]),
        image_rules("region=south", &[(Registry, Add, ".south")]),
        image_rules("edge=", &[(Tag, Replace, "edge")]),
        image_rules("", &[(Repository, Add, "-z")]),
    ];
    let pulled =
        |pairs: &[(&str, &str)]| apply("app:1", &rules, &labels(pairs), "overriders").unwrap().to_string();
    assert_eq!(pulled(&[]), "docker.io/library/app-z:1");
    assert_eq!(pulled(&[("region", "")]), "region.io/app-a-z:1");
    assert_eq!(pulled(&[("region", "north"), ("edge", "yes")]), "region.io.north/app-a-z:1");
    assert_eq!(pulled(&[("region", "south"), ("edge", "")]), "region.io.south/app-a-z:edge");
    assert_eq!(apply("app", &[], &Labels::new(), "").unwrap(), Reference::parse("app").unwrap());
}

#[test]
fn secrets_are_changed_likewise() {
    let rules = |node_label: &str, rules: &[(SecretComponent, Operator, &str)]| ImagePrePullOverrider {
        node_label: node_label.into(),
        overriders: Overriders {
            secret_overriders: rules
                .iter()
                .map(|(component, operator, value)| SecretOverrider {
                    component: *component,
                    operator: *operator,
                    value: (*value).to_owned(),
                })
                .collect(),
            ..Overriders::default()
        },
    };
    use SecretComponent::{Namespace, SecretName};
    let used = |rules: &[ImagePrePullOverrider], pairs: &[(&str, &str)]| {
        apply_secret("default", "secret", rules, &labels(pairs), "overriders")
            .map_err(|error| error.to_string())
    };
    let name = |namespace: &str, name: &str| Ok(Some((namespace.to_owned(), name.to_owned())));
    let given = [
        rules("zone", &[(SecretName, Replace, "hangzhou-secret"), (Namespace, Replace, "edge")]),
        rules("zone=2", &[(SecretName, Add, ".2")]),
        rules("open", &[(SecretName, Remove, "")]),
    ];
    assert_eq!(used(&given, &[]), name("default", "secret"));
    assert_eq!(used(&given, &[("zone", "1")]), name("edge", "hangzhou-secret"));
    assert_eq!(used(&given, &[("zone", "2")]), name("edge", "hangzhou-secret.2"));
    assert_eq!(used(&given, &[("open", "")]), Ok(None));
    let wrong = used(&[rules("", &[(SecretName, Add, "-")])], &[]).unwrap_err();
    assert!(
        wrong.starts_with("overriders[0].overriders.secretOverriders[0].value: makes the name"),
        "{wrong}"
    );
}

#[test]
fn all_mistakes_are_told_at_once_with_their_paths() {
    let overriders: Vec<ImagePrePullOverrider> = serde_json::from_value(json!([
        {"nodeLabel": "a b", "overriders": {
            "imageOverriders": [
                {"component": "Registry", "operator": "replace", "value": "fine.io"},
                {"component": "Registry", "operator": "replace"},
                {"component": "Tag", "operator": "replace", "value": "no tag"},
                {"component": "Repository", "operator": "remove"},
            ],
            "secretOverriders": [
                {"component": "Namespace", "operator": "remove"},
                {"component": "SecretName", "operator": "replace", "value": "No"},
            ],
        }},
        {"nodeLabel": "=x"},
    ]))
    .unwrap();
    let mistakes = validate(&overriders, "overriders").unwrap_err();
    let paths: Vec<_> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "overriders[0].nodeLabel",
            "overriders[0].overriders.imageOverriders[1].value",
            "overriders[0].overriders.imageOverriders[2].value",
            "overriders[0].overriders.imageOverriders[3].operator",
            "overriders[0].overriders.secretOverriders[0].operator",
            "overriders[0].overriders.secretOverriders[1].value",
            "overriders[1].nodeLabel",
        ]
    );
    let many = vec![ImagePrePullOverrider::default(); MAX_RULES + 1];
    assert_eq!(validate(&many, "o").unwrap_err()[0].to_string(), "o: has 65 entries; at most 64 are read");
}

#[test]
fn the_json_form_is_the_proposals() {
    let written = json!({"nodeLabel": "labelexample", "overriders": {
        "imageOverriders": [{"component": "Registry", "operator": "replace", "value": "hangzhou.registry.io"}],
        "secretOverriders": [{"component": "SecretName", "operator": "remove"}],
    }});
    let read: ImagePrePullOverrider = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), written);
    for wrong in
        [json!({"nodelabel": "x"}), json!({"overriders": {"imageOverriders": [{"component": "registry"}]}})]
    {
        assert!(serde_json::from_value::<ImagePrePullOverrider>(wrong).is_err());
    }
}

proptest! {
    /// Whatever the rules are: a name that reads as itself, or a mistake.
    #[test]
    fn the_result_is_a_name(
        image in "([a-c]{1,3}\\.io/)?[a-c]{1,3}(/[a-c]{1,3})?(:[a-c1]{1,3})?",
        rules in prop::collection::vec(
            (prop::sample::select(vec![Registry, Repository, Tag]),
             prop::sample::select(vec![Add, Remove, Replace]),
             "[a-c.:/@-]{0,6}"),
            0..4,
        ),
    ) {
        let rules: Vec<_> = rules.iter().map(|(c, o, v)| (*c, *o, v.as_str())).collect();
        let rules = [image_rules("", &rules)];
        if let Ok(reference) = apply(&image, &rules, &Labels::new(), "overriders") {
            prop_assert_eq!(Reference::parse(&reference.to_string()).unwrap(), reference);
            prop_assert!(validate(&rules, "overriders").is_ok());
        }
    }

    #[test]
    fn no_text_is_too_odd(image in "\\PC{0,40}", label in "\\PC{0,20}", value in "\\PC{0,40}") {
        let rules = [image_rules(&label, &[(Registry, Replace, &value), (Tag, Add, &value)])];
        let _ = validate(&rules, "overriders");
        let _ = apply(&image, &rules, &Labels::new(), "overriders");
    }
}
