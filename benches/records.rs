//! What records cost on the path of a call: made for a container, and taken out of what the runtime says.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use crisp::config::Config;
use crisp::container::PodEvents;
use crisp::container::record::LABEL;
use crisp::container::recorder::{self, Recorder};
use crisp::cri::plan::OnReply;
use crisp::cri::{Call, Forward, Method};
use crisp::error::{Error, Kind, Origin};
use crisp::intercept::{Feature, records};
use crisp::metrics::Metrics;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::FutureExt as _;
use k8s_cri::v1::{
    Container, ContainerConfig, ContainerMetadata, ContainerStatus, ContainerStatusResponse,
    CreateContainerRequest, ImageSpec, KeyValue, ListContainersResponse,
};
use prost::Message as _;

/// A record at the limit.
const RECORD: usize = 3584;

fn pairs(pairs: &[(&str, String)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

fn labels(n: usize, record: usize) -> HashMap<String, String> {
    let mut labels = pairs(&[
        ("io.kubernetes.container.name", format!("container-{n}")),
        ("io.kubernetes.pod.name", format!("deployment-5d8f7c9b6d-{n:05}")),
        ("io.kubernetes.pod.namespace", "production".to_owned()),
        ("io.kubernetes.pod.uid", format!("0b1f6a52-6d53-4d0e-9a35-{n:012}")),
    ]);
    if record > 0 {
        labels.insert(LABEL.to_owned(), "\"r\"".repeat(record / 3));
    }
    labels
}

fn annotations() -> HashMap<String, String> {
    pairs(&[
        ("io.kubernetes.container.hash", "8f3a2b1c".to_owned()),
        (
            "io.kubernetes.container.ports",
            r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#.to_owned(),
        ),
        ("io.kubernetes.container.restartCount", "3".to_owned()),
        ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log".to_owned()),
        ("io.kubernetes.container.terminationMessagePolicy", "File".to_owned()),
        ("io.kubernetes.pod.terminationGracePeriod", "30".to_owned()),
    ])
}

/// A node with 300 containers.
fn list(record: usize) -> Bytes {
    let container = |n: usize| Container {
        id: format!("{n:064x}"),
        pod_sandbox_id: format!("{:064x}", n + 1000),
        metadata: Some(ContainerMetadata { name: format!("container-{n}"), attempt: 3 }),
        image_ref: "sha256:".to_owned() + &"5f".repeat(32),
        labels: labels(n, record),
        annotations: annotations(),
        ..Default::default()
    };
    ListContainersResponse { containers: (0..300).map(container).collect() }.encode_to_vec().into()
}

fn status(record: usize) -> Bytes {
    let status = ContainerStatus {
        id: format!("{:064x}", 1),
        metadata: Some(ContainerMetadata { name: "container".to_owned(), attempt: 3 }),
        labels: labels(1, record),
        annotations: annotations(),
        ..Default::default()
    };
    ContainerStatusResponse { status: Some(status), ..Default::default() }.encode_to_vec().into()
}

/// A container with so many variables of so many bytes.
fn create(variables: usize, bytes: usize) -> Bytes {
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "container".to_owned(), attempt: 3 }),
        image: Some(ImageSpec { image: "busybox:1.35".to_owned(), ..Default::default() }),
        args: vec!["serve".to_owned(), "--verbose".to_owned()],
        envs: (0..variables)
            .map(|n| KeyValue { key: format!("VARIABLE_{n}"), value: "v".repeat(bytes) })
            .collect(),
        labels: labels(0, 0),
        annotations: annotations(),
        ..Default::default()
    };
    CreateContainerRequest { pod_sandbox_id: "f".repeat(64), config: Some(config), sandbox_config: None }
        .encode_to_vec()
        .into()
}

fn call(method: Method, message: Bytes) -> Call {
    Call::new(method, message)
}

/// Everything that the feature does with a reply, from its bytes to those that go on.
fn strip(feature: &dyn Feature, method: Method, reply: &Bytes) -> Bytes {
    let mut forward = Forward::default();
    let planned = feature.plan(&call(method, Bytes::new()), &mut forward);
    assert!(matches!(planned, Ok(None)));
    let mut reply = reply.clone();
    for step in &mut forward.reply {
        if let OnReply::Map(map) = &mut step.action {
            let changed = map(&reply).ok().and_then(|patch| patch.apply(&reply).ok());
            reply = changed.unwrap_or_default();
        }
    }
    reply
}

fn bench(c: &mut Criterion) {
    let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (Ok(background), Ok(state), Ok(mut config)) =
        (background, tempfile::tempdir(), Config::load(None, []))
    else {
        return;
    };
    let _context = background.enter();
    config.record.inline_budget = u64::MAX / 4;
    let metrics = Metrics::new();
    let recorder = Recorder::start(recorder::Parts {
        settings: config.record,
        state_dir: state.path().to_owned(),
        call: Arc::new(|_, _, _| {
            async { Err(Error::new(Kind::Unavailable, Origin::Crisp, "no runtime")) }.boxed()
        }),
        events: PodEvents::default(),
        metrics: metrics.clone(),
    });
    let Ok(recorder) = recorder else { return };
    let feature = records(recorder, &metrics);

    let mut group = c.benchmark_group("take records out");
    let replies = [
        ("300 containers, records at the limit", Method::LIST_CONTAINERS, list(RECORD)),
        ("300 containers, no record", Method::LIST_CONTAINERS, list(0)),
        ("status, record at the limit", Method::CONTAINER_STATUS, status(RECORD)),
        ("status, no record", Method::CONTAINER_STATUS, status(0)),
    ];
    for (name, method, reply) in replies {
        group.throughput(Throughput::Bytes(reply.len() as u64));
        group.bench_function(name, |b| b.iter(|| strip(&*feature, method, black_box(&reply))));
    }
    group.finish();

    let mut group = c.benchmark_group("make a record");
    for (name, variables, bytes) in
        [("10 variables", 10, 20), ("100 variables", 100, 20), ("60 KiB", 60, 1000)]
    {
        let request = call(Method::CREATE_CONTAINER, create(variables, bytes));
        group.bench_function(name, |b| {
            b.iter(|| feature.plan(black_box(&request), &mut Forward::default()).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
