//! The suite: one life of a pod and its images, written once against an endpoint.

mod containers;
mod errors;
mod images;
mod pods;

use std::path::Path;
use std::time::Duration;

use k8s_cri::v1::{CreateContainerRequest, ExecSyncRequest, ImageSpec, PullImageRequest};

use crate::lab::client::Cri;
use crate::lab::images::BUSYBOX;
use crate::lab::registry::Registry;
use crate::lab::scratch::Scratch;
use crate::transcript::Transcript;

/// Everything a group of steps works with.
struct Run {
    cri: Cri,
    registry: String,
    /// Part of every name, because the runtime reserves a pod's name until the pod is gone.
    name: String,
    logs: Scratch,
    transcript: Transcript,
}

/// Runs all steps and leaves the runtime as it was. The lines of two runs compare equal.
pub(crate) async fn run(socket: &Path, registry: &Registry, name: &str) -> Vec<String> {
    let mut run = Run {
        cri: Cri::new(socket),
        registry: registry.address.clone(),
        name: format!("parity-{name}"),
        logs: Scratch::new(),
        transcript: Transcript::default(),
    };
    let names = [("run", run.name.clone()), ("logs", run.logs.path().display().to_string())];
    for (mask, text) in names {
        run.transcript.mask(mask, &text);
    }
    images::pull_pause(&mut run).await;
    images::about_the_runtime(&mut run).await;
    images::pull_and_look(&mut run).await;
    let pod = pods::start(&mut run).await;
    let container = containers::start(&mut run, &pod).await;
    containers::exec_attach_and_logs(&mut run, &container).await;
    containers::stats_and_update(&mut run, &pod, &container).await;
    pods::port_forward(&mut run, &pod).await;
    errors::of_unknown_things(&mut run, &pod).await;
    containers::remove(&mut run, &container).await;
    pods::remove(&mut run, &pod).await;
    images::remove(&mut run).await;
    run.transcript.lines()
}

/// Pulls an image and starts one container in a pod of its own, for tests that only need something that runs.
pub(crate) async fn start_container(cri: &mut Cri, registry: &Registry, name: &str) -> String {
    let request = run_pod(cri, registry, name).await;
    let container = cri.runtime.create_container(request).await.expect("create").into_inner().container_id;
    let request = k8s_cri::v1::StartContainerRequest { container_id: container.clone() };
    cri.runtime.start_container(request).await.expect("start");
    container
}

/// Pulls an image and runs a pod. Gives how to make a container in it.
pub(crate) async fn run_pod(cri: &mut Cri, registry: &Registry, name: &str) -> CreateContainerRequest {
    let image = ImageSpec { image: registry.image(BUSYBOX), ..ImageSpec::default() };
    let pull = PullImageRequest { image: Some(image.clone()), ..PullImageRequest::default() };
    cri.images.pull_image(pull).await.expect("pull");
    let config = pods::config(name, "");
    let request = k8s_cri::v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let pod = cri.runtime.run_pod_sandbox(request).await.expect("run the pod").into_inner().pod_sandbox_id;
    containers::create_request(&pod, config, &image.image)
}

/// Runs a command in a container until it succeeds, for a while.
pub(crate) async fn until_succeeds(cri: &mut Cri, container: &str, command: &[&str]) {
    let attempts = async {
        loop {
            let request = ExecSyncRequest {
                container_id: container.to_owned(),
                cmd: command.iter().map(ToString::to_string).collect(),
                timeout: 5,
            };
            if cri.runtime.exec_sync(request).await.expect("exec").into_inner().exit_code == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), attempts).await.expect("the command succeeds in time");
}
