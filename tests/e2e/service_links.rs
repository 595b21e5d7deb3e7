//! Pods that say which Services they need, with a real API server and a real kubelet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_cri::v1::ExecSyncRequest;
use serde_json::{Value, json};

use crate::lab::client::Cri;
use crate::lab::cluster::Cluster;
use crate::lab::wait;
use crate::member::{self, LIMIT, Member, NEWEST, idle};
use crate::report;

/// How long after its Service a pod may take to run, unless this machine is too busy for any pod to be so fast.
const SOON: Duration = Duration::from_secs(2);

type Env = BTreeMap<String, String>;

#[test]
fn a_pod_runs_as_soon_as_its_service_exists() {
    waits_for_its_service(Duration::from_secs(10), "10.0.0.11");
}

#[test]
#[ignore = "part of make e2e-all"]
fn a_pod_runs_as_soon_as_its_service_exists_after_a_minute() {
    waits_for_its_service(Duration::from_secs(60), "10.0.0.13");
}

/// `delay` is how long after the pod its Service is made.
fn waits_for_its_service(delay: Duration, address: &str) {
    let Some(node) = member::runtime("a pod that waits for a Service", NEWEST) else { return };
    let (member, crisp) = Member::join_through_crisp(node, Cluster::shared(), &[]);
    // What a pod takes on this machine now; and it brings the image.
    let containers = ["plain", "prefixed", "neither"].map(|name| idle(name, "busybox:1.35"));
    let spec = json!({"containers": containers});
    member.add_pod("first", &Value::Null, &spec);
    member.wait_all_of("first", 3);
    let made = Instant::now();
    member.add_pod("usual", &Value::Null, &spec);
    member.wait_all_of("usual", 3);
    let usual = made.elapsed();

    let annotations = links(
        &["redis-master"],
        &json!({
            "plain": [{"service": {"name": "redis-master"}}],
            "prefixed": [{"prefix": "PREFIX_", "service": {"name": "redis-master"}}],
        }),
    );
    member.add_pod("app", &annotations, &spec);
    wait::until("crisp holds the pod", LIMIT, || {
        let links = crisp.command(&["links"]);
        let held = links["pods"].as_array()?.iter().find(|pod| pod["pod"] == "app")?;
        (held["missing"] == json!(["redis-master"])).then_some(())
    });
    let started = || member.running().keys().any(|name| name.starts_with("app/"));
    let early = wait::try_until(delay, || started().then_some(()));
    assert!(early.is_none(), "the pod has not waited: {:?}", member.running());
    let told = member.wait_event("app");
    assert!(told["message"].as_str().is_some_and(|words| words.contains("redis-master")), "{told:#}");

    member.cluster.add_service((&member.namespace, "redis-master"), Some(address), &[("", 6379)]);
    let made = Instant::now();
    let running = member.wait_all_of("app", 3);
    let took = made.elapsed();
    member.wait_running(9);
    let told = made.elapsed();
    report::add_note(&format!(
        "a pod that waited {} s for a Service: its 3 containers run {:.2} s after that was made, and the API server has \
         it after {:.2} s; a pod that waits for nothing takes {:.2} s",
        delay.as_secs(),
        took.as_secs_f64(),
        told.as_secs_f64(),
        usual.as_secs_f64()
    ));
    // What it costs beyond a pod that waits for nothing; how long that takes is the machine's business.
    assert!(took <= SOON + usual, "{took:?} after the Service was made, {usual:?} without one");
    assert_eq!(member.env(&running["app/plain"]), redis("", address));
    assert_eq!(member.env(&running["app/prefixed"]), redis("PREFIX_", address));
    assert_eq!(member.env(&running["app/neither"]), Env::new());
}

#[test]
fn of_200_services_a_pod_gets_those_it_asks_for() {
    let Some(node) = member::runtime("links in a namespace of 200 Services", NEWEST) else { return };
    let (member, _crisp) = Member::join_through_crisp(node, Cluster::shared(), &[]);
    for number in 0..199 {
        let name = format!("service-{number}");
        member.cluster.add_service((&member.namespace, &name), None, &[("web", 80), ("admin", 8080)]);
    }
    member.cluster.add_service((&member.namespace, "redis-master"), Some("10.0.0.12"), &[("", 6379)]);
    let env_from = json!({"asks": [{"service": {"name": "redis-master"}}]});
    let mut asks = idle("asks", "busybox:1.35");
    asks["env"] = json!([{"name": "REDIS_MASTER_PORT", "value": "mine"}, {"name": "OTHER", "value": "$(SERVICE_7_SERVICE_PORT)"}]);
    let spec = |containers: Value| json!({"enableServiceLinks": true, "containers": containers});
    member.add_pod("asks", &links(&[], &env_from), &spec(json!([asks, idle("other", "busybox:1.35")])));
    member.add_pod(
        "depends",
        &links(&["service-3"], &Value::Null),
        &spec(json!([idle("main", "busybox:1.35")])),
    );
    member.wait_running(3);
    // By now the kubelet has been told of all Services.
    member.add_pod("plain", &Value::Null, &spec(json!([idle("main", "busybox:1.35")])));
    let running = member.wait_running(4);

    let mut expected = redis("", "10.0.0.12");
    // What the pod declares wins, and what the kubelet has expanded stays.
    expected.extend(
        [("REDIS_MASTER_PORT", "mine"), ("OTHER", "80")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    assert_eq!(member.env(&running["asks/asks"]), expected);
    assert_eq!(member.env(&running["asks/other"]), Env::new());
    // 7 variables of one port, and 13 of two with names.
    let plain = member.env(&running["plain/main"]);
    assert_eq!(plain.len(), 7 + 199 * 13, "a pod without links has lost some");
    report::add_note(&format!(
        "200 Services in the namespace: a pod that links to one has {} variables of them, a pod without links {}",
        expected.len() - 1,
        plain.len()
    ));
}

#[test]
fn without_an_api_server_only_pods_with_links_wait() {
    let Some(node) = member::runtime("links without an API server", NEWEST) else { return };
    let (mut member, crisp) = Member::join_through_crisp(node, Arc::new(Cluster::start()), &[]);
    let cluster = Arc::get_mut(&mut member.cluster).expect("nobody else has it");
    cluster.add_service(("default", "redis-master"), Some("10.0.0.11"), &[("", 6379)]);
    cluster.stop_api();
    let links = links(&["redis-master"], &Value::Null);
    member.kubelet.add_static_pod("linked", &links, &idle("main", "busybox:1.35"));
    member.kubelet.add_static_pod("plain", &Value::Null, &idle("main", "busybox:1.35"));
    assert_eq!(member.kubelet.wait_running("plain", LIMIT).restarts, 0);
    wait::until("the kubelet is told what is wrong", LIMIT, || {
        let log = member.kubelet.log();
        let refused = log.lines().find(|line| line.contains("RunPodSandbox from runtime service failed"))?;
        let words = ["pod default/linked", "redis-master", "API server"];
        assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
        Some(())
    });
    assert_eq!(member.kubelet.running("linked"), None, "{}", crisp.log_tail());

    Arc::get_mut(&mut member.cluster).expect("nobody else has it").restart_api();
    assert_eq!(member.kubelet.wait_running("linked", LIMIT).restarts, 0);
}

// === impl Member ===

impl Member {
    /// Waits until so many containers of a pod run by the runtime's own word.
    fn wait_all_of(&self, pod: &str, containers: usize) -> member::Ids {
        let prefix = format!("{pod}/");
        wait::until("the pod runs", LIMIT, || {
            let ids = self.running();
            (ids.keys().filter(|name| name.starts_with(&prefix)).count() == containers).then_some(ids)
        })
    }

    /// The variables of a container, but for those that every container has.
    fn env(&self, container_id: &str) -> Env {
        let request = ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: ["cat", "/proc/1/environ"].map(str::to_owned).into(),
            timeout: 10,
        };
        let printed =
            self.background.block_on(async { Cri::new(self.node.socket()).runtime.exec_sync(request).await });
        let printed = printed.expect("ExecSync").into_inner().stdout;
        let printed = String::from_utf8(printed).expect("text");
        let pairs = printed.split_terminator('\0').filter_map(|pair| pair.split_once('='));
        let mut env: Env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for every in ["PATH", "HOSTNAME", "HOME"] {
            env.remove(every);
        }
        let (kubernetes, env): (Env, Env) =
            env.into_iter().partition(|(name, _)| name.starts_with("KUBERNETES_"));
        assert_eq!(kubernetes.len(), 8, "{kubernetes:?}");
        assert_eq!(kubernetes["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
        env
    }
}

/// The annotations of a pod that depends on Services and has variables of some.
fn links(dependencies: &[&str], env_from: &Value) -> Value {
    let mut annotations = json!({});
    if !dependencies.is_empty() {
        annotations["crisp.dev/service-dependencies"] = json!(json!(dependencies).to_string());
    }
    if !env_from.is_null() {
        annotations["crisp.dev/env-from"] = json!(env_from.to_string());
    }
    annotations
}

/// What a Service `redis-master` of one port gives.
fn redis(prefix: &str, address: &str) -> Env {
    let url = format!("tcp://{address}:6379");
    let pairs = [
        ("SERVICE_HOST", address),
        ("SERVICE_PORT", "6379"),
        ("PORT", &url),
        ("PORT_6379_TCP", &url),
        ("PORT_6379_TCP_PROTO", "tcp"),
        ("PORT_6379_TCP_PORT", "6379"),
        ("PORT_6379_TCP_ADDR", address),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (format!("{prefix}REDIS_MASTER_{name}"), value.to_owned()))
        .collect()
}
