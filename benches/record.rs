//! What it costs to record a container: the whole time that a CreateContainer is kept for it.

#![expect(clippy::unwrap_used, reason = "what cannot be set up cannot be measured")]

use std::{collections::HashMap, hint::black_box};

use bytes::Bytes;
use crisp::container::keys::Keys;
use crisp::container::record::{Label, Record, label};
use crisp::container::restart::differences;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, KeyValue, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, Mount, PodSandboxConfig, PodSandboxMetadata,
};
use prost::Message as _;

const UID: &str = "0b1f6a52-6d53-4d0e-9a35-000000000001";

/// A container of a Deployment as a kubelet asks for it: a few variables of its own, those of ten Services, five mounts.
fn request(extra: impl IntoIterator<Item = (String, String)>) -> Bytes {
    let mut env = HashMap::new();
    for service in 0..10 {
        let (name, address) = (format!("SERVICE_{service}"), format!("10.96.0.{service}"));
        env.insert(format!("{name}_SERVICE_HOST"), address.clone());
        env.insert(format!("{name}_SERVICE_PORT"), "80".to_owned());
        env.insert(format!("{name}_PORT"), format!("tcp://{address}:80"));
        env.insert(format!("{name}_PORT_80_TCP"), format!("tcp://{address}:80"));
        env.insert(format!("{name}_PORT_80_TCP_PROTO"), "tcp".to_owned());
        env.insert(format!("{name}_PORT_80_TCP_PORT"), "80".to_owned());
        env.insert(format!("{name}_PORT_80_TCP_ADDR"), address);
    }
    env.extend((0..8).map(|n| (format!("SETTING_{n}"), format!("value-{n}"))));
    env.extend(extra);
    let mounts = ["config", "data", "tls", "cache", "logs"].map(|name| Mount {
        container_path: format!("/srv/{name}"),
        host_path: format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~configmap/{name}"),
        readonly: true,
        ..Default::default()
    });
    let masked_paths =
        ["asound", "acpi", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug"];
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "web".to_owned(), attempt: 3 }),
        image: Some(ImageSpec {
            image: "sha256:".to_owned() + &"5f".repeat(32),
            user_specified_image: "registry.example.com/team/service:1.0".to_owned(),
            ..Default::default()
        }),
        command: vec!["/bin/service".to_owned()],
        args: (0..6).map(|n| format!("--option-{n}=value")).collect(),
        envs: env.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        mounts: mounts.into(),
        annotations: HashMap::from([(
            "io.kubernetes.container.ports".to_owned(),
            r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#.to_owned(),
        )]),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_period: 100_000,
                cpu_shares: 512,
                memory_limit_in_bytes: 1 << 28,
                oom_score_adj: 900,
                ..Default::default()
            }),
            security_context: Some(LinuxContainerSecurityContext {
                no_new_privs: true,
                masked_paths: masked_paths.map(|name| format!("/proc/{name}")).into(),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    let metadata = PodSandboxMetadata { uid: UID.to_owned(), ..Default::default() };
    let sandbox = PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    let request = CreateContainerRequest {
        pod_sandbox_id: "5a7d".to_owned(),
        config: Some(config),
        sandbox_config: Some(sandbox),
    };
    request.encode_to_vec().into()
}

fn recording(c: &mut Criterion) {
    let keys = Keys::in_memory().unwrap();
    let key = keys.current();
    let record_of = |message: &Bytes| Record::of(black_box(message), key, false).unwrap();
    let requests = [
        ("typical", request([])),
        ("2 MiB in 20 variables", request((0..20).map(|n| (format!("LARGE_{n}"), "x".repeat(105_000))))),
        ("2 MiB in 20,000 variables", request((0..20_000).map(|n| (format!("MANY_{n:05}"), "x".repeat(90))))),
    ];
    let mut group = c.benchmark_group("record");
    for (name, message) in &requests {
        let record = record_of(message);
        group.throughput(Throughput::Bytes(message.len() as u64));
        group.bench_function(format!("Record::of, {name}"), |b| {
            b.iter(|| record_of(message));
        });
        group.bench_function(format!("label, {name}"), |b| b.iter(|| label(black_box(&record), Some(3584))));
    }
    group.finish();

    let new = request([("NEW".to_owned(), "x".to_owned())]);
    let (record, other) = (record_of(&requests[0].1), record_of(&new));
    let (text, _) = label(&record, Some(3584));
    c.bench_function("Label::parse, typical", |b| b.iter(|| Label::parse(black_box(&text))));
    c.bench_function("differences, typical", |b| b.iter(|| differences(black_box(&record), &other)));
}

criterion_group!(benches, recording);
criterion_main!(benches);
