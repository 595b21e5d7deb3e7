//! Protects: pods wait for the Services they name and no longer than they may, containers get the variables they asked
//! for and no others, and pods that ask for nothing notice nothing of it, not even when the API server is away.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crisp::admin::links::LinksReport;
use crisp::cri::Method;
use crisp::wire::Patch;
use http::HeaderMap;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, KeyValue, ListPodSandboxResponse, PodSandbox,
    PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest,
};
use prost::Message;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api_server::{ApiServer, Fault};
use crate::support::binary::{Place, crisp};
use crate::support::bytes_on_the_wire::{Reply, framed, headers, request};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::h2_client::{Call, Client};
use crate::support::in_process::InProcess;
use crate::support::wait::{eventually, soon};

const DEPENDENCIES: &str = "crisp.dev/service-dependencies";
const ENV_FROM: &str = "crisp.dev/env-from";

/// crisp between a runtime that answers everything and an API server.
struct Node {
    crisp: InProcess,
    _runtime: FakeRuntime,
    client: Client,
    /// What the runtime was asked to make.
    seen: Arc<Mutex<Vec<Bytes>>>,
    _files: tempfile::TempDir,
}

impl Node {
    async fn start(api: Option<&ApiServer>, settings: &[(&str, &str)]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let kubeconfig = files.path().join("kubeconfig");
        let mut settings = settings.to_vec();
        if let Some(api) = api {
            api.kubeconfig(&kubeconfig);
            settings.push(("kubeconfig", kubeconfig.to_str().unwrap()));
        }
        let crisp = InProcess::released(&settings);
        let seen = Arc::<Mutex<Vec<Bytes>>>::default();
        let noted = seen.clone();
        let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| {
            let noted = noted.clone();
            async move {
                let request = incoming.answer(&Reply::of(&[b"\x0a\x02id"])).await.unwrap();
                let made = [Method::RUN_POD_SANDBOX.path(), Method::CREATE_CONTAINER.path()];
                if made.contains(&request.head.uri.path()) {
                    noted.lock().unwrap().push(request.body.slice(5..));
                }
            }
        });
        let client = crisp.client().await;
        Self { crisp, _runtime: runtime, client, seen, _files: files }
    }

    /// Starts RunPodSandbox with the time that the caller gives it.
    async fn run(&self, pod: &str, annotations: &[(&str, &str)], timeout: &str) -> Call {
        let head = request(Method::RUN_POD_SANDBOX.path(), &headers(&[("grpc-timeout", timeout)]));
        let message = RunPodSandboxRequest { config: Some(config(pod, annotations)), ..Default::default() };
        self.client.start(head, &[framed(&message.encode_to_vec())], None).await.unwrap()
    }

    /// How many sandboxes and containers the runtime was asked for.
    fn made(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn held(&self) -> f64 {
        self.crisp.metric("crisp_links_held")
    }

    fn refused(&self, reason: &str) -> f64 {
        self.crisp.metric(&format!("crisp_links_refused_total{{reason=\"{reason}\"}}"))
    }

    async fn create(&self, container: &str, env: &[(&str, &[u8])], annotations: &[(&str, &str)]) -> Reply {
        let message = container_request(container, env, annotations);
        self.client.unary(Method::CREATE_CONTAINER.path(), &message).await.unwrap()
    }

    /// The environment of the last container that the runtime was asked for.
    fn env(&self) -> Vec<String> {
        let message = self.seen.lock().unwrap().last().unwrap().clone();
        let mut env: Vec<_> = variables(&message)
            .into_iter()
            .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(&value)))
            .collect();
        env.sort();
        env
    }
}

fn config(pod: &str, annotations: &[(&str, &str)]) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.into(),
            uid: format!("uid-{pod}"),
            namespace: "shop".into(),
            attempt: 0,
        }),
        annotations: annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        ..Default::default()
    }
}

fn container_request(container: &str, env: &[(&str, &[u8])], annotations: &[(&str, &str)]) -> Bytes {
    let message = CreateContainerRequest {
        pod_sandbox_id: "sandbox".into(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata { name: container.into(), attempt: 0 }),
            ..Default::default()
        }),
        sandbox_config: Some(config("web-1", annotations)),
    };
    // Values are bytes since CRI 1.36; the types at hand still have text.
    env.iter().fold(message.encode_to_vec().into(), |message, (name, value)| {
        let variable = Patch::new()
            .set([1], *name)
            .set([2], Bytes::copy_from_slice(value))
            .apply(&Bytes::new())
            .unwrap();
        Patch::new().append([2, 6], variable).apply(&message).unwrap()
    })
}

fn variables(message: &Bytes) -> Vec<(String, Vec<u8>)> {
    use crisp::wire::{Value, fields, last};
    let Some(Value::Len(config)) = last(message, [2]).unwrap() else { return Vec::new() };
    let envs = fields(config).map(Result::unwrap).filter(|field| field.number == 6);
    let part = |variable: &[u8], number: u32| match last(variable, [number]).unwrap() {
        Some(Value::Len(bytes)) => bytes.to_vec(),
        _ => Vec::new(),
    };
    envs.filter_map(|field| match field.value {
        Value::Len(one) => Some((String::from_utf8(part(one, 1)).unwrap(), part(one, 2))),
        _ => None,
    })
    .collect()
}

fn spec(ip: &str, port: u16) -> Value {
    json!({"type": "ClusterIP", "clusterIP": ip, "ports": [{"port": port, "protocol": "TCP"}]})
}

fn words(reply: &Reply) -> String {
    reply.message().replace("%20", " ").replace("%22", "\"")
}

#[tokio::test]
async fn a_pod_waits_until_the_service_exists() {
    let api = ApiServer::start();
    api.add_service("shop", "queue", spec("10.0.0.1", 1));
    let node = Node::start(Some(&api), &[]).await;
    let wants = [(DEPENDENCIES, r#"["redis", "queue"]"#)];
    let first = node.run("web-1", &wants, "4M").await;
    let second = node.run("web-2", &wants, "4M").await;
    eventually("both wait", || node.held() == 2.0).await;
    eventually("one watch serves both", || api.watches() == 1).await;
    assert_eq!(node.made(), 0);
    eventually("both pods are told", || api.events().len() == 2).await;
    let event = &api.events()[0];
    assert_eq!(
        (&event["reason"], &event["message"]),
        (&json!("WaitingForServices"), &json!("waits for Service shop/redis"))
    );

    // Neither another Service nor another namespace's helps.
    api.add_service("shop", "other", spec("10.0.0.2", 1));
    api.add_service("bank", "redis", spec("10.0.0.3", 1));
    // A broken watch is begun anew.
    api.cut_watches();
    let watched = || api.asked().iter().filter(|path| path.contains("watch=1")).count();
    eventually("it is watched again", || watched() == 2 && api.watches() == 1).await;
    assert_eq!((node.held(), node.made()), (2.0, 0));

    api.add_service("shop", "redis", spec("10.0.0.4", 1));
    for call in [first, second] {
        assert_eq!(call.reply().await.unwrap(), Reply::of(&[b"\x0a\x02id"]));
    }
    eventually("nobody waits and nothing is watched", || node.held() == 0.0 && api.watches() == 0).await;
    assert_eq!(node.crisp.metric("crisp_links_wait_seconds_count"), 2.0);

    // What exists is read and not watched.
    assert_eq!(node.run("web-3", &wants, "4M").await.reply().await.unwrap().code(), "0");
    assert_eq!(watched(), 2);
    assert_eq!(node.crisp.metric("crisp_intercept_failures_total"), 0.0);
}

#[tokio::test]
async fn a_pod_is_refused_before_its_caller_gives_up() {
    let api = ApiServer::start();
    let node = Node::start(Some(&api), &[]).await;
    let wants = [(DEPENDENCIES, r#"["redis", "queue"]"#)];
    for _ in 0..2 {
        // 15 s before the deadline: after a tenth of a second.
        let reply = node.run("web-1", &wants, "15100m").await.reply().await.unwrap();
        assert_eq!(reply.code(), "9");
        let expected = "crisp: pod shop/web-1 depends on Services shop/queue, shop/redis, which do not exist; create what";
        assert!(words(&reply).starts_with(expected), "{reply:?}");
    }
    // One with no time to wait is refused at once.
    assert_eq!(node.run("web-1", &wants, "5S").await.reply().await.unwrap().code(), "9");
    assert_eq!((node.made(), node.refused("missing")), (0, 3.0));
    let reasons = || {
        let mut reasons: Vec<_> =
            api.events().iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
        reasons.sort();
        reasons
    };
    eventually("the pod is told", || reasons().len() == 2).await;
    assert_eq!(reasons(), ["MissingServices", "WaitingForServices"], "once each");
    eventually("nothing is watched", || api.watches() == 0).await;

    // A Service that exists by then is found even if the watch never said so.
    api.add_service("shop", "queue", spec("10.0.0.1", 1));
    let late = node.run("web-2", &wants, "17S").await;
    eventually("it waits", || node.held() == 1.0).await;
    api.set_fault(Some(Fault::Status(500)));
    api.cut_watches();
    api.add_service("shop", "redis", spec("10.0.0.1", 1));
    eventually("the watch fails", || api.watches() == 0).await;
    api.set_fault(None);
    assert_eq!(late.reply().await.unwrap().code(), "0");
}

#[tokio::test]
async fn waiting_ends_with_the_caller_and_is_bounded() {
    let api = ApiServer::start();
    let node = Node::start(Some(&api), &[("links.maxHeld", "1")]).await;
    let wants = [(DEPENDENCIES, r#"["redis"]"#)];
    let first = node.run("web-1", &wants, "4M").await;
    eventually("it waits", || node.held() == 1.0 && api.watches() == 1).await;
    let reply = node.run("web-2", &wants, "4M").await.reply().await.unwrap();
    assert_eq!(reply.code(), "8");
    assert!(words(&reply).contains("no more than 1 pods may wait at once (links.maxHeld)"), "{reply:?}");
    assert_eq!(node.refused("full"), 1.0);

    drop(first);
    eventually("nobody waits", || node.held() == 0.0 && api.watches() == 0).await;
    let next = node.run("web-2", &wants, "4M").await;
    eventually("there is room again", || node.held() == 1.0).await;
    assert_eq!(node.made(), 0);
    drop(next);
}

#[tokio::test]
async fn without_an_api_server_only_pods_that_ask_are_refused() {
    let api = ApiServer::start();
    // Records are added to every container, and bytes are compared here.
    let off = [("record.enabled", "false")];
    let (node, none) = (Node::start(Some(&api), &off).await, Node::start(None, &off).await);
    let wants = [(DEPENDENCIES, r#"["redis"]"#)];
    let env_from = [(ENV_FROM, r#"{"web": [{"service": {"name": "redis"}}]}"#)];
    api.set_fault(Some(Fault::Status(500)));
    let replies = [
        node.run("web-1", &wants, "4M").await.reply().await.unwrap(),
        node.create("web", &[], &env_from).await,
    ];
    for reply in replies {
        assert_eq!(reply.code(), "14");
        let text = words(&reply);
        assert!(
            text.starts_with("crisp: pod shop/web-1 asks for Services, and they cannot be read now"),
            "{text}"
        );
        assert!(text.contains("at the Kubernetes API server http://127.0.0.1"), "{text}");
    }
    assert_eq!(node.refused("unavailable"), 2.0);
    let replies = [
        none.run("web-1", &wants, "4M").await.reply().await.unwrap(),
        none.create("web", &[], &env_from).await,
    ];
    for reply in replies {
        assert_eq!(reply.code(), "9");
        assert!(words(&reply).ends_with("set --kubeconfig FILE"), "{reply:?}");
    }

    let asked = api.asked().len();
    for node in [&node, &none] {
        assert_eq!(node.made(), 0);
        let plain = [("example.com/x", "crisp.dev")];
        assert_eq!(node.run("web-1", &plain, "4M").await.reply().await.unwrap().code(), "0");
        let message = container_request("web", &[("REDIS_SERVICE_HOST", b"10.0.0.1")], &plain);
        let reply = node.client.unary(Method::CREATE_CONTAINER.path(), &message).await.unwrap();
        assert_eq!(reply.code(), "0");
        assert_eq!(node.seen.lock().unwrap().last().unwrap(), &message, "the very same bytes");
        // An annotation that asks for nothing is as good as none.
        let nothing = [(DEPENDENCIES, "[]"), (ENV_FROM, r#"{"web": []}"#)];
        assert_eq!(node.run("web-1", &nothing, "4M").await.reply().await.unwrap().code(), "0");
        assert_eq!(node.create("web", &[], &nothing).await.code(), "0");
    }
    assert_eq!(api.asked().len(), asked, "nobody asked the API server");
}

#[tokio::test]
async fn containers_get_what_they_asked_for_and_no_more() {
    let api = ApiServer::start();
    api.add_service("shop", "redis-master", spec("10.0.0.11", 6379));
    api.add_service("shop", "kubernetes", spec("10.0.0.1", 443));
    for number in 0..200 {
        api.add_service("shop", &format!("other-{number}"), spec(&format!("10.0.1.{number}"), 80));
    }
    let node = Node::start(Some(&api), &[]).await;
    let of_other = |number: u8| {
        let (name, ip) = (format!("OTHER_{number}"), format!("10.0.1.{number}"));
        [
            (format!("{name}_SERVICE_HOST"), ip.clone()),
            (format!("{name}_SERVICE_PORT"), "80".to_owned()),
            (format!("{name}_PORT"), format!("tcp://{ip}:80")),
            (format!("{name}_PORT_80_TCP"), format!("tcp://{ip}:80")),
            (format!("{name}_PORT_80_TCP_PROTO"), "tcp".to_owned()),
            (format!("{name}_PORT_80_TCP_PORT"), "80".to_owned()),
            (format!("{name}_PORT_80_TCP_ADDR"), ip),
        ]
    };
    let text: Vec<_> = (0..200).flat_map(of_other).collect();
    let mut env: Vec<(&str, &[u8])> =
        text.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    env.extend([
        ("PATH", &b"/bin"[..]),
        ("BYTES", b"\xff\xfe"),
        ("KUBERNETES_SERVICE_HOST", b"10.0.0.1"),
        ("REDIS_MASTER_SERVICE_PORT", b"7000"),
    ]);
    let annotation = r#"{"web": [{"service": {"name": "redis-master"}},
        {"prefix": "PREFIX_", "service": {"name": "redis-master"}}]}"#;
    assert_eq!(node.create("web", &env, &[(ENV_FROM, annotation)]).await.code(), "0");
    assert_eq!(
        node.env(),
        [
            "BYTES=\u{fffd}\u{fffd}",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
            "PATH=/bin",
            "PREFIX_REDIS_MASTER_PORT=tcp://10.0.0.11:6379",
            "PREFIX_REDIS_MASTER_PORT_6379_TCP=tcp://10.0.0.11:6379",
            "PREFIX_REDIS_MASTER_PORT_6379_TCP_ADDR=10.0.0.11",
            "PREFIX_REDIS_MASTER_PORT_6379_TCP_PORT=6379",
            "PREFIX_REDIS_MASTER_PORT_6379_TCP_PROTO=tcp",
            "PREFIX_REDIS_MASTER_SERVICE_HOST=10.0.0.11",
            "PREFIX_REDIS_MASTER_SERVICE_PORT=6379",
            "REDIS_MASTER_PORT=tcp://10.0.0.11:6379",
            "REDIS_MASTER_PORT_6379_TCP=tcp://10.0.0.11:6379",
            "REDIS_MASTER_PORT_6379_TCP_ADDR=10.0.0.11",
            "REDIS_MASTER_PORT_6379_TCP_PORT=6379",
            "REDIS_MASTER_PORT_6379_TCP_PROTO=tcp",
            "REDIS_MASTER_SERVICE_HOST=10.0.0.11",
            "REDIS_MASTER_SERVICE_PORT=7000",
        ]
    );
    // A container beside it that asked for nothing loses what it got for nothing.
    assert_eq!(node.create("sidecar", &env, &[(ENV_FROM, annotation)]).await.code(), "0");
    assert_eq!(node.env().len(), 4);
    assert_eq!(api.asked().iter().filter(|path| path.ends_with("/services")).count(), 2, "one list each");
}

#[tokio::test]
async fn a_container_fails_if_what_it_asked_for_is_not_to_be_had() {
    let api = ApiServer::start();
    api.add_service("shop", "headless", json!({"clusterIP": "None", "ports": [{"port": 1}]}));
    api.add_service("shop", "elsewhere", json!({"type": "ExternalName", "externalName": "x.example"}));
    let node = Node::start(Some(&api), &[]).await;
    for (service, expected) in [
        ("redis", "container web of pod shop/web-1: Service shop/redis does not exist"),
        ("headless", "Service shop/headless is headless (clusterIP: None), so there are no variables for it"),
        ("elsewhere", "Service shop/elsewhere is of type ExternalName"),
    ] {
        let annotation = format!(r#"{{"web": [{{"service": {{"name": "{service}"}}}}]}}"#);
        let reply = node.create("web", &[], &[(ENV_FROM, &annotation)]).await;
        assert_eq!(reply.code(), "9", "{reply:?}");
        assert!(words(&reply).contains(expected), "{expected} in {reply:?}");
    }
    assert_eq!((node.made(), node.refused("missing")), (0, 3.0));
}

#[tokio::test]
async fn a_malformed_annotation_fails_its_pod_and_names_the_field() {
    let api = ApiServer::start();
    let node = Node::start(Some(&api), &[]).await;
    let deep = "[".repeat(50_000);
    let long = format!("[{}\"a\"]", " ".repeat(70_000));
    for (key, value, expected) in [
        (DEPENDENCIES, "redis", "annotation crisp.dev/service-dependencies: is not JSON: expected value"),
        (DEPENDENCIES, r#"["Redis"]"#, "service-dependencies: [0]: \"Redis\" is not the name of a Service"),
        (DEPENDENCIES, &deep, "service-dependencies: "),
        (DEPENDENCIES, &long, "at most 65536"),
        (ENV_FROM, r#"{"web": [{"prefix": "a b", "service": {"name": "x"}}]}"#, "env-from: web[0].prefix: "),
        (ENV_FROM, r#"{"web": [{"configMapRef": {"name": "x"}}]}"#, "unknown field `configMapRef`"),
    ] {
        let reply = node.run("web-1", &[(key, value)], "4M").await.reply().await.unwrap();
        assert_eq!(reply.code(), "3", "{reply:?}");
        let text = words(&reply);
        assert!(text.starts_with("crisp: pod shop/web-1: annotation ") && text.len() < 600, "{text}");
        let decoded = text.replace("%60", "`");
        assert!(decoded.contains(expected), "{expected} in {decoded}");
        if key == ENV_FROM {
            assert_eq!(node.create("web", &[], &[(key, value)]).await.code(), "3");
        }
    }
    assert_eq!((node.made(), api.asked().len()), (0, 0));
    assert_eq!(node.crisp.metric("crisp_intercept_failures_total"), 0.0);

    let off = InProcess::with(|metrics, _| crisp::intercept::Features::observing(metrics));
    let _runtime = FakeRuntime::answering(&off.runtime_socket(), Reply::of(&[b""]));
    let message = RunPodSandboxRequest {
        config: Some(config("web-1", &[(DEPENDENCIES, "redis")])),
        ..Default::default()
    };
    let reply = off.client().await.unary(Method::RUN_POD_SANDBOX.path(), &message.encode_to_vec()).await;
    assert_eq!(reply.unwrap().code(), "0", "switched off");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_who_uses_and_who_waits() {
    let api = ApiServer::start();
    let place = Place::new();
    let sandbox = |name: &str, annotations: &[(&str, &str)]| {
        let PodSandboxConfig { metadata, annotations, .. } = config(name, annotations);
        PodSandbox { id: name.into(), metadata, annotations, ..Default::default() }
    };
    let list = ListPodSandboxResponse {
        items: vec![
            sandbox("plain", &[]),
            sandbox(
                "uses",
                &[
                    (DEPENDENCIES, r#"["redis"]"#),
                    (ENV_FROM, r#"{"web": [{"prefix": "P_", "service": {"name": "redis"}}]}"#),
                ],
            ),
            PodSandbox { state: 1, ..sandbox("dead", &[(DEPENDENCIES, r#"["redis"]"#)]) },
        ],
    };
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::of(&[&list.encode_to_vec()]));
    let file = place.path("kubeconfig");
    api.kubeconfig(&file);
    let flags = ["--kubeconfig", file.to_str().unwrap(), "--drain-max", "10m"];
    let mut running = place.start("crisp.log", &flags).await;
    let client = place.client().await;
    let head = request(Method::RUN_POD_SANDBOX.path(), &HeaderMap::new());
    let message = RunPodSandboxRequest {
        config: Some(config("waits", &[(DEPENDENCIES, r#"["queue"]"#)])),
        ..Default::default()
    };
    let call = client.start(head, &[framed(&message.encode_to_vec())], None).await.unwrap();
    eventually("it waits", || api.watches() == 1).await;

    let admin = format!("unix://{}", place.admin().display());
    let said = |more: &[&str]| {
        let mut command = crisp();
        let output = command.args(["links", "--admin-listen", &admin]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let report: LinksReport = serde_json::from_str(&said(&["--output", "json"])).unwrap();
    let [waits, uses] = &report.pods[..] else { panic!("{report:?}") };
    assert_eq!(
        (waits.pod.as_str(), waits.state.as_str(), &waits.missing[..]),
        ("waits", "waiting", &["queue".to_owned()][..])
    );
    assert_eq!(
        (uses.pod.as_str(), uses.state.as_str(), &uses.dependencies[..]),
        ("uses", "started", &["redis".to_owned()][..])
    );
    assert_eq!((uses.env_from[0].prefix.as_str(), report.problem.as_deref()), ("P_", None));
    let text = said(&[]);
    assert!(text.contains("redis (web: P_)") && text.contains("waiting for "), "{text}");
    let status = crisp().args(["status", "--admin-listen", &admin]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("pods that wait for Services: 1"), "{status}");

    // Who waits does not hold up a restart.
    running.signal(Signal::TERM);
    let reply = call.reply().await.unwrap();
    assert_eq!((reply.code(), words(&reply).contains("shutting down")), ("14", true), "{reply:?}");
    drop(client);
    assert!(soon("its end", running.exit()).await.success());
}

/// The types at hand are used for what they can say.
#[test]
fn requests_are_made_as_the_cri_has_them() {
    let message = container_request("web", &[("A", b"b")], &[]);
    let read = CreateContainerRequest::decode(message).unwrap();
    assert_eq!(read.config.unwrap().envs, [KeyValue { key: "A".into(), value: "b".into() }]);
}
