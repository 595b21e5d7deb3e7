use proptest::prelude::*;

use super::*;

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn wrong(json: &str) -> String {
    ImageSpec::from_json(json).unwrap_err().to_string()
}

/// `pod.Spec.Containers[x].Image` of the proposal's examples, and what it looks like to new clients.
#[test]
fn the_proposals_images_become_its_specs() {
    for (image, json) in [
        ("test-repo/foo", r#"{"dockerImage":{"registry":"docker.io","name":"test-repo/foo"}}"#),
        ("gcr.io/test-repo/bar", r#"{"dockerImage":{"registry":"gcr.io","name":"test-repo/bar"}}"#),
        // The motivation: where a string hides its registry.
        (
            "gcr.io/google_containers/nginx",
            r#"{"dockerImage":{"registry":"gcr.io","name":"google_containers/nginx"}}"#,
        ),
        ("library/nginx", r#"{"dockerImage":{"registry":"docker.io","name":"library/nginx"}}"#),
        ("nginx", r#"{"dockerImage":{"registry":"docker.io","name":"library/nginx"}}"#),
        // What the proposal warns of: alone, the string of an ACI image is read as Docker's.
        (
            "coreos.com/etcd:v2.2.0",
            r#"{"dockerImage":{"registry":"coreos.com","name":"etcd","tag":"v2.2.0"}}"#,
        ),
    ] {
        let spec = ImageSpec::of_image(image).unwrap();
        assert_eq!(serde_json::to_string(&spec).unwrap(), json, "{image}");
        assert_eq!(spec, ImageSpec::from_json(json).unwrap(), "{image}");
        let wanted = Reference::parse(image).unwrap().with_default_tag();
        assert_eq!(spec.differs(&wanted), None, "{image}");
    }
}

/// `pod.Spec.Containers[x].ImageSpec` of the proposal's examples, and what it looks like to old clients.
#[test]
fn the_proposals_specs_become_its_images() {
    for (json, image) in [
        (r#"{"dockerImage":{"registry":"docker.io","name":"test-repo/foo"}}"#, "docker.io/test-repo/foo"),
        (r#"{"dockerImage":{"registry":"gcr.io","name":"test-repo/bar"}}"#, "gcr.io/test-repo/bar"),
        (r#"{"aci":{"name":"coreos.com/etcd","tag":"v2.2.0"}}"#, "coreos.com/etcd:v2.2.0"),
        (r#"{"aci":{"name":"coreos.com/flannel"}}"#, "coreos.com/flannel"),
    ] {
        let spec = ImageSpec::from_json(json).unwrap();
        assert_eq!(spec.image(), image);
        assert_eq!(serde_json::to_string(&spec).unwrap(), json);
        assert_eq!(spec.differs(&Reference::parse(image).unwrap().with_default_tag()), None);
        if let ImageSpec::Docker(_) = spec {
            assert_eq!(ImageSpec::of_image(image).unwrap(), spec);
        }
    }
}

#[test]
fn tag_and_digest_are_both_kept() {
    let json = format!(
        r#"{{"dockerImage":{{"registry":"localhost:5000","name":"a/b","tag":"v1","digest":"sha256:{HEX}"}}}}"#
    );
    let spec = ImageSpec::from_json(&json).unwrap();
    assert_eq!(spec.image(), format!("localhost:5000/a/b:v1@sha256:{HEX}"));
    assert_eq!(ImageSpec::of_image(&spec.image()).unwrap(), spec);
    assert_eq!(serde_json::to_string(&spec).unwrap(), json);
}

#[test]
fn an_aci_image_can_be_named_in_two_ways() {
    let json = format!(r#"{{"aci":{{"name":"coreos.com/etcd","tag":"v2.2.0","id":"sha512-{HEX}{HEX}"}}}}"#);
    let ImageSpec::Aci(image) = ImageSpec::from_json(&json).unwrap() else { panic!("not an ACI") };
    let names: Vec<_> = image.references().map(|name| name.to_string()).collect();
    assert_eq!(names, ["coreos.com/etcd:v2.2.0", "aci.crisp.invalid/coreos.com/etcd:v2.2.0"]);
    assert_eq!(serde_json::to_string(&ImageSpec::Aci(image)).unwrap(), json);
    // appc allows what no pod can write.
    let tilde = AciImage::new(Some("example.com/a~b".into()), None, None).unwrap();
    assert_eq!(tilde.references().count(), 0);
}

#[test]
fn null_is_the_same_as_absent() {
    let json = r#"{"dockerImage":{"registry":"gcr.io","name":"x","tag":null,"digest":null},"aci":null}"#;
    assert_eq!(ImageSpec::from_json(json).unwrap().image(), "gcr.io/x");
}

#[test]
fn exactly_one_member_is_needed() {
    for json in ["{}", r#"{"aci":null}"#] {
        assert_eq!(wrong(json), "the spec has no member; exactly one of `dockerImage` and `aci` is needed");
    }
    let both = r#"{"dockerImage":{"registry":"gcr.io","name":"x"},"aci":{"name":"x"}}"#;
    assert_eq!(wrong(both), "the spec has both `dockerImage` and `aci`; exactly one of them is allowed");
}

#[test]
fn a_mistake_is_told_with_its_field() {
    let docker = |fields: &str| wrong(&format!(r#"{{"dockerImage":{{{fields}}}}}"#));
    let aci = |fields: &str| wrong(&format!(r#"{{"aci":{{{fields}}}}}"#));
    for (said, expected) in [
        (docker(""), "dockerImage.registry: is required: the registry's host, for example docker.io"),
        (docker(r#""registry":"","name":"x""#), "dockerImage.registry: is required"),
        (docker(r#""registry":"a b","name":"x""#), "dockerImage.registry: \"a b\" must be a host name"),
        (docker(r#""registry":"a_b.io","name":"x""#), "dockerImage.registry: \"a_b.io\" must be a host name"),
        (docker(r#""registry":"foo","name":"x""#), "dockerImage.registry: \"foo\" would be taken for a part"),
        (
            docker(r#""registry":"aci.crisp.invalid","name":"x""#),
            "dockerImage.registry: \"aci.crisp.invalid\" is reserved",
        ),
        (docker(r#""registry":"gcr.io""#), "dockerImage.name: is required"),
        (docker(r#""registry":"gcr.io","name":"X""#), "dockerImage.name: \"X\" must be up to 255 lower-case"),
        (docker(r#""registry":"gcr.io","name":"x:v1""#), "dockerImage.name: \"x:v1\" must be"),
        (docker(r#""registry":"gcr.io","name":"x","tag":"""#), "dockerImage.tag: must not be empty"),
        (docker(r#""registry":"gcr.io","name":"x","tag":"-a""#), "dockerImage.tag: \"-a\" must be up to 128"),
        (
            docker(r#""registry":"gcr.io","name":"x","digest":"sha256:1""#),
            "dockerImage.digest: \"sha256:1\" must be sha256:",
        ),
        (docker(r#""registry":"gcr.io","name":"x","digest":"""#), "dockerImage.digest: \"\" must be"),
        (
            docker(r#""registry":5,"name":"x""#),
            "dockerImage.registry: invalid type: integer `5`, expected a string",
        ),
        (
            docker(r#""registry":"gcr.io","nmae":"x""#),
            "dockerImage.nmae: unknown field `nmae`, expected one of `registry`",
        ),
        (docker(r#""name":"x","name":"x""#), "dockerImage: duplicate field `name`"),
        (aci(""), "aci.name: is required"),
        (aci(r#""name":"Coreos.com/etcd""#), "aci.name: \"Coreos.com/etcd\" must be up to 255 lower-case"),
        (aci(r#""name":"a--b""#), "aci.name: \"a--b\" must be"),
        (aci(r#""name":"aci.crisp.invalid/x""#), "aci.name: \"aci.crisp.invalid/x\" must be given without"),
        (aci(r#""name":"x","tag":"1+2""#), "aci.tag: \"1+2\" must be"),
        (aci(r#""name":"x","id":"sha512-00""#), "aci.id: \"sha512-00\" must be sha512- and 128 lower-case"),
        (aci(&format!(r#""name":"x","id":"sha256-{HEX}""#)), "aci.id: \"sha256-"),
        (
            aci(r#""name":"x","digest":"y""#),
            "aci.digest: unknown field `digest`, expected one of `name`, `tag`, `id`",
        ),
        (wrong(r#"{"docker":{}}"#), "docker: unknown field `docker`, expected `dockerImage` or `aci`"),
        (wrong(r#"{"aci":{"name":"x"},"aci":{"name":"x"}}"#), "duplicate field `aci`"),
        (wrong(r#"{"aci":["x",null,null]}"#), "aci: invalid type: sequence, expected an object"),
        (wrong(r#"[null,{"name":"x"}]"#), "invalid type: sequence, expected an object"),
        (wrong(r#"{"aci":{"name":"x"}} x"#), "trailing characters"),
        (wrong(""), "EOF while parsing"),
        (wrong(&"[".repeat(1 << 20)), "invalid type: sequence"),
    ] {
        assert!(said.starts_with(expected), "{said:?} does not begin with {expected:?}");
    }
    let name = "a".repeat(300);
    let docker = docker(&format!(r#""registry":"gcr.io","name":"{name}""#));
    assert!(docker.starts_with("dockerImage.name: ") && docker.len() < 400, "{docker}");
    let hub = "a".repeat(250);
    let hub = wrong(&format!(r#"{{"dockerImage":{{"registry":"docker.io","name":"{hub}"}}}}"#));
    assert!(hub.starts_with("dockerImage.name: "), "library/ counts: {hub}");
    assert!(aci(&format!(r#""name":"{name}""#)).starts_with("aci.name: "));
    assert!(aci(&format!(r#""{name}{name}":1"#)).len() < 500, "an error is short whatever it is about");
}

#[test]
fn what_differs_is_told_by_field() {
    let docker = ImageSpec::of_image("gcr.io/a/b:v1").unwrap();
    let differs =
        |spec: &ImageSpec, image: &str| spec.differs(&Reference::parse(image).unwrap().with_default_tag());
    assert_eq!(differs(&docker, "quay.io/a/b:v1"), Some("dockerImage.registry"));
    assert_eq!(differs(&docker, "gcr.io/a/c:v1"), Some("dockerImage.name"));
    assert_eq!(differs(&docker, "gcr.io/a/b"), Some("dockerImage.tag"));
    assert_eq!(differs(&docker, &format!("gcr.io/a/b:v1@sha256:{HEX}")), Some("dockerImage.digest"));
    let aci = ImageSpec::from_json(r#"{"aci":{"name":"coreos.com/etcd"}}"#).unwrap();
    assert_eq!(differs(&aci, "coreos.com/etcd:latest"), None);
    assert_eq!(differs(&aci, "aci.crisp.invalid/coreos.com/etcd"), None);
    assert_eq!(differs(&aci, "aci.crisp.invalid/coreos.com/etcd:v1"), Some("aci.tag"));
    assert_eq!(differs(&aci, "nginx"), Some("aci.name"));
}

/// Any valid spec.
pub(in crate::image) fn any_spec() -> impl Strategy<Value = ImageSpec> {
    use proptest::option::of;
    let tag = || of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}");
    let docker = (
        "(docker\\.io|localhost|[a-z0-9]{1,5}\\.[a-z]{2,3}|[A-Z][a-z]{0,3}|[a-z]{1,5}:[0-9]{1,5}|\\[::1\\]:5000)",
        "[a-z0-9]{1,5}((\\.|_|__|-{1,3}|/)[a-z0-9]{1,5}){0,3}",
        tag(),
        of("sha256:[0-9a-f]{64}"),
    )
        .prop_map(|(registry, name, tag, digest)| {
            ImageSpec::Docker(DockerImage::new(Some(registry), Some(name), tag, digest).unwrap())
        });
    let aci = ("[a-z0-9]{1,5}([-._~/][a-z0-9]{1,5}){0,3}", tag(), of("sha512-[0-9a-f]{128}"))
        .prop_map(|(name, tag, id)| ImageSpec::Aci(AciImage::new(Some(name), tag, id).unwrap()));
    prop_oneof![docker, aci]
}

proptest! {
    #[test]
    fn any_text_is_a_spec_or_an_error(text in any::<String>()) {
        let _ = ImageSpec::from_json(&text);
        let _ = ImageSpec::of_image(&text);
    }

    #[test]
    fn nearly_valid_json_is_a_spec_or_an_error(
        text in "\\{\"(dockerImage|aci|x)\":\\{(\"(registry|name|tag|digest|id)\":(null|1|\"[a-c.:/-]{0,6}\"),?){0,5}\\}\\}?",
    ) {
        if let Ok(spec) = ImageSpec::from_json(&text) {
            let again = serde_json::to_string(&spec).unwrap();
            prop_assert_eq!(ImageSpec::from_json(&again).unwrap(), spec);
        }
    }

    #[test]
    fn a_spec_is_what_it_is_written_as(spec in any_spec()) {
        let json = serde_json::to_string(&spec).unwrap();
        prop_assert_eq!(&ImageSpec::from_json(&json).unwrap(), &spec);
        prop_assert_eq!(&serde_json::from_str::<ImageSpec>(&json).unwrap(), &spec);
    }

    #[test]
    fn a_docker_spec_is_its_image_and_back(spec in any_spec()) {
        let image = spec.image();
        if let ImageSpec::Docker(docker) = &spec {
            let reference = Reference::parse(&image).unwrap();
            prop_assert_eq!(&reference, docker.reference());
            prop_assert_eq!(spec.differs(&reference.with_default_tag()), None);
            let ImageSpec::Docker(again) = ImageSpec::of_image(&image).unwrap() else { panic!("not Docker") };
            prop_assert_eq!(again.reference(), docker.reference());
        } else if let Ok(reference) = Reference::parse(&image) {
            prop_assert_eq!(spec.differs(&reference.with_default_tag()), None);
        }
    }
}
