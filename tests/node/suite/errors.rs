//! Calls that name things which do not exist: code, message and details have to come through as they are.

use k8s_cri::v1::{
    AttachRequest, CheckpointContainerRequest, ContainerStatsRequest, ContainerStatusRequest, ExecRequest,
    ExecSyncRequest, ImageSpec, ImageStatusRequest, ListMetricDescriptorsRequest,
    ListPodSandboxMetricsRequest, PodSandboxStatusRequest, PortForwardRequest, RemoveContainerRequest,
    RemovePodSandboxRequest, ReopenContainerLogRequest, RunPodSandboxRequest, StartContainerRequest,
    StopContainerRequest, StopPodSandboxRequest, UpdateContainerResourcesRequest,
};

use super::{Run, containers, pods};

pub(super) async fn of_unknown_things(run: &mut Run, pod: &str) {
    let Run { cri, transcript: t, .. } = run;
    let c = &mut cri.runtime;
    let container_id = "no-such-container".to_owned();
    let pod_sandbox_id = "no-such-pod".to_owned();

    let request = ContainerStatusRequest { container_id: container_id.clone(), verbose: false };
    t.err("ContainerStatus of nothing", c.container_status(request).await);
    let request = StartContainerRequest { container_id: container_id.clone() };
    t.err("StartContainer of nothing", c.start_container(request).await);
    let request = StopContainerRequest { container_id: container_id.clone(), timeout: 0 };
    t.any("StopContainer of nothing", c.stop_container(request).await);
    let request = RemoveContainerRequest { container_id: container_id.clone() };
    t.any("RemoveContainer of nothing", c.remove_container(request).await);
    let request = ContainerStatsRequest { container_id: container_id.clone() };
    t.err("ContainerStats of nothing", c.container_stats(request).await);
    let request = ReopenContainerLogRequest { container_id: container_id.clone() };
    t.err("ReopenContainerLog of nothing", c.reopen_container_log(request).await);
    let request =
        UpdateContainerResourcesRequest { container_id: container_id.clone(), ..Default::default() };
    t.err("UpdateContainerResources of nothing", c.update_container_resources(request).await);
    let request =
        ExecSyncRequest { container_id: container_id.clone(), cmd: vec!["true".to_owned()], timeout: 1 };
    t.err("ExecSync in nothing", c.exec_sync(request).await);
    let request = ExecRequest { container_id: container_id.clone(), stdout: true, ..ExecRequest::default() };
    t.err("Exec in nothing", c.exec(request).await);
    let request =
        AttachRequest { container_id: container_id.clone(), stdout: true, ..AttachRequest::default() };
    t.err("Attach to nothing", c.attach(request).await);
    let request = CheckpointContainerRequest { container_id, ..CheckpointContainerRequest::default() };
    t.err("CheckpointContainer of nothing", c.checkpoint_container(request).await);

    let request = PodSandboxStatusRequest { pod_sandbox_id: pod_sandbox_id.clone(), verbose: false };
    t.err("PodSandboxStatus of nothing", c.pod_sandbox_status(request).await);
    let request = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
    t.any("StopPodSandbox of nothing", c.stop_pod_sandbox(request).await);
    let request = RemovePodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
    t.any("RemovePodSandbox of nothing", c.remove_pod_sandbox(request).await);
    let request = PortForwardRequest { pod_sandbox_id, port: vec![80] };
    t.err("PortForward of nothing", c.port_forward(request).await);

    t.any("ListMetricDescriptors", c.list_metric_descriptors(ListMetricDescriptorsRequest::default()).await);
    t.any("ListPodSandboxMetrics", c.list_pod_sandbox_metrics(ListPodSandboxMetricsRequest::default()).await);
    t.err("ImageStatus without an image", {
        let request = ImageStatusRequest { image: Some(ImageSpec::default()), verbose: false };
        cri.images.image_status(request).await
    });
    invalid_creations(run, pod).await;
}

async fn invalid_creations(run: &mut Run, pod: &str) {
    let sandbox = pods::config(&run.name, &run.logs.path().display().to_string());
    let Run { cri, transcript: t, .. } = run;
    let mut request = containers::create_request(pod, sandbox.clone(), "no-such-image");
    if let Some(metadata) = request.config.as_mut().and_then(|config| config.metadata.as_mut()) {
        metadata.name = "without-image".to_owned();
    }
    t.err("CreateContainer without its image", cri.runtime.create_container(request).await);
    let request = containers::create_request("no-such-pod", sandbox.clone(), "no-such-image");
    t.err("CreateContainer in no pod", cri.runtime.create_container(request).await);
    let mut sandbox = sandbox;
    if let Some(metadata) = sandbox.metadata.as_mut() {
        metadata.name.push_str("-handler");
    }
    let request =
        RunPodSandboxRequest { config: Some(sandbox), runtime_handler: "no-such-handler".to_owned() };
    t.err("RunPodSandbox with an unknown handler", cri.runtime.run_pod_sandbox(request).await);
}
