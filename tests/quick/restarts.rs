//! Protects: why a container was made again is told right, kept over a crash of crisp, and shown; and no secret with it.

use std::process::Output;
use std::time::Duration;

use crisp::container::history::{Restart, Wanted};
use crisp::container::record::LABEL;
use k8s_cri::v1::StopContainerRequest;
use prost::Message as _;
use rustix::process::Signal;
use serde_json::Value;

use crate::container_runtime::{CREATE, ContainerRuntime, STOP, Spec};
use crate::support::binary::{Place, crisp, free_address};
use crate::support::h2_client::Client;
use crate::support::http_get::get;
use crate::support::in_process::InProcess;
use crate::support::random::field;
use crate::support::wait::{eventually, soon};

/// The value of a Secret: in a variable, and where the pod's arguments had $(PASSWORD).
const SECRET: &str = "hunter2-tr0ub4dor-and-three";

struct Bench {
    crisp: InProcess,
    runtime: ContainerRuntime,
    client: Client,
}

impl Bench {
    async fn new() -> Self {
        let crisp = InProcess::released(&[]);
        let runtime = ContainerRuntime::start(&crisp.runtime_socket());
        let client = crisp.client().await;
        Self { crisp, runtime, client }
    }

    async fn create(&self, spec: &Spec) {
        assert_eq!(self.client.unary(CREATE, &spec.request()).await.unwrap().code(), "0");
    }

    /// All restarts, when there are so many.
    async fn restarts(&self, count: usize) -> Vec<Restart> {
        let history = self.crisp.recorder.as_ref().unwrap().history();
        let all = async {
            loop {
                let restarts = history.list(Wanted::default()).await.unwrap().restarts;
                if restarts.len() >= count {
                    return restarts;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let restarts = soon("the restarts are told", all).await;
        assert_eq!(restarts.len(), count);
        restarts
    }

    /// Makes a container again, and gives what is told of that.
    async fn again(&self, count: usize, spec: &Spec) -> Restart {
        self.create(spec).await;
        self.restarts(count).await.pop().unwrap()
    }
}

#[tokio::test]
async fn causes_are_told_right() {
    let bench = Bench::new().await;
    let spec = |attempt| Spec { attempt, ..Spec::default() };
    bench.create(&spec(0)).await;

    bench.runtime.end(3, "Error");
    let restart = bench.again(1, &spec(1)).await;
    assert_eq!((restart.cause.as_str(), restart.exit_code, restart.attempt), ("crashed", Some(3), 1));
    assert_eq!(
        (restart.namespace.as_str(), restart.pod.as_str(), restart.container.as_str()),
        ("shop", "web", "app")
    );
    assert!(restart.words.contains("exit code 3"), "{}", restart.words);
    assert!(restart.differences.is_empty());

    bench.runtime.end(137, "OOMKilled");
    assert_eq!(bench.again(2, &spec(2)).await.cause, "oom-killed");

    bench.runtime.end(0, "Completed");
    assert_eq!(bench.again(3, &spec(3)).await.cause, "completed");

    let id = bench.runtime.last().container.id;
    assert_eq!(bench.client.unary(STOP, &field(1, id.as_bytes())).await.unwrap().code(), "0");
    bench.runtime.end(137, "Error");
    assert_eq!(bench.again(4, &spec(4)).await.cause, "stopped");

    bench.runtime.end(0, "Completed");
    let edited = Spec { image: "busybox:1.36", hash: "22222222", ..spec(5) };
    let restart = bench.again(5, &edited).await;
    assert_eq!(restart.cause, "spec-changed");
    assert_eq!(restart.differences, ["image: busybox:1.35 → busybox:1.36"]);

    bench.runtime.end(0, "Completed");
    let upgraded = Spec { hash: "33333333", attempt: 6, ..edited.clone() };
    assert_eq!(bench.again(6, &upgraded).await.cause, "hash-only");

    bench.runtime.end(1, "Error");
    let moved = Spec { sandbox: "sandbox-2", attempt: 7, ..upgraded.clone() };
    assert_eq!(bench.again(7, &moved).await.cause, "sandbox-recreated");

    bench.runtime.containers().clear();
    assert_eq!(bench.again(8, &Spec { attempt: 8, ..moved }).await.cause, "unknown");

    for (cause, count) in [("crashed", 1.0), ("spec-changed", 1.0), ("unknown", 1.0)] {
        let sample = format!("crisp_container_restarts_total{{cause=\"{cause}\"}}");
        assert_eq!(bench.crisp.metric(&sample), count, "{cause}");
    }
    let events = bench.crisp.events.lock().unwrap();
    assert_eq!(events.len(), 8);
    assert_eq!(
        (events[0].namespace.as_str(), events[0].pod.as_str(), events[0].uid.as_str()),
        ("shop", "web", "uid-of-web")
    );
    assert!(events[0].warning && events[0].message.contains("exit code 3"), "{:?}", events[0]);
    assert!(!events[4].warning && events[4].message.contains("busybox:1.36"), "{:?}", events[4]);
}

/// A stop tells why a container ended, unless it was refused; what was edited meanwhile does not.
#[tokio::test]
async fn stops_are_told_apart_from_edits_and_refused_stops() {
    let bench = Bench::new().await;
    let stop = async |timeout| {
        let container_id = bench.runtime.last().container.id;
        let request = StopContainerRequest { container_id, timeout }.encode_to_vec();
        bench.client.unary(STOP, &request).await.unwrap().code().to_owned()
    };
    let mut spec = Spec::default();
    bench.create(&spec).await;
    assert_eq!(stop(i64::MAX).await, "13");
    bench.runtime.end(3, "Error");
    assert_eq!(bench.again(1, &spec).await.cause, "crashed");

    // Refused once more, but it has been stopped already.
    assert_eq!((stop(30).await, stop(i64::MAX).await), ("0".into(), "13".into()));
    bench.runtime.end(137, "Error");
    spec.env[0].1 = "slow".into();
    let restart = bench.again(2, &spec).await;
    assert_eq!((restart.cause.as_str(), restart.differences), ("stopped", vec!["env.MODE: changed".into()]));
}

/// From before crisp, or made at the runtime's own socket.
#[tokio::test]
async fn without_a_record_the_image_tells_whether_the_spec_changed() {
    let bench = Bench::new().await;
    let forget = |image: &str| {
        let mut containers = bench.runtime.containers();
        let container = &mut containers.last_mut().unwrap().container;
        container.labels.remove(LABEL).unwrap();
        container.image.as_mut().unwrap().image = image.to_owned();
    };
    bench.create(&Spec::default()).await;
    forget("sha256:1111");
    let restart = bench.again(1, &Spec { hash: "22222222", ..Spec::default() }).await;
    assert_eq!(restart.cause, "hash-only", "{restart:?}");
    forget("sha256:2222");
    assert_eq!(bench.again(2, &Spec { hash: "33333333", ..Spec::default() }).await.cause, "spec-changed");
}

#[tokio::test]
async fn changes_are_found_in_records_of_any_length_and_secrets_are_not_shown() {
    let bench = Bench::new().await;
    for (n, variables) in [1, 400].into_iter().enumerate() {
        let pod = ["small", "large"][n];
        let mut spec = Spec { pod, ..Spec::default() };
        spec.env = (0..variables).map(|n| (format!("V{n}"), n.to_string())).collect();
        spec.env.push(("PASSWORD".into(), "before".into()));
        bench.create(&spec).await;
        if variables > 100 {
            let body = bench.crisp.state.as_ref().unwrap().path().join("records");
            eventually("the record is written", || {
                body.read_dir().is_ok_and(|mut files| files.next().is_some())
            })
            .await;
        }
        bench.runtime.end(1, "Error");
        spec.env.pop();
        spec.env.push(("PASSWORD".into(), SECRET.into()));
        spec.env.push(("NEW".into(), SECRET.into()));
        spec.args.push(format!("--password={SECRET}"));
        spec.attempt = 1;
        let restart = bench.again(n + 1, &spec).await;
        assert_eq!(restart.cause, "crashed");
        assert_eq!(
            restart.differences,
            ["args[1]: added", "env.NEW: added", "env.PASSWORD: changed"],
            "{pod}"
        );
    }
}

/// One Event for a container and a cause; and what crashes all the time is remembered twenty times.
#[tokio::test]
async fn a_container_that_crashes_all_the_time_is_no_news() {
    let bench = Bench::new().await;
    bench.create(&Spec::default()).await;
    for attempt in 1..=25 {
        bench.runtime.end(1, "Error");
        bench.create(&Spec { attempt, ..Spec::default() }).await;
    }
    let told = || bench.crisp.metric("crisp_container_restarts_total{cause=\"crashed\"}");
    eventually("all are told", || told() == 25.0).await;
    let restarts = bench.restarts(20).await;
    assert_eq!(restarts.last().unwrap().attempt, 25);
    assert_eq!(bench.crisp.events.lock().unwrap().len(), 1);
}

/// Anybody on the node can write labels; they explain nothing, and break nothing.
#[tokio::test]
async fn hostile_labels_explain_nothing() {
    let bench = Bench::new().await;
    let digest = format!(
        "{{\"v\":1,\"key\":\"k\",\"image\":\"i\",\"digest\":\"sha256:{}\",\"size\":1}}",
        "../".repeat(21) + "a"
    );
    let labels = [
        String::new(),
        "x".repeat(1 << 20),
        "[".repeat(100_000),
        "{\"v\":1,\"key\":\"no such key\",\"image\":\"busybox:1.35\"}".into(),
        "{\"v\":99}".into(),
        digest,
    ];
    bench.create(&Spec::default()).await;
    for (n, label) in labels.into_iter().enumerate() {
        bench.runtime.containers().last_mut().unwrap().container.labels.insert(LABEL.into(), label);
        bench.runtime.end(4, "Error");
        let restart = bench.again(n + 1, &Spec { attempt: n as u32 + 1, ..Spec::default() }).await;
        assert_eq!((restart.cause.as_str(), restart.differences.len()), ("crashed", 0), "{n}");
    }
}

/// A runtime that does not answer crisp's questions costs nobody a container.
#[tokio::test]
async fn too_many_at_once_are_counted_and_left_alone() {
    let crisp = InProcess::released(&[]);
    let _runtime =
        crate::support::fake_runtime::FakeRuntime::start(&crisp.runtime_socket(), |incoming| async move {
            if incoming.path() == CREATE {
                incoming.answer(&crate::support::bytes_on_the_wire::Reply::of(&[&field(1, b"id")])).await;
            } else {
                std::future::pending::<()>().await;
            }
        });
    let client = crisp.client().await;
    for attempt in 0..100 {
        let request = Spec { attempt, ..Spec::default() }.request();
        assert_eq!(client.unary(CREATE, &request).await.unwrap().code(), "0");
    }
    eventually("some are overlooked", || crisp.metric("crisp_containers_overlooked_total") > 30.0).await;
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap() + &String::from_utf8(output.stderr.clone()).unwrap()
}

/// The whole program: what it says, what it writes, and what is left after `kill -9`.
#[tokio::test]
async fn the_history_outlives_a_crash_and_holds_no_secret() {
    let place = Place::new();
    let runtime = ContainerRuntime::start(&place.runtime());
    let metrics = free_address();
    let options = ["--log-level", "debug", "--metrics-listen", &metrics, "--record-clear-args", "false"];
    let mut first = place.start("first.log", &options).await;
    let admin = format!("unix://{}", place.admin().display());
    let ask = async |line: &[&str]| {
        let mut command = crisp();
        command.args(line).args(["--admin-listen", &admin]);
        text(&tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
    };
    assert_eq!(ask(&["restarts"]).await, "No container was made again.\n");

    let client = place.client().await;
    let mut spec = Spec { pod: "api", ..Spec::default() };
    spec.env.push(("PASSWORD".into(), SECRET.into()));
    spec.args.push(format!("--password={SECRET}"));
    for attempt in 0..3 {
        spec.attempt = attempt;
        spec.env[0].1 = format!("{SECRET}-{attempt}");
        // Long enough for a file, too.
        spec.env.extend((0..200).map(|n| (format!("V{attempt}-{n}"), SECRET.to_owned())));
        assert_eq!(client.unary(CREATE, &spec.request()).await.unwrap().code(), "0");
        runtime.end(3, "Error");
    }
    let mut said = String::new();
    for _ in 0..600 {
        said = ask(&["restarts", "-o", "json"]).await;
        if serde_json::from_str::<Value>(&said).unwrap()["restarts"].as_array().unwrap().len() == 2 {
            break;
        }
    }
    let shown = ask(&["restarts", "api/app", "-n", "shop"]).await;
    assert!(
        shown.contains("shop/api") && shown.contains("exit code 3") && shown.contains("env.MODE: changed"),
        "{shown}"
    );
    assert!(ask(&["restarts", "other"]).await.starts_with("No container of other"));
    let (_, scrape) = get(&metrics, "/metrics").await;
    first.signal(Signal::KILL);
    first.exit().await;

    let second = place.start("second.log", &options).await;
    assert_eq!(ask(&["restarts", "-o", "json"]).await, said, "it is still there");

    let mut written = vec![said, shown, scrape, first.log(), second.log()];
    let labels = runtime
        .containers()
        .iter()
        .filter_map(|made| made.container.labels.get(LABEL).cloned())
        .collect::<Vec<_>>();
    assert_eq!(labels.len(), 3);
    written.extend(labels);
    for entry in walk(&place.path("state")) {
        written.push(String::from_utf8_lossy(&std::fs::read(entry).unwrap()).into_owned());
    }
    assert!(written.len() > 8, "there are files");
    for text in written {
        assert!(!text.contains(SECRET), "{text}");
    }
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}
