//! One container: from creation over exec, attach, logs and statistics to its removal.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use k8s_cri::v1::{
    AttachRequest, ContainerConfig, ContainerFilter, ContainerMetadata, ContainerStatsRequest,
    ContainerStatusRequest, CreateContainerRequest, ExecRequest, ExecSyncRequest, ImageSpec, KeyValue,
    LinuxContainerConfig, LinuxContainerResources, ListContainerStatsRequest, ListContainersRequest,
    ListPodSandboxStatsRequest, PodSandboxConfig, PodSandboxStatsRequest, RemoveContainerRequest,
    ReopenContainerLogRequest, StartContainerRequest, StopContainerRequest, UpdateContainerResourcesRequest,
};

use super::{Run, images, pods};
use crate::lab::images::BUSYBOX;
use crate::lab::wait;
use crate::streams;

/// A container that repeats each line of its input, with something in every kind of field.
pub(super) fn create_request(pod: &str, sandbox: PodSandboxConfig, image: &str) -> CreateContainerRequest {
    let script = "trap 'exit 7' TERM; echo to-stderr >&2; while true; do read -r line && echo \"got $line\" || sleep 0.1; done";
    CreateContainerRequest {
        pod_sandbox_id: pod.to_owned(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 2 }),
            image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
            command: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
            working_dir: "/tmp".to_owned(),
            envs: vec![KeyValue { key: "GREETING".to_owned(), value: "grüezi".to_owned() }],
            labels: HashMap::from([("app".to_owned(), "main".to_owned())]),
            annotations: HashMap::from([("note".to_owned(), "kept".to_owned())]),
            log_path: "main.log".to_owned(),
            stdin: true,
            linux: Some(LinuxContainerConfig::default()),
            ..ContainerConfig::default()
        }),
        sandbox_config: Some(sandbox),
    }
}

pub(super) async fn start(run: &mut Run, pod: &str) -> String {
    let image = images::spec(run, BUSYBOX).image;
    let sandbox = pods::config(&run.name, &run.logs.path().display().to_string());
    let Run { cri, transcript, .. } = run;
    let request = create_request(pod, sandbox, &image);
    let id =
        transcript.ok("CreateContainer", cri.runtime.create_container(request.clone()).await).container_id;
    transcript.mask("container", &id);
    let taken = cri.runtime.create_container(request).await.expect_err("the name is taken");
    // The message holds an ID that was drawn for the refused container and is known nowhere else.
    transcript.note("CreateContainer, name taken", format!("{:?}", taken.code()));
    let status = ContainerStatusRequest { container_id: id.clone(), verbose: false };
    transcript.ok("ContainerStatus, created", cri.runtime.container_status(status.clone()).await);
    let request = StartContainerRequest { container_id: id.clone() };
    transcript.ok("StartContainer", cri.runtime.start_container(request.clone()).await);
    transcript.err("StartContainer again", cri.runtime.start_container(request).await);
    transcript.ok("ContainerStatus, running", cri.runtime.container_status(status).await);
    let filter = ContainerFilter { pod_sandbox_id: pod.to_owned(), ..ContainerFilter::default() };
    let request = ListContainersRequest { filter: Some(filter) };
    let list = transcript.ok("ListContainers", cri.runtime.list_containers(request).await);
    assert_eq!(list.containers.len(), 1);
    id
}

pub(super) async fn exec_attach_and_logs(run: &mut Run, id: &str) {
    let Run { cri, transcript, logs, .. } = run;
    let sh = |script: &str, timeout| ExecSyncRequest {
        container_id: id.to_owned(),
        cmd: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        timeout,
    };
    let request = sh("echo \"$GREETING from $(pwd) on $(hostname)\"; echo oops >&2; exit 5", 10);
    transcript.ok("ExecSync", cri.runtime.exec_sync(request).await);
    let large = sh("head -c 1048576 /dev/zero | tr '\\0' x", 10);
    let large = cri.runtime.exec_sync(large).await.expect("ExecSync").into_inner().stdout;
    transcript.note("ExecSync, 1 MiB", (large.len(), large.iter().all(|byte| *byte == b'x')));
    transcript.err("ExecSync, too slow", cri.runtime.exec_sync(sh("sleep 30", 1)).await);

    let cmd = ["sh", "-c", "read -r line; echo \"heard $line\"; echo oops >&2; exit 3"];
    let request = ExecRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(ToString::to_string).collect(),
        tty: false,
        stdin: true,
        stdout: true,
        stderr: true,
    };
    let url = cri.runtime.exec(request).await.expect("Exec").into_inner().url;
    transcript.note("Exec", streams::exec(&url, "a word\n").await);

    let request =
        AttachRequest { container_id: id.to_owned(), stdin: true, tty: false, stdout: true, stderr: false };
    let url = cri.runtime.attach(request).await.expect("Attach").into_inner().url;
    transcript.note("Attach", streams::attach(&url, "another word\n", "got another word\n").await);

    let log = logs.join("main.log");
    let written = wait::until("the log is written", Duration::from_secs(10), || {
        fs::read_to_string(&log).ok().filter(|log| log.contains("got another word"))
    });
    // Each line begins with its time. The two outputs are not ordered against each other.
    let mut lines: Vec<_> =
        written.lines().filter_map(|line| line.split_once(' ')).map(|(_, rest)| rest).collect();
    lines.sort_unstable();
    transcript.note("the log on disk", lines);
    fs::rename(&log, logs.join("main.log.1")).expect("rotate the log");
    let request = ReopenContainerLogRequest { container_id: id.to_owned() };
    transcript.ok("ReopenContainerLog", cri.runtime.reopen_container_log(request).await);
    transcript.note("the log is reopened", log.exists());
}

pub(super) async fn stats_and_update(run: &mut Run, pod: &str, id: &str) {
    let Run { cri, transcript, .. } = run;
    let request = ContainerStatsRequest { container_id: id.to_owned() };
    transcript.ok("ContainerStats", cri.runtime.container_stats(request).await);
    let request = ListContainerStatsRequest { filter: None };
    let stats = cri.runtime.list_container_stats(request).await.expect("ListContainerStats").into_inner();
    transcript.note("ListContainerStats", stats.stats.len());
    let request = PodSandboxStatsRequest { pod_sandbox_id: pod.to_owned() };
    let stats = cri.runtime.pod_sandbox_stats(request).await.map(|_| tonic::Response::new(()));
    transcript.any("PodSandboxStats", stats);
    let request = ListPodSandboxStatsRequest { filter: None };
    let stats = cri.runtime.list_pod_sandbox_stats(request).await.map(|_| tonic::Response::new(()));
    transcript.any("ListPodSandboxStats", stats);
    events(run, id).await;

    let Run { cri, transcript, .. } = run;
    let resources =
        LinuxContainerResources { cpu_shares: 512, memory_limit_in_bytes: 64 << 20, ..Default::default() };
    let request = UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(resources),
        ..UpdateContainerResourcesRequest::default()
    };
    transcript.ok("UpdateContainerResources", cri.runtime.update_container_resources(request).await);
    let status = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    transcript.ok("ContainerStatus, updated", cri.runtime.container_status(status).await);
}

/// Opens the stream of events. A runtime that has none says so with its first answer.
async fn events(run: &mut Run, id: &str) {
    let Run { cri, transcript, .. } = run;
    match cri.runtime.get_container_events(k8s_cri::v1::GetEventsRequest::default()).await {
        Err(status) => transcript.error("GetContainerEvents", &status),
        Ok(stream) => {
            let mut stream = stream.into_inner();
            // Something to report: the stream has to carry it while it stays open.
            let request =
                ExecSyncRequest { container_id: id.to_owned(), cmd: vec!["true".to_owned()], timeout: 5 };
            cri.runtime.exec_sync(request).await.expect("exec");
            let first = tokio::time::timeout(Duration::from_millis(500), stream.message()).await;
            match first {
                Ok(Err(status)) => transcript.error("GetContainerEvents", &status),
                Ok(Ok(event)) => transcript.note("GetContainerEvents", event),
                Err(_) => transcript.note("GetContainerEvents", "open, and silent"),
            }
        }
    }
}

pub(super) async fn remove(run: &mut Run, id: &str) {
    let Run { cri, transcript, .. } = run;
    let remove = RemoveContainerRequest { container_id: id.to_owned() };
    let stop = StopContainerRequest { container_id: id.to_owned(), timeout: 10 };
    transcript.ok("StopContainer", cri.runtime.stop_container(stop.clone()).await);
    transcript.ok("StopContainer again", cri.runtime.stop_container(stop).await);
    let status = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    transcript.ok("ContainerStatus, exited", cri.runtime.container_status(status.clone()).await);
    transcript.ok("RemoveContainer", cri.runtime.remove_container(remove.clone()).await);
    transcript.ok("RemoveContainer again", cri.runtime.remove_container(remove).await);
    transcript.err("ContainerStatus, removed", cri.runtime.container_status(status).await);
}
