//! Requests as kubelets send them.

use std::collections::HashMap;

use bytes::Bytes;
use k8s_cri::v1::{
    Capability, CdiDevice, ContainerConfig, ContainerMetadata, CreateContainerRequest, Device, HugepageLimit,
    ImageSpec, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, Mount, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    SeLinuxOption, SecurityProfile,
};
use prost::Message as _;

pub(in crate::container) const UID: &str = "0b1f6a52-6d53-4d0e-9a35-000000000001";
pub(in crate::container) const SECRET: &str = "hunter2-is-the-password";

pub(in crate::container) fn variable(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_owned() }
}

/// With everything that a kubelet may say.
pub(in crate::container) fn request() -> CreateContainerRequest {
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let pairs = |all: &[(&str, &str)]| -> HashMap<String, String> {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let in_pod = |path: &str| format!("/var/lib/kubelet/pods/{UID}/{path}");
    let mount = |container_path: &str, host_path: String| Mount {
        container_path: container_path.to_owned(),
        host_path,
        ..Default::default()
    };
    let security_context = LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: texts(&["NET_ADMIN", "CHOWN"]),
            drop_capabilities: texts(&["ALL"]),
            ..Default::default()
        }),
        namespace_options: Some(NamespaceOption {
            pid: 1,
            target_id: "c0ffee".to_owned(),
            ..Default::default()
        }),
        selinux_options: Some(SeLinuxOption { level: "s0:c1,c2".to_owned(), ..Default::default() }),
        run_as_user: Some(Int64Value { value: 0 }),
        run_as_group: Some(Int64Value { value: 1000 }),
        readonly_rootfs: true,
        supplemental_groups: vec![2000, 1000],
        no_new_privs: true,
        masked_paths: texts(&["/proc/kcore", "/proc/acpi"]),
        readonly_paths: texts(&["/proc/bus"]),
        seccomp: Some(SecurityProfile { profile_type: 0, localhost_ref: String::new() }),
        ..Default::default()
    };
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 28,
        oom_score_adj: -997,
        cpuset_cpus: "0-3".to_owned(),
        hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 1 << 21 }],
        unified: pairs(&[("memory.oom.group", "1")]),
        ..Default::default()
    };
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "web".to_owned(), attempt: 0 }),
        image: Some(ImageSpec {
            image: format!("sha256:{}", "5f".repeat(32)),
            user_specified_image: "registry.example.com/team/web:1.0".to_owned(),
            ..Default::default()
        }),
        command: texts(&["/bin/web"]),
        args: texts(&["--listen=:80", &format!("--password={SECRET}")]),
        working_dir: "/srv".to_owned(),
        envs: vec![variable("B", SECRET), variable("A", "1")],
        mounts: vec![
            Mount { readonly: true, ..mount("/etc/tls", in_pod("volumes/kubernetes.io~secret/tls")) },
            Mount { propagation: 2, ..mount("/data", "/mnt/data".to_owned()) },
            mount(
                "/var/run/secrets/kubernetes.io/serviceaccount",
                in_pod("volumes/kubernetes.io~projected/kube-api-access-x7abc"),
            ),
            mount("/etc/hosts", in_pod("etc-hosts")),
            mount("/dev/termination-log", in_pod("containers/web/0a1b2c3d")),
        ],
        devices: vec![Device {
            container_path: "/dev/fuse".to_owned(),
            host_path: "/dev/fuse".to_owned(),
            permissions: "mrw".to_owned(),
        }],
        labels: pairs(&[("io.kubernetes.container.name", "web"), ("io.kubernetes.pod.uid", UID)]),
        annotations: pairs(&[
            ("io.kubernetes.container.hash", "8e45cbd0"),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.ports", r#"[{"name":"http","containerPort":80,"protocol":"TCP"}]"#),
            ("io.kubernetes.container.preStopHandler", r#"{"exec":{"command":["/bin/stop"]}}"#),
            ("cdi.k8s.io/claim", "vendor.com/gpu=1,vendor.com/gpu=0"),
        ]),
        log_path: "web/0.log".to_owned(),
        tty: true,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources),
            security_context: Some(security_context),
        }),
        cdi_devices: vec![CdiDevice { name: "vendor.com/gpu=0".to_owned() }],
        ..Default::default()
    };
    let metadata = PodSandboxMetadata { uid: UID.to_owned(), name: "web-0".to_owned(), ..Default::default() };
    CreateContainerRequest {
        pod_sandbox_id: "5a7d".to_owned(),
        config: Some(config),
        sandbox_config: Some(PodSandboxConfig { metadata: Some(metadata), ..Default::default() }),
    }
}

pub(in crate::container) fn bytes(request: &CreateContainerRequest) -> Bytes {
    request.encode_to_vec().into()
}

/// Adds fields that the generated types do not know, below `path`. Decoders merge what comes twice.
pub(in crate::container) fn with(message: &Bytes, path: &[u8], field: &[u8]) -> Bytes {
    let mut inner = field.to_vec();
    for number in path.iter().rev() {
        let length = u8::try_from(inner.len()).unwrap();
        assert!(length < 128 && *number < 16);
        inner = [&[number << 3 | 2, length], inner.as_slice()].concat();
    }
    [message.as_ref(), &inner].concat().into()
}
