//! Protects: a pod's ImageSpec decides what a pull means, by the request alone; what contradicts itself or what no
//! runtime can take is refused with pod, container and field; everything else goes on byte for byte.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, ImageStatusRequest,
    PodSandboxConfig, PodSandboxMetadata, PullImageRequest,
};
use prost::Message;
use serde_json::Value;

use crate::support::binary::{Place, crisp};
use crate::support::bytes_on_the_wire::{Reply, framed};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::h2_client::Client;
use crate::support::in_process::InProcess;

const PULL: &str = "/runtime.v1.ImageService/PullImage";
const STATUS: &str = "/runtime.v1.ImageService/ImageStatus";
const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";

const MIXED: &str = r#"{
    "etcd": {"aci": {"name": "coreos.com/etcd", "tag": "v2.2.0"}},
    "web": {"dockerImage": {"registry": "docker.io", "name": "nginx", "tag": "1.27"}},
    "volume/models": {"aci": {"name": "example.com/models"}}
}"#;

fn annotations(specs: Option<&str>) -> HashMap<String, String> {
    let other = [("crisp.dev/other".to_owned(), "x".repeat(300))];
    let ours = specs.map(|specs| ("crisp.dev/image-specs".to_owned(), specs.to_owned()));
    other.into_iter().chain(ours).collect()
}

fn image(name: &str, specs: Option<&str>) -> Option<ImageSpec> {
    Some(ImageSpec { image: name.to_owned(), annotations: annotations(specs), ..ImageSpec::default() })
}

fn sandbox(pod: &str, specs: Option<&str>) -> Option<PodSandboxConfig> {
    let metadata = PodSandboxMetadata { name: pod.into(), namespace: "default".into(), ..Default::default() };
    Some(PodSandboxConfig { metadata: Some(metadata), annotations: annotations(specs), ..Default::default() })
}

/// A pull as the kubelet asks for it: with all annotations of the pod in both places.
fn pull(name: &str, pod: &str, specs: Option<&str>) -> Vec<u8> {
    let request = PullImageRequest {
        image: image(name, specs),
        sandbox_config: sandbox(pod, specs),
        ..PullImageRequest::default()
    };
    request.encode_to_vec()
}

fn create(container: &str, name: &str, specs: Option<&str>) -> Vec<u8> {
    let image =
        ImageSpec { image: "sha256:0123".into(), user_specified_image: name.into(), ..ImageSpec::default() };
    let metadata = ContainerMetadata { name: container.into(), attempt: 0 };
    let config =
        ContainerConfig { metadata: Some(metadata), image: Some(image), ..ContainerConfig::default() };
    let request = CreateContainerRequest {
        pod_sandbox_id: "pod".into(),
        config: Some(config),
        sandbox_config: sandbox("web-1", specs),
    };
    request.encode_to_vec()
}

/// A runtime that answers all, and tells which bodies it got.
fn runtime(crisp: &InProcess) -> (FakeRuntime, tokio::sync::mpsc::UnboundedReceiver<Bytes>) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| {
        let tell = tell.clone();
        async move {
            // crisp itself asks whether this is containerd.
            if incoming.path().contains("Leases") {
                incoming.answer(&Reply::error("12", "no")).await;
                return;
            }
            let seen = incoming.answer(&Reply::of(&[b"\x0a\x01x"])).await.unwrap();
            tell.send(seen.body).unwrap();
        }
    });
    (runtime, told)
}

/// The gRPC code and the message of a call.
async fn ask(client: &Client, path: &str, message: &[u8]) -> (String, String) {
    let reply = client.unary(path, message).await.unwrap();
    let text = reply.message().replace("%20", " ").replace("%22", "\"").replace("%60", "`");
    (reply.code().to_owned(), text)
}

#[tokio::test]
async fn docker_images_go_on_as_they_came() {
    let crisp = InProcess::released(&[("record.enabled", "false")]);
    let (_runtime, mut told) = runtime(&crisp);
    let client = crisp.client().await;
    let unnamed =
        PullImageRequest { image: image("nginx", Some(MIXED)), ..Default::default() }.encode_to_vec();
    let status =
        |name| ImageStatusRequest { image: image(name, Some(MIXED)), verbose: false }.encode_to_vec();
    for (path, message) in [
        (PULL, pull("nginx", "web-1", None)),
        (PULL, pull("nginx:1.27", "web-1", Some(MIXED))),
        (PULL, pull("docker.io/library/nginx:1.27", "web-1", Some(MIXED))),
        (PULL, pull("sidecar:v1", "web-1", Some(MIXED))),
        (PULL, pull("coreos.com/etcd:v3", "web-1", Some(MIXED))),
        (PULL, pull("coreos.com/etcd:v2.2.0", "web-1", None)),
        (PULL, unnamed),
        // What no kubelet sends, only the runtime can explain.
        (PULL, pull("NOT a name", "web-1", Some("not JSON"))),
        (PULL, b"\xff\xff not protobuf".to_vec()),
        (STATUS, status("nginx:1.27")),
        (STATUS, status("aci.crisp.invalid/coreos.com/etcd:v2.2.0")),
        // Imported by somebody, and asked for by what the runtime calls it.
        (STATUS, status(&format!("aci.crisp.invalid/a__b@sha256:{}", "0".repeat(64)))),
        (
            STATUS,
            ImageStatusRequest { image: image("coreos.com/etcd:v2.2.0", None), verbose: false }
                .encode_to_vec(),
        ),
        (CREATE, create("web", "nginx:1.27", Some(MIXED))),
        (CREATE, create("sidecar", "sidecar", Some(MIXED))),
        (CREATE, create("etcd", "aci.crisp.invalid/coreos.com/etcd:v2.2.0", Some(MIXED))),
        // Other clients than the kubelet do not say what the user asked for.
        (CREATE, create("web", "", Some(MIXED))),
    ] {
        assert_eq!(ask(&client, path, &message).await.0, "0");
        assert!(told.recv().await.unwrap() == framed(&message), "the very same bytes");
    }
    assert_eq!(crisp.metric("crisp_intercept_failures_total{feature=\"image-spec\""), 0.0);
}

#[tokio::test]
async fn an_aci_image_is_refused_as_a_format_that_the_runtime_has_not() {
    let crisp = InProcess::released(&[("image.aciPrefixes", "quay.io/aci")]);
    let (_runtime, mut told) = runtime(&crisp);
    let client = crisp.client().await;
    let status = ImageStatusRequest { image: image("coreos.com/etcd:v2.2.0", Some(MIXED)), verbose: false };
    for (path, message, of) in [
        (
            PULL,
            pull("coreos.com/etcd:v2.2.0", "web-1", Some(MIXED)),
            "\"coreos.com/etcd:v2.2.0\" of pod default/web-1, container \"etcd\";",
        ),
        (
            PULL,
            pull("aci.crisp.invalid/coreos.com/etcd:v2.2.0", "web-1", Some(MIXED)),
            "\"coreos.com/etcd:v2.2.0\" of pod default/web-1, container \"etcd\";",
        ),
        (
            PULL,
            pull("example.com/models:latest", "web-1", Some(MIXED)),
            "\"example.com/models\" of pod default/web-1, container \"volume/models\";",
        ),
        (PULL, pull("aci.crisp.invalid/x:v1", "web-1", None), "\"x:v1\" of pod default/web-1;"),
        (PULL, pull("quay.io/aci/x:v1", "web-1", None), "\"quay.io/aci/x:v1\" of pod default/web-1;"),
        (STATUS, status.encode_to_vec(), "\"coreos.com/etcd:v2.2.0\" of container \"etcd\";"),
    ] {
        let (code, text) = ask(&client, path, &message).await;
        assert_eq!(code, "12", "{text}");
        let begin = format!("crisp: the runtime does not support the image format ACI of {of} use a Docker");
        assert!(text.starts_with(&begin), "{text}\n{begin}");
    }
    assert!(told.try_recv().is_err(), "nothing reached the runtime");
    assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0, "a refusal is no failure");
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_pod_container_and_field() {
    let crisp = InProcess::released(&[]);
    let (_runtime, mut told) = runtime(&crisp);
    let client = crisp.client().await;
    let both = r#"{"a":{"dockerImage":{"registry":"x.io","name":"y"}},"b":{"aci":{"name":"x.io/y"}}}"#;
    let two = r#"{"a":{"dockerImage":{"registry":"x.io","name":"y"},"aci":{"name":"x.io/y"}}}"#;
    let mut unequal = PullImageRequest::decode(&pull("x", "web-1", Some("{}"))[..]).unwrap();
    unequal.sandbox_config = sandbox("web-1", Some(MIXED));
    let status = ImageStatusRequest { image: image("x", Some(r#"{"a":{}}"#)), verbose: false };
    let of_pod = "of pod default/web-1";
    for (path, message, expected) in [
        (PULL, pull("x", "web-1", Some("{")), format!("{of_pod}: EOF while parsing")),
        (
            PULL,
            pull("x", "web-1", Some(r#"{"a":{}}"#)),
            format!("{of_pod}, container \"a\": the spec has no member"),
        ),
        (PULL, pull("x", "web-1", Some(two)), format!("{of_pod}, container \"a\": the spec has both")),
        (
            PULL,
            pull("x.io/y", "web-1", Some(both)),
            format!("{of_pod}, container \"b\", field aci.name: names x.io/y"),
        ),
        (
            PULL,
            pull("x", "web-1", Some(r#"{"a":{"dockerImage":{"registry":"x.io","name":"Y"}}}"#)),
            format!("{of_pod}, container \"a\", field dockerImage.name: \"Y\" must be"),
        ),
        (PULL, unequal.encode_to_vec(), format!("{of_pod}: is not the same in the image and in the sandbox")),
        (STATUS, status.encode_to_vec(), "of container \"a\": the spec has no member".to_owned()),
        (
            CREATE,
            create("web", "nginx:1.28", Some(MIXED)),
            format!("{of_pod}, container \"web\", field dockerImage.tag: contradicts"),
        ),
        (
            CREATE,
            create("etcd", "nginx", Some(MIXED)),
            format!("{of_pod}, container \"etcd\", field aci.name: contradicts"),
        ),
    ] {
        let (code, text) = ask(&client, path, &message).await;
        assert_eq!(code, "3", "{text}");
        let begin = format!("crisp: annotation crisp.dev/image-specs {expected}");
        assert!(text.starts_with(&begin), "{text}\n{begin}");
    }
    assert!(told.try_recv().is_err(), "nothing reached the runtime");
}

/// A tenant who calls nginx an ACI image has said nothing about anybody else's nginx.
#[tokio::test]
async fn nothing_is_remembered_from_one_pod_for_another() {
    let crisp = InProcess::released(&[]);
    let (_runtime, mut told) = runtime(&crisp);
    let (one, two) = (crisp.client().await, crisp.client().await);
    let nginx = r#"{"a":{"aci":{"name":"docker.io/library/nginx","tag":"1.27"}}}"#;
    let theirs = pull("nginx:1.27", "tenant", Some(nginx));
    let ours = pull("nginx:1.27", "web-1", None);
    let named = pull("nginx:1.27", "web-2", Some(MIXED));
    let status = ImageStatusRequest { image: image("nginx:1.27", None), verbose: false }.encode_to_vec();
    for _ in 0..3 {
        assert_eq!(ask(&one, PULL, &theirs).await.0, "12");
        for (client, path, message) in
            [(&one, PULL, &ours), (&two, PULL, &ours), (&two, PULL, &named), (&one, STATUS, &status)]
        {
            assert_eq!(ask(client, path, message).await.0, "0");
            assert!(told.recv().await.unwrap() == framed(message));
        }
    }
    assert!(told.try_recv().is_err(), "nothing else reached the runtime");
    // Nor the other way round: what was pulled for others does not make it Docker's for that pod.
    assert_eq!(ask(&two, PULL, &theirs).await.0, "12");
}

/// What a pod's author can make large costs neither memory nor a long error.
#[tokio::test]
async fn hostile_annotations_cost_little() {
    let place = Place::new();
    let crisp = place.start("log", &[]).await;
    let client = place.client().await;
    let mut many = String::from("{");
    for n in 0..100_000 {
        write!(many, r#"{}"c{n}":{{"aci":{{"name":"x"}}}}"#, if n == 0 { "" } else { "," }).unwrap();
    }
    many.push('}');
    let deep = "{\"a\":".repeat(40_000);
    let key = format!("{{\"{}\":1}}", "k".repeat(200_000));
    let messages = [" ".repeat(1 << 20), many, deep, key].map(|specs| pull("nginx", "web-1", Some(&specs)));
    let round = async || {
        for message in &messages {
            let (code, text) = ask(&client, PULL, message).await;
            assert_eq!(code, "3", "{text}");
            assert!(text.len() < 2_000, "{text}");
        }
    };
    round().await;
    let before = crisp.peak_memory();
    for _ in 0..20 {
        round().await;
    }
    let grown = crisp.peak_memory() - before;
    assert!(grown < 32 << 10, "{grown} KiB");
}

#[tokio::test]
async fn an_image_is_explained_without_a_running_crisp() {
    let run = async |arguments: &[&str]| {
        let mut command = crisp();
        command.args(["image", "inspect"]).args(arguments);
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    };
    let output = run(&["nginx"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("normalised  docker.io/library/nginx:latest\n"),
        "{text}"
    );

    let output = run(&["-o", "json", r#"{"aci":{"name":"coreos.com/etcd","tag":"v2.2.0"}}"#]).await;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["format"], "aci");
    assert_eq!(json["image"], "coreos.com/etcd:v2.2.0");
    assert_eq!(json["reservedImage"], "aci.crisp.invalid/coreos.com/etcd:v2.2.0");

    let output = run(&["--image-aci-prefixes", "coreos.com", "--output=json", "coreos.com/etcd"]).await;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["format"], "aci");

    for (wrong, expected) in [
        ("UPPER", "crisp: \"UPPER\" is not an image name: the repository must be lower case"),
        ("{}", "crisp: the spec has no member; exactly one of `dockerImage` and `aci` is needed"),
        (r#"{"aci":{"id":"x"}}"#, "crisp: aci.name: is required"),
    ] {
        let output = run(&[wrong]).await;
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with(expected), "{text}");
    }
    assert_eq!(run(&[]).await.status.code(), Some(2));
}
