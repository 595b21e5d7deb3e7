//! The pod, and a web server in it that is reached through a forwarded port.

use std::collections::HashMap;

use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, DnsConfig, LinuxPodSandboxConfig,
    ListPodSandboxRequest, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata, PodSandboxStatusRequest,
    PortForwardRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopPodSandboxRequest,
};

use super::{Run, images};
use crate::lab::images::WEB;
use crate::streams;

/// A pod's configuration, with something in every kind of field.
pub(super) fn config(name: &str, log_directory: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("{name}-uid"),
            namespace: "node-test".to_owned(),
            attempt: 1,
        }),
        hostname: "a-host".to_owned(),
        log_directory: log_directory.to_owned(),
        dns_config: Some(DnsConfig {
            servers: vec!["10.0.0.10".to_owned()],
            searches: vec!["svc.cluster.local".to_owned()],
            options: vec!["ndots:5".to_owned()],
        }),
        labels: HashMap::from([("run".to_owned(), name.to_owned())]),
        annotations: HashMap::from([("note".to_owned(), "ünïcode, and a \"quote\"".to_owned())]),
        linux: Some(LinuxPodSandboxConfig::default()),
        ..PodSandboxConfig::default()
    }
}

pub(super) async fn start(run: &mut Run) -> String {
    let config = config(&run.name, &run.logs.path().display().to_string());
    let Run { cri, transcript, .. } = run;
    let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    let pod =
        transcript.ok("RunPodSandbox", cri.runtime.run_pod_sandbox(request.clone()).await).pod_sandbox_id;
    transcript.mask("pod", &pod);
    transcript.err("RunPodSandbox, name taken", cri.runtime.run_pod_sandbox(request).await);
    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: false };
    let status = transcript.ok("PodSandboxStatus", cri.runtime.pod_sandbox_status(request).await);
    transcript.mask("ip", &status.status.expect("a status").network.expect("a network").ip);
    let filter = PodSandboxFilter {
        label_selector: HashMap::from([("run".to_owned(), run.name.clone())]),
        ..PodSandboxFilter::default()
    };
    let request = ListPodSandboxRequest { filter: Some(filter) };
    let list = transcript.ok("ListPodSandbox", cri.runtime.list_pod_sandbox(request).await);
    assert_eq!(list.items.len(), 1);
    pod
}

pub(super) async fn port_forward(run: &mut Run, pod: &str) {
    let image = images::spec(run, WEB);
    let Run { cri, transcript, .. } = run;
    let request = CreateContainerRequest {
        pod_sandbox_id: pod.to_owned(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata { name: "web".to_owned(), attempt: 0 }),
            image: Some(image),
            log_path: "web.log".to_owned(),
            ..ContainerConfig::default()
        }),
        sandbox_config: Some(config(&run.name, &run.logs.path().display().to_string())),
    };
    let container =
        transcript.ok("CreateContainer, web", cri.runtime.create_container(request).await).container_id;
    transcript.mask("web", &container);
    let request = StartContainerRequest { container_id: container.clone() };
    transcript.ok("StartContainer, web", cri.runtime.start_container(request).await);
    super::until_succeeds(cri, &container, &["wget", "-q", "-O", "-", "http://127.0.0.1/"]).await;

    let request = PortForwardRequest { pod_sandbox_id: pod.to_owned(), port: vec![80] };
    let url = cri.runtime.port_forward(request).await.expect("PortForward").into_inner().url;
    transcript.note("PortForward", streams::http_get_through(&url, 80).await);
}

pub(super) async fn remove(run: &mut Run, pod: &str) {
    let Run { cri, transcript, .. } = run;
    let stop = StopPodSandboxRequest { pod_sandbox_id: pod.to_owned() };
    transcript.ok("StopPodSandbox", cri.runtime.stop_pod_sandbox(stop.clone()).await);
    transcript.ok("StopPodSandbox again", cri.runtime.stop_pod_sandbox(stop).await);
    let status = PodSandboxStatusRequest { pod_sandbox_id: pod.to_owned(), verbose: false };
    transcript.ok("PodSandboxStatus, stopped", cri.runtime.pod_sandbox_status(status.clone()).await);
    let remove = RemovePodSandboxRequest { pod_sandbox_id: pod.to_owned() };
    transcript.ok("RemovePodSandbox", cri.runtime.remove_pod_sandbox(remove.clone()).await);
    transcript.ok("RemovePodSandbox again", cri.runtime.remove_pod_sandbox(remove).await);
    transcript.err("PodSandboxStatus, removed", cri.runtime.pod_sandbox_status(status).await);
}
