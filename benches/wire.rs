//! What it costs to read and to patch the messages that crisp intercepts.

use std::{collections::HashMap, hint::black_box};

use bytes::Bytes;
use crisp::wire::{Counter, Patch, count, entry, last};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use k8s_cri::v1::{
    Container, ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, KeyValue,
    ListContainersResponse,
};
use prost::Message as _;

const SPEC: &str = "crisp.dev/container-spec";
const REASON: &str = "crisp.dev/restart-reason";

fn labels(container: usize) -> HashMap<String, String> {
    let pairs = [
        ("io.kubernetes.container.name", format!("container-{container}")),
        ("io.kubernetes.pod.name", format!("deployment-5d8f7c9b6d-{container:05}")),
        ("io.kubernetes.pod.namespace", "production".to_owned()),
        ("io.kubernetes.pod.uid", format!("0b1f6a52-6d53-4d0e-9a35-{container:012}")),
        (SPEC, "c".repeat(500)),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn annotations() -> HashMap<String, String> {
    let pairs = [
        ("io.kubernetes.container.hash", "8f3a2b1c"),
        ("io.kubernetes.container.ports", r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#),
        ("io.kubernetes.container.restartCount", "3"),
        ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn image() -> ImageSpec {
    let image = "registry.example.com/team/service@sha256:".to_owned() + &"5f".repeat(32);
    ImageSpec { image, ..Default::default() }
}

/// A node with 200 containers: about 300 KiB.
fn list() -> Bytes {
    let container = |n: usize| Container {
        id: format!("{n:064x}"),
        pod_sandbox_id: format!("{:064x}", n + 1000),
        metadata: Some(ContainerMetadata { name: format!("container-{n}"), attempt: 3 }),
        image: Some(image()),
        image_ref: "sha256:".to_owned() + &"5f".repeat(32),
        state: 1,
        created_at: 1_700_000_000_000_000_000,
        labels: labels(n),
        annotations: annotations(),
        ..Default::default()
    };
    ListContainersResponse { containers: (0..200).map(container).collect() }.encode_to_vec().into()
}

/// A container with 60 variables: about 5 KiB.
fn create() -> Bytes {
    let env =
        |n| KeyValue { key: format!("SERVICE_{n}_PORT_8080_TCP_ADDR"), value: format!("10.0.0.{n}/tcp") };
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "container".to_owned(), attempt: 3 }),
        image: Some(image()),
        command: vec!["/bin/service".to_owned(), "--verbose".to_owned()],
        envs: (0..60).map(env).collect(),
        labels: labels(0),
        annotations: annotations(),
        log_path: "container/3.log".to_owned(),
        ..Default::default()
    };
    CreateContainerRequest {
        pod_sandbox_id: "f".repeat(64),
        config: Some(config),
        sandbox_config: Some(k8s_cri::v1::PodSandboxConfig {
            hostname: "node".to_owned(),
            labels: labels(1),
            annotations: annotations(),
            ..Default::default()
        }),
    }
    .encode_to_vec()
    .into()
}

fn list_containers(c: &mut Criterion) {
    let message = list();
    let mut group = c.benchmark_group(format!("list of {} KiB", message.len() / 1024));
    group.throughput(Throughput::Bytes(message.len() as u64));

    group.bench_function("count", |b| b.iter(|| count(black_box(&message), [1])));
    group.bench_function("read ids and a label", |b| {
        b.iter(|| {
            for container in crisp::wire::fields(black_box(&message)).flatten() {
                let container = container.value.as_bytes().unwrap_or_default();
                black_box(last(container, [1]).ok());
                black_box(entry(container, [8], SPEC).ok());
            }
        });
    });
    group.bench_function("Counter in 16 KiB chunks", |b| {
        b.iter(|| {
            let mut counter = Counter::new(1);
            black_box(&message).chunks(16 << 10).for_each(|chunk| counter.push(chunk));
            counter.finish()
        });
    });

    let patch = Patch::new().each([1], |container| {
        let spec = entry(container, [8], SPEC).ok()??;
        Some(Patch::new().remove_entry([8], SPEC).set_entry([9], REASON, format!("{} bytes", spec.len())))
    });
    group.bench_function("patch each container", |b| b.iter(|| patch.apply(black_box(&message))));
    let nothing = Patch::new().each([1], |_| None);
    group.bench_function("patch no container", |b| b.iter(|| nothing.apply(black_box(&message))));
    group.bench_function("empty patch", |b| b.iter(|| Patch::new().apply(black_box(&message))));
    // What crisp does not do, for comparison: it is lossy.
    group.bench_function("prost decode and encode", |b| {
        b.iter(|| ListContainersResponse::decode(black_box(&message[..])).map(|list| list.encode_to_vec()));
    });
    group.finish();
}

fn create_container(c: &mut Criterion) {
    let message = create();
    let mut group = c.benchmark_group(format!("create of {:.1} KiB", message.len() as f64 / 1024.0));
    group.throughput(Throughput::Bytes(message.len() as u64));

    let label = Patch::new().set_entry([2, 9], "crisp.dev/new", "v".repeat(500));
    group.bench_function("set a label", |b| b.iter(|| label.apply(black_box(&message))));
    let envs = Patch::new().retain([2, 6], |env| !env.starts_with(b"\x0a\x1bSERVICE_1"));
    group.bench_function("retain variables", |b| b.iter(|| envs.apply(black_box(&message))));
    let both = label.then(envs);
    group.bench_function("both", |b| b.iter(|| both.apply(black_box(&message))));
    group.finish();
}

criterion_group!(benches, list_containers, create_container);
criterion_main!(benches);
