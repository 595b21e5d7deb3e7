//! Protects: containers that an older kubelet made are shown to a new one with the hash that it computes itself, wherever
//! it reads one, and only if their image has not changed. Whatever is not sure goes on as it is.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crisp::config::{HashShield, Kubelets, ShieldMode};
use crisp::container::census::{CONTAINER_NAME, POD_UID, PodImages};
use crisp::container::hash::{ANNOTATION, of_name_and_image};
use crisp::container::shield::{Parts, PodsOfNode, Shield};
use crisp::error::{Error, Kind, Origin};
use futures_util::FutureExt;
use k8s_cri::v1::{
    Container, ContainerEventResponse, ContainerStatus, ContainerStatusRequest, ContainerStatusResponse,
    Image, ImageStatusResponse, ListContainersResponse, PodSandboxStatusResponse,
};
use prost::Message;
use tokio::sync::Notify;

use crate::support::bytes_on_the_wire::{Reply, framed, headers, request};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::h2_client::Client;
use crate::support::in_process::InProcess;
use crate::support::random::field;
use crate::support::wait::eventually;

const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";
const STREAM: &str = "/runtime.v1.RuntimeService/StreamContainers";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const SANDBOX: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";

/// The foreign hash of a container, its own by name and image, and a field that no CRI message has.
const FOREIGN: &str = "deadbeef";
const UNKNOWN: &[u8] = b"\xba\x3e\x07unknown";

/// Containers of one pod, by ID: name and image ID.
const CONTAINERS: [(&str, &str, &str); 3] =
    [("c-same", "same", "sha256:1"), ("c-edited", "edited", "sha256:1"), ("c-lost", "lost", "sha256:1")];

/// What the pod says of them, and what the runtime says of these images.
const POD: [(&str, &str); 2] = [("same", "busybox:1.35"), ("edited", "busybox:2")];
const REFUSED: &str = "ambiguous";
const IMAGES: [(&str, &str); 2] = [("busybox:1.35", "sha256:1"), ("busybox:2", "sha256:2")];

fn annotations() -> std::collections::HashMap<String, String> {
    [(ANNOTATION.to_owned(), FOREIGN.to_owned()), ("other".to_owned(), "kept".to_owned())].into()
}

fn container((id, name, image): (&str, &str, &str)) -> Container {
    Container {
        id: id.into(),
        state: 1,
        image_id: image.into(),
        annotations: annotations(),
        labels: [(POD_UID.to_owned(), "uid".to_owned()), (CONTAINER_NAME.to_owned(), name.to_owned())].into(),
        ..Default::default()
    }
}

fn status(id: &str) -> ContainerStatus {
    ContainerStatus { id: id.into(), annotations: annotations(), ..Default::default() }
}

fn runtime(crisp: &InProcess) -> FakeRuntime {
    runtime_with(crisp, Arc::default())
}

/// A runtime that has one container more when it is `late`.
fn runtime_with(crisp: &InProcess, late: Arc<AtomicBool>) -> FakeRuntime {
    FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let late = late.load(Ordering::SeqCst).then(|| container(("c-late", "same", "sha256:2")));
        async move {
            let Ok(seen) = incoming.read().await else { return };
            let message = seen.body.slice(5..);
            let containers: Vec<_> = CONTAINERS.into_iter().map(container).chain(late).collect();
            let all = || CONTAINERS.iter().map(|(id, ..)| status(id)).collect::<Vec<_>>();
            if crisp::wire::last(&message, [1, 1]).ok().flatten().and_then(|name| name.as_str())
                == Some(REFUSED)
            {
                return drop(incoming.reply(&Reply::error("2", "ambiguous")).await);
            }
            let mut reply = match incoming.path().rsplit('/').next().unwrap() {
                "ListContainers" | "StreamContainers" => {
                    ListContainersResponse { containers }.encode_to_vec()
                }
                "ContainerStatus" => {
                    let id = ContainerStatusRequest::decode(message).unwrap().container_id;
                    ContainerStatusResponse { status: Some(status(&id)), ..Default::default() }
                        .encode_to_vec()
                }
                "PodSandboxStatus" => {
                    PodSandboxStatusResponse { containers_statuses: all(), ..Default::default() }
                        .encode_to_vec()
                }
                "GetContainerEvents" => {
                    ContainerEventResponse { containers_statuses: all(), ..Default::default() }
                        .encode_to_vec()
                }
                "ImageStatus" => {
                    let asked = crisp::wire::last(&message, [1, 1]).unwrap().and_then(|name| name.as_str());
                    let found = IMAGES.iter().find(|(name, _)| Some(*name) == asked);
                    let image = found.map(|(_, id)| Image { id: (*id).into(), ..Default::default() });
                    ImageStatusResponse { image, ..Default::default() }.encode_to_vec()
                }
                _ => Vec::new(),
            };
            reply.extend_from_slice(UNKNOWN);
            let _ = incoming.reply(&Reply::of(&[&reply])).await;
        }
    })
}

fn pods() -> PodsOfNode {
    Arc::new(|| async { Ok(vec![pod()]) }.boxed())
}

fn pod() -> PodImages {
    let images = POD.iter().map(|(name, image)| ((*name).to_owned(), (*image).to_owned())).collect();
    PodImages { uid: "uid".into(), mirror_of: None, images }
}

/// crisp with a shield.
fn shielded(settings: HashShield, pods: Option<PodsOfNode>) -> InProcess {
    shielded_in(None, settings, pods)
}

/// crisp with a shield that keeps its decisions there, or where crisp keeps all else.
fn shielded_in(dir: Option<&Path>, settings: HashShield, pods: Option<PodsOfNode>) -> InProcess {
    InProcess::released_with(&[], |state_dir, runtime, metrics, background| {
        let (state_dir, metrics) = (dir.unwrap_or(state_dir).to_owned(), metrics.clone());
        Some(Shield::start(Parts { settings, state_dir, runtime, pods, metrics }, background))
    })
}

/// The hashes that a caller is shown, by container, after making sure that all else is as it came.
async fn hashes(client: &Client, path: &str) -> Vec<String> {
    let mut shown = Vec::new();
    let ask = async |message: &[u8]| {
        let reply = client.unary(path, message).await.unwrap().bytes();
        assert!(reply.ends_with(UNKNOWN));
        reply.slice(5..)
    };
    let mut note = |annotations: &std::collections::HashMap<String, String>| {
        assert_eq!(annotations["other"], "kept");
        assert_eq!(annotations.len(), 2);
        shown.push(annotations[ANNOTATION].clone());
    };
    match path {
        STATUS => {
            for (id, ..) in CONTAINERS {
                let asked = ContainerStatusRequest { container_id: id.into(), verbose: false };
                let reply = ContainerStatusResponse::decode(ask(&asked.encode_to_vec()).await).unwrap();
                note(&reply.status.unwrap().annotations);
            }
        }
        SANDBOX => {
            let reply = PodSandboxStatusResponse::decode(ask(b"").await).unwrap();
            reply.containers_statuses.iter().for_each(|status| note(&status.annotations));
        }
        EVENTS => {
            let reply = ContainerEventResponse::decode(ask(b"").await).unwrap();
            reply.containers_statuses.iter().for_each(|status| note(&status.annotations));
        }
        _ => {
            let reply = ListContainersResponse::decode(ask(b"").await).unwrap();
            reply.containers.iter().for_each(|container| note(&container.annotations));
        }
    }
    shown
}

fn expected() -> Vec<String> {
    vec![of_name_and_image("same", "busybox:1.35"), FOREIGN.into(), FOREIGN.into()]
}

#[tokio::test]
async fn an_unchanged_container_has_the_kubelets_own_hash_wherever_it_is_read() {
    for first in [STATUS, LIST, STREAM, SANDBOX, EVENTS] {
        let crisp = shielded(HashShield::default(), Some(pods()));
        let _runtime = runtime(&crisp);
        let client = crisp.client().await;
        // The very first answer counts: the kubelet remembers it.
        for path in [first, STATUS, LIST, STREAM, SANDBOX, EVENTS] {
            assert_eq!(hashes(&client, path).await, expected(), "{path}");
        }
        assert_eq!(crisp.metric("crisp_hash_shield_containers "), 1.0);
        assert_eq!(crisp.metric("crisp_intercept_failures_total"), 0.0);
    }
}

#[tokio::test]
async fn others_see_what_the_runtime_says() {
    let foreign = vec![FOREIGN.to_owned(); 3];
    let off = HashShield { mode: ShieldMode::Off, ..Default::default() };
    let dry = HashShield { mode: ShieldMode::DryRun, ..Default::default() };
    let old = HashShield { kubelets: Kubelets::Old, ..Default::default() };
    for (settings, pods) in
        [(off, Some(pods())), (dry, Some(pods())), (old, Some(pods())), (HashShield::default(), None)]
    {
        let crisp = shielded(settings, pods);
        let _runtime = runtime(&crisp);
        let client = crisp.client().await;
        for path in [STATUS, LIST] {
            assert_eq!(hashes(&client, path).await, foreign, "{settings:?}");
        }
        if settings.mode == ShieldMode::DryRun {
            eventually("it counts", || crisp.metric("crisp_hash_shield_containers ") == 1.0).await;
            assert_eq!(hashes(&client, LIST).await, foreign);
        }
    }
    // A kubelet of 1.30.
    let crisp = shielded(HashShield::default(), Some(pods()));
    let _runtime = runtime(&crisp);
    let client = crisp.client().await;
    let head = {
        let mut head = request(LIST, &headers(&[]));
        head.headers_mut().insert("user-agent", "grpc-go/1.58.3".parse().unwrap());
        head
    };
    let reply = client.start(head, &[framed(b"")], None).await.unwrap().reply().await.unwrap();
    let listed = ListContainersResponse::decode(reply.bytes().slice(5..)).unwrap();
    assert!(listed.containers.iter().all(|container| container.annotations[ANNOTATION] == FOREIGN));
}

#[tokio::test]
async fn first_answers_wait_for_an_api_server_that_is_slow() {
    let (go, asked) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let slow: PodsOfNode = {
        let (go, asked) = (go.clone(), asked.clone());
        Arc::new(move || {
            let (go, asked) = (go.clone(), asked.clone());
            async move {
                // It refuses twice before.
                if asked.fetch_add(1, Ordering::SeqCst) < 2 {
                    return Err(Error::new(Kind::Unavailable, Origin::KubeApi, "not yet"));
                }
                go.notified().await;
                Ok(vec![pod()])
            }
            .boxed()
        })
    };
    let crisp = shielded(HashShield::default(), Some(slow));
    let _runtime = runtime(&crisp);
    let client = crisp.client().await;
    let shown = hashes(&client, STATUS);
    let release = async {
        eventually("the pods are asked for", || asked.load(Ordering::SeqCst) > 2).await;
        go.notify_one();
    };
    let (shown, ()) = tokio::join!(shown, release);
    assert_eq!(shown, expected());
}

#[tokio::test]
async fn what_was_decided_stays_and_what_came_since_is_judged_when_a_kubelet_connects() {
    let (edited, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let changing: PodsOfNode = {
        let (edited, asked) = (edited.clone(), asked.clone());
        Arc::new(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            let mut pod = pod();
            if edited.load(Ordering::SeqCst) {
                pod.images[0].1 = "busybox:2".into();
            }
            async move { Ok(vec![pod]) }.boxed()
        })
    };
    let crisp = shielded(HashShield::default(), Some(changing));
    let late = Arc::new(AtomicBool::new(false));
    let _runtime = runtime_with(&crisp, late.clone());
    assert_eq!(hashes(&crisp.client().await, STATUS).await, expected());
    let before = asked.load(Ordering::SeqCst);
    assert_eq!(hashes(&crisp.client().await, STATUS).await, expected());
    assert_eq!(asked.load(Ordering::SeqCst), before, "no other container is there: nobody is asked again");
    // An edit must not move the hash, or it would restart nothing.
    edited.store(true, Ordering::SeqCst);
    late.store(true, Ordering::SeqCst);
    let client = crisp.client().await;
    let shown = hashes(&client, LIST).await;
    assert_eq!((&shown[..3], shown.len()), (&expected()[..], 4));
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
    assert_eq!(shown[3], of_name_and_image("same", "busybox:2"), "made past crisp from the edited pod");
}

/// All containers were given up for one image of which the runtime would not speak, and the kubelet killed them.
#[tokio::test]
async fn one_image_that_cannot_be_asked_for_harms_no_other_container() {
    let broken: PodsOfNode = Arc::new(|| {
        let mut pod = pod();
        pod.images.push(("lost".into(), REFUSED.into()));
        async move { Ok(vec![pod]) }.boxed()
    });
    let crisp = shielded(HashShield::default(), Some(broken));
    let _runtime = runtime(&crisp);
    assert_eq!(hashes(&crisp.client().await, STATUS).await, expected());
}

/// What was accepted weeks ago was killed when crisp started again while the API server was away.
#[tokio::test]
async fn what_was_decided_outlives_crisp() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("hash-shield.json");
    let away: PodsOfNode =
        Arc::new(|| async { Err(Error::new(Kind::Unavailable, Origin::KubeApi, "away")) }.boxed());
    {
        let crisp = shielded_in(Some(dir.path()), HashShield::default(), Some(pods()));
        let _runtime = runtime(&crisp);
        assert_eq!(hashes(&crisp.client().await, STATUS).await, expected());
        eventually("it is written down", || kept.exists()).await;
    }
    {
        let crisp = shielded_in(Some(dir.path()), HashShield::default(), Some(away));
        let _runtime = runtime(&crisp);
        let client = crisp.client().await;
        assert_eq!(hashes(&client, STATUS).await, expected());
        let wrong = create(&[(POD_UID, "uid"), (CONTAINER_NAME, "same")], Some("1"), "busybox:1.35");
        assert_eq!(client.unary(CREATE, &wrong).await.unwrap().code(), "0");
        let is_written = || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("grpc-go/1.76.0"));
        eventually("that it was wrong is written down", is_written).await;
    }
    let crisp = shielded_in(Some(dir.path()), HashShield::default(), Some(pods()));
    let _runtime = runtime(&crisp);
    eventually("it is known", || crisp.metric("crisp_hash_shield_refuted") == 1.0).await;
    assert_eq!(hashes(&crisp.client().await, STATUS).await, vec![FOREIGN.to_owned(); 3]);
}

/// A CreateContainer with these labels, this annotation and the user's image.
fn create(labels: &[(&str, &str)], hash: Option<&str>, image: &str) -> Vec<u8> {
    let pair = |key: &str, value: &str| [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let mut config = field(2, &[field(1, b"sha256:1"), field(18, image.as_bytes())].concat());
    labels.iter().for_each(|(key, value)| config.extend(field(9, &pair(key, value))));
    config.extend(hash.map(|hash| field(10, &pair(ANNOTATION, hash))).unwrap_or_default());
    [field(1, b"sandbox"), field(2, &config)].concat()
}

#[tokio::test]
async fn a_kubelet_that_computes_otherwise_switches_it_off_and_nobody_else_does() {
    let crisp = shielded(HashShield::default(), Some(pods()));
    let _runtime = runtime(&crisp);
    let client = crisp.client().await;
    let of_a_pod = [(POD_UID, "uid"), (CONTAINER_NAME, "same")];
    let right = of_name_and_image("same", "busybox:1.35");
    for harmless in [
        create(&of_a_pod, Some(&right), "busybox:1.35"),
        create(&of_a_pod, None, "busybox:1.35"),
        create(&[(CONTAINER_NAME, "same")], Some("1"), "busybox:1.35"),
        create(&[(POD_UID, "uid")], Some("1"), "busybox:1.35"),
        create(&[("app", "critest")], Some("1"), "busybox:1.35"),
        b"\xff\xff".to_vec(),
    ] {
        assert_eq!(client.unary(CREATE, &harmless).await.unwrap().code(), "0");
    }
    assert_eq!(hashes(&client, STATUS).await, expected());
    assert_eq!(crisp.metric("crisp_hash_shield_refuted"), 0.0);
    let other = create(&of_a_pod, Some("1"), "busybox:1.35");
    assert_eq!(client.unary(CREATE, &other).await.unwrap().code(), "0");
    assert_eq!(crisp.metric("crisp_hash_shield_refuted"), 1.0);
    for path in [STATUS, LIST, EVENTS] {
        assert_eq!(hashes(&client, path).await, vec![FOREIGN.to_owned(); 3]);
    }
}
