use super::*;

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const POD: Option<(&str, &str)> = Some(("default", "web"));

const MIXED: &str = r#"{
    "etcd": {"aci": {"name": "coreos.com/etcd", "tag": "v2.2.0"}},
    "init": {"dockerImage": {"registry": "docker.io", "name": "nginx", "tag": "1.27"}},
    "flannel": {"aci": {"name": "coreos.com/flannel"}},
    "volume/models": {"dockerImage": {"registry": "gcr.io", "name": "models"}}
}"#;

/// As the kubelet says it: twice, with the pod.
fn said(annotation: &str) -> Said<'_> {
    let bytes = Some(annotation.as_bytes());
    Said { on_image: bytes, on_sandbox: bytes, pod: POD }
}

fn decided(image: &str, annotation: &str) -> Result<Requested, Error> {
    decide(Reference::parse(image).unwrap(), &said(annotation), &AciNames::default())
}

fn aci(image: &str, annotation: &str) -> Option<AciImage> {
    match decided(image, annotation).unwrap().format {
        Format::Aci(image) => Some(image),
        Format::Docker => None,
    }
}

fn refused(image: &str, annotation: &str) -> String {
    let error = decided(image, annotation).unwrap_err();
    assert_eq!((error.code(), error.origin()), (tonic::Code::InvalidArgument, Origin::Kubelet));
    error.message().to_owned()
}

#[test]
fn each_pull_of_a_mixed_pod_finds_its_spec() {
    for (image, container, normal, is_aci) in [
        ("coreos.com/etcd:v2.2.0", Some("etcd"), "coreos.com/etcd:v2.2.0", true),
        (
            "aci.crisp.invalid/coreos.com/etcd:v2.2.0",
            Some("etcd"),
            "aci.crisp.invalid/coreos.com/etcd:v2.2.0",
            true,
        ),
        ("coreos.com/flannel:latest", Some("flannel"), "coreos.com/flannel:latest", true),
        ("nginx:1.27", Some("init"), "docker.io/library/nginx:1.27", false),
        ("gcr.io/models", Some("volume/models"), "gcr.io/models:latest", false),
        // Another container's, or nobody's: a spec that renders to another name proves nothing.
        ("coreos.com/etcd:v3", None, "coreos.com/etcd:v3", false),
        ("nginx:1.28", None, "docker.io/library/nginx:1.28", false),
        ("busybox", None, "docker.io/library/busybox:latest", false),
    ] {
        let requested = decided(image, MIXED).unwrap();
        assert_eq!(requested.container.as_deref(), container, "{image}");
        assert_eq!(requested.reference.to_string(), normal);
        assert_eq!(matches!(requested.format, Format::Aci(_)), is_aci, "{image}");
    }
}

#[test]
fn without_a_spec_the_name_decides() {
    let names = AciNames::parse("coreos.com").unwrap();
    let format =
        |image: &str| decide(Reference::parse(image).unwrap(), &Said::default(), &names).unwrap().format;
    assert_eq!(format("nginx"), Format::Docker);
    let Format::Aci(image) = format("coreos.com/etcd:v2.2.0") else { panic!("not an ACI") };
    assert_eq!((image.name(), image.tag()), ("coreos.com/etcd", Some("v2.2.0")));
    assert!(matches!(format("aci.crisp.invalid/x"), Format::Aci(_)));
}

#[test]
fn one_place_of_the_annotation_is_enough_and_two_must_agree() {
    let image = || Reference::parse("coreos.com/etcd:v2.2.0").unwrap();
    let (bytes, names) = (Some(MIXED.as_bytes()), AciNames::default());
    for said in [Said { on_image: bytes, ..Said::default() }, Said { on_sandbox: bytes, ..Said::default() }] {
        assert!(matches!(decide(image(), &said, &names).unwrap().format, Format::Aci(_)));
    }
    let said = Said { on_image: bytes, on_sandbox: Some(b"{}"), pod: POD };
    let error = decide(image(), &said, &names).unwrap_err();
    assert!(
        error.message().contains("pod default/web: is not the same in the image and in the sandbox"),
        "{error}"
    );
}

#[test]
fn two_formats_cannot_share_a_name() {
    let both = r#"{
        "a": {"dockerImage": {"registry": "coreos.com", "name": "etcd", "tag": "v2"}},
        "b": {"aci": {"name": "coreos.com/etcd", "tag": "v2"}}
    }"#;
    let said = refused("coreos.com/etcd:v2", both);
    assert!(
        said.starts_with(
            "annotation crisp.dev/image-specs of pod default/web, container \"b\", field aci.name: names"
        ),
        "{said}"
    );
    assert!(said.contains("container \"a\""), "{said}");
    // Under the reserved host there is nothing to mix up.
    assert!(aci("aci.crisp.invalid/coreos.com/etcd:v2", both).is_some());
    assert!(aci("nginx", both).is_none());
}

#[test]
fn one_name_has_one_id() {
    let (one, other) = (format!("sha512-{HEX}{HEX}"), format!("sha512-{}", "0".repeat(128)));
    let specs = |a: &str, b: &str| {
        format!(
            r#"{{"a": {{"aci": {{"name": "x.io/y"{a}}}}}, "b": {{"aci": {{"name": "x.io/y", "tag": "latest"{b}}}}}}}"#
        )
    };
    let id = |id: &str| format!(r#", "id": "{id}""#);
    for text in [specs(&id(&one), ""), specs("", &id(&one)), specs(&id(&one), &id(&one))] {
        assert_eq!(aci("x.io/y", &text).unwrap().id(), Some(one.as_str()), "{text}");
    }
    let said = refused("x.io/y", &specs(&id(&one), &id(&other)));
    assert!(said.contains("pod default/web, container \"b\", field aci.id: is another id"), "{said}");
    assert_eq!(aci("other", &specs(&id(&one), &id(&other))), None, "only pulls of that name are in doubt");
}

#[test]
fn a_docker_spec_does_not_overrule_the_node() {
    let names = AciNames::parse("coreos.com").unwrap();
    let text = r#"{"a": {"dockerImage": {"registry": "coreos.com", "name": "etcd"}}}"#;
    let error = decide(Reference::parse("coreos.com/etcd").unwrap(), &said(text), &names).unwrap_err();
    let begin =
        "annotation crisp.dev/image-specs of pod default/web, container \"a\", field dockerImage.registry: ";
    assert!(error.message().starts_with(begin), "{error}");
}

#[test]
fn a_malformed_annotation_refuses_every_pull_of_its_pod() {
    for (text, expected) in [
        ("{", " of pod default/web: EOF while parsing"),
        (r#"{"b": {}}"#, " of pod default/web, container \"b\": the spec has no member"),
        (
            r#"{"b": {"dockerImage": {"registry": "gcr.io"}, "aci": {"name": "x"}}}"#,
            " of pod default/web, container \"b\": the spec has both",
        ),
        (
            r#"{"b": {"aci": {"name": "x", "id": "md5-1"}}}"#,
            " of pod default/web, container \"b\", field aci.id: \"md5-1\" must be",
        ),
    ] {
        let said = refused("nginx", text);
        assert!(said.starts_with(&format!("annotation crisp.dev/image-specs{expected}")), "{said}");
    }
    let bytes = Some(&b"\xff"[..]);
    let said = Said { on_image: bytes, ..Said::default() };
    let error = decide(Reference::parse("nginx").unwrap(), &said, &AciNames::default()).unwrap_err();
    assert_eq!(error.message(), "annotation crisp.dev/image-specs: is not UTF-8");
}

#[test]
fn a_name_that_cannot_be_an_aci_image_is_refused_by_its_name() {
    let error = decided("aci.crisp.invalid/a__b", "{}").unwrap_err();
    let begin = "image \"aci.crisp.invalid/a__b:latest\" of pod default/web is no ACI image: aci.name: ";
    assert!(error.message().starts_with(begin), "{error}");
}

#[test]
fn where_the_container_is_known_its_spec_must_name_its_image() {
    let check =
        |container: &str, image: &str| check(container, Reference::parse(image).unwrap(), &said(MIXED));
    for (container, image) in [
        ("etcd", "coreos.com/etcd:v2.2.0"),
        ("etcd", "aci.crisp.invalid/coreos.com/etcd:v2.2.0"),
        ("init", "nginx:1.27"),
        ("flannel", "coreos.com/flannel"),
        ("no-spec", "anything:v1"),
        // The key of a volume is no container's.
        ("models", "busybox"),
    ] {
        assert!(check(container, image).is_ok(), "{container} {image}");
    }
    for (container, image, field) in [
        ("etcd", "nginx", "aci.name"),
        ("etcd", "coreos.com/etcd", "aci.tag"),
        ("init", "nginx", "dockerImage.tag"),
        ("init", "quay.io/nginx:1.27", "dockerImage.registry"),
    ] {
        let said = check(container, image).unwrap_err().message().to_owned();
        let begin = format!(
            "annotation crisp.dev/image-specs of pod default/web, container {container:?}, field {field}: contradicts"
        );
        assert!(said.starts_with(&begin), "{said}");
    }
}
