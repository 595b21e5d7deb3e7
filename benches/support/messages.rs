//! The calls that are measured: valid CRI messages, framed once.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use crisp::container::record::LABEL;
use crisp::wire::Patch;
use k8s_cri::v1;
use prost::Message;

/// Length of gRPC's prefix before a message.
pub(crate) const PREFIX: usize = 5;

/// One method that is measured.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The method's name.
    pub(crate) name: &'static str,
    /// The HTTP/2 path.
    pub(crate) path: &'static str,
    /// What crisp does with it.
    pub(crate) way: &'static str,
    /// Which promise it is about.
    pub(crate) kind: Kind,
    /// The framed request.
    pub(crate) request: Bytes,
    /// The framed reply.
    pub(crate) reply: Bytes,
    /// The framed reply as crisp gives it, if that is another one.
    pub(crate) changed: Option<Bytes>,
}

/// What a method stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Small replies.
    Small,
    /// Large ones.
    Large,
    /// The status of a container with a record, and the same bytes under a method that crisp does not look at.
    Status,
}

impl Call {
    /// Whether a reply of so many bytes is one that may come.
    pub(crate) fn expects(&self, length: usize) -> bool {
        length == self.reply.len() || self.changed.as_ref().is_some_and(|changed| changed.len() == length)
    }
}

/// The methods: two that pass through as frames, three whose messages crisp reads. The encoding of maps has no order
/// of its own, so the bytes differ from call to call of this function, while their number does not.
pub(crate) fn calls() -> [Call; 5] {
    let status = status();
    let stripped = Patch::new().remove_entry([1, 12], LABEL).apply(&status).unwrap_or_default();
    [
        Call {
            name: "Version",
            path: "/runtime.v1.RuntimeService/Version",
            way: "passed through",
            kind: Kind::Small,
            request: framed(&v1::VersionRequest { version: "0.1.0".into() }),
            reply: framed(&v1::VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "containerd".into(),
                runtime_version: "1.6.20~ds1".into(),
                runtime_api_version: "v1".into(),
            }),
            changed: None,
        },
        Call {
            name: "ImageStatus",
            path: "/runtime.v1.ImageService/ImageStatus",
            way: "observed",
            kind: Kind::Small,
            request: framed(&v1::ImageStatusRequest { image: Some(image_spec()), verbose: false }),
            reply: framed(&v1::ImageStatusResponse { image: Some(image()), info: HashMap::new() }),
            changed: None,
        },
        Call {
            name: "ListContainers",
            path: "/runtime.v1.RuntimeService/ListContainers",
            way: "searched for records",
            kind: Kind::Large,
            request: framed(&v1::ListContainersRequest { filter: None }),
            reply: framed(&v1::ListContainersResponse { containers: (0..200).map(container).collect() }),
            changed: None,
        },
        Call {
            name: "Status",
            path: "/runtime.v1.RuntimeService/Status",
            way: "passed through (the bytes of a ContainerStatus)",
            kind: Kind::Status,
            request: framed(&v1::ContainerStatusRequest { container_id: digest(1), verbose: false }),
            reply: prefixed(&status),
            changed: None,
        },
        Call {
            name: "ContainerStatus",
            path: "/runtime.v1.RuntimeService/ContainerStatus",
            way: "relieved of its record",
            kind: Kind::Status,
            request: framed(&v1::ContainerStatusRequest { container_id: digest(1), verbose: false }),
            reply: prefixed(&status),
            changed: Some(prefixed(&stripped)),
        },
    ]
}

/// The status of a container with a record at the limit.
fn status() -> Bytes {
    let container = container(1);
    let mut labels = container.labels;
    labels.insert(LABEL.to_owned(), "r".repeat(3584));
    let status = v1::ContainerStatus {
        id: container.id,
        metadata: container.metadata,
        state: container.state,
        created_at: container.created_at,
        image: container.image,
        image_ref: container.image_ref,
        labels,
        annotations: container.annotations,
        log_path: "/var/log/pods/payments-production/worker/2.log".into(),
        ..Default::default()
    };
    v1::ContainerStatusResponse { status: Some(status), info: HashMap::new() }.encode_to_vec().into()
}

fn framed(message: &impl Message) -> Bytes {
    prefixed(&message.encode_to_vec())
}

fn prefixed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

fn image_spec() -> v1::ImageSpec {
    v1::ImageSpec { image: "registry.k8s.io/pause:3.10".into(), ..Default::default() }
}

fn image() -> v1::Image {
    v1::Image {
        id: format!("sha256:{}", digest(1)),
        repo_tags: vec!["registry.k8s.io/pause:3.10".into()],
        repo_digests: vec![format!("registry.k8s.io/pause@sha256:{}", digest(2))],
        size: 318_731,
        uid: Some(v1::Int64Value { value: 65_535 }),
        pinned: true,
        ..Default::default()
    }
}

/// A container as a kubelet makes it, with the labels and annotations that it sets.
fn container(number: u64) -> v1::Container {
    let text = |pairs: &[(&str, String)]| -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    };
    let pod = format!("payments-worker-7d9c5b8f6-{number:05}");
    let ports: Vec<String> = ["http", "metrics", "health", "grpc", "admin"]
        .iter()
        .zip(8080..)
        .map(|(name, port)| {
            format!(r#"{{"name":"{name}","hostPort":0,"containerPort":{port},"protocol":"TCP"}}"#)
        })
        .collect();
    v1::Container {
        id: digest(3 * number),
        pod_sandbox_id: digest(3 * number + 1),
        metadata: Some(v1::ContainerMetadata { name: "worker".into(), attempt: 2 }),
        image: Some(v1::ImageSpec {
            image: format!("sha256:{}", digest(7)),
            user_specified_image: "registry.example.com/payments/worker:2026-08-11-3f9c2ab".into(),
            ..Default::default()
        }),
        image_ref: format!("registry.example.com/payments/worker@sha256:{}", digest(8)),
        image_id: format!("sha256:{}", digest(7)),
        state: v1::ContainerState::ContainerRunning.into(),
        created_at: 1_760_000_000_000_000_000,
        labels: text(&[
            ("io.kubernetes.container.name", "worker".into()),
            ("io.kubernetes.pod.name", pod.clone()),
            ("io.kubernetes.pod.namespace", "payments-production".into()),
            ("io.kubernetes.pod.uid", format!("6f1d5c1e-2f0b-4a53-9c57-{number:012}")),
        ]),
        annotations: text(&[
            ("io.kubernetes.container.hash", format!("{:08x}", number * 0x9e37_79b9)),
            ("io.kubernetes.container.ports", format!("[{}]", ports.join(","))),
            ("io.kubernetes.container.restartCount", "2".into()),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log".into()),
            ("io.kubernetes.container.terminationMessagePolicy", "File".into()),
            (
                "io.kubernetes.container.preStopHandler",
                r#"{"exec":{"command":["/bin/sh","-c","/usr/bin/worker drain --queue settlement --wait 25s"]}}"#.into(),
            ),
            (
                "io.kubernetes.container.postStartHandler",
                format!(r#"{{"exec":{{"command":["/usr/bin/worker","announce","{pod}"]}}}}"#),
            ),
            ("io.kubernetes.pod.terminationGracePeriod", "30".into()),
        ]),
    }
}

/// 64 hexadecimal digits that differ by number.
fn digest(number: u64) -> String {
    (1..=4u64).map(|part| format!("{:016x}", (number + part).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}
