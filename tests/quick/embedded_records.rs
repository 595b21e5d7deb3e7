//! The embedded runtime's sandboxes and containers: records that move as a runtime's would.

use std::collections::HashMap;

use k8s_cri::v1::*;
use tonic::Code;

use crate::embedded::{Node, spec};
use crate::registry::{ImageBuilder, Registry};

fn sandbox_config(name: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        labels: labels("pod", name),
        log_directory: "/var/log/pods/x/".into(),
        ..Default::default()
    }
}

fn labels(key: &str, value: &str) -> HashMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

fn container_config(name: &str, image: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(ImageSpec { user_specified_image: "as-written".into(), ..spec(image) }),
        labels: labels("container", name),
        annotations: labels("io.kubernetes.container.hash", "abc"),
        mounts: vec![Mount {
            container_path: "/data".into(),
            host_path: "/srv".into(),
            ..Default::default()
        }],
        log_path: format!("{name}/0.log"),
        ..Default::default()
    }
}

/// A node with one image, one ready sandbox, and the ids of both.
async fn node_with_sandbox() -> (Registry, Node, String, String) {
    let (registry, node) = (Registry::start().await, Node::start().await);
    let name = registry.push("app:v1", &ImageBuilder::default().noise(10, 1).build());
    node.pull(&name).await.unwrap();
    let sandbox = run(&node, "web").await.unwrap();
    (registry, node, name, sandbox)
}

async fn run(node: &Node, name: &str) -> Result<String, tonic::Status> {
    let request = RunPodSandboxRequest { config: Some(sandbox_config(name)), runtime_handler: String::new() };
    Ok(node.runtime.clone().run_pod_sandbox(request).await?.into_inner().pod_sandbox_id)
}

async fn create(node: &Node, sandbox: &str, config: ContainerConfig) -> Result<String, tonic::Status> {
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(config),
        sandbox_config: Some(sandbox_config("web")),
    };
    Ok(node.runtime.clone().create_container(request).await?.into_inner().container_id)
}

async fn status(node: &Node, id: &str) -> Result<ContainerStatus, tonic::Status> {
    let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
    Ok(node.runtime.clone().container_status(request).await?.into_inner().status.unwrap())
}

#[tokio::test]
async fn a_container_goes_through_its_states() {
    let (_registry, node, image, sandbox) = node_with_sandbox().await;
    let mut runtime = node.runtime.clone();
    let id = create(&node, &sandbox, container_config("app", &image)).await.unwrap();
    assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));

    let created = status(&node, &id[..10]).await.unwrap();
    let found = node.image(&image).await.unwrap();
    assert_eq!(created.state(), ContainerState::ContainerCreated);
    assert_eq!(created.image.as_ref().unwrap().image, image);
    assert_eq!(created.image.as_ref().unwrap().user_specified_image, "as-written");
    assert_eq!((created.image_ref, created.image_id), (found.repo_digests[0].clone(), found.id.clone()));
    assert_eq!(created.log_path, "/var/log/pods/x/app/0.log");
    assert_eq!(created.annotations, labels("io.kubernetes.container.hash", "abc"));
    assert_eq!(created.mounts[0].container_path, "/data");
    assert!(created.created_at > 0 && created.started_at == 0);

    runtime.start_container(StartContainerRequest { container_id: id.clone() }).await.unwrap();
    let again =
        runtime.start_container(StartContainerRequest { container_id: id.clone() }).await.unwrap_err();
    assert_eq!(again.code(), Code::FailedPrecondition);
    assert_eq!(status(&node, &id).await.unwrap().state(), ContainerState::ContainerRunning);

    let linux = Some(LinuxContainerResources { cpu_shares: 7, ..Default::default() });
    let update = UpdateContainerResourcesRequest { container_id: id.clone(), linux, ..Default::default() };
    runtime.update_container_resources(update).await.unwrap();
    assert_eq!(status(&node, &id).await.unwrap().resources.unwrap().linux.unwrap().cpu_shares, 7);

    for _ in 0..2 {
        runtime.stop_container(StopContainerRequest { container_id: id.clone(), timeout: 5 }).await.unwrap();
        let stopped = status(&node, &id).await.unwrap();
        assert_eq!((stopped.state(), stopped.exit_code), (ContainerState::ContainerExited, 0));
        assert_eq!(stopped.reason, "Completed");
        assert!(stopped.finished_at >= stopped.started_at && stopped.started_at >= stopped.created_at);
    }
    for _ in 0..2 {
        runtime.remove_container(RemoveContainerRequest { container_id: id.clone() }).await.unwrap();
    }
    assert_eq!(status(&node, &id).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_stopped_sandbox_kills_and_a_removed_one_takes_its_containers() {
    let (_registry, node, image, sandbox) = node_with_sandbox().await;
    let mut runtime = node.runtime.clone();
    let id = create(&node, &sandbox, container_config("app", &image)).await.unwrap();
    runtime.start_container(StartContainerRequest { container_id: id.clone() }).await.unwrap();

    runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await.unwrap();
    let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: true };
    let answer = runtime.pod_sandbox_status(request).await.unwrap().into_inner();
    assert_eq!(answer.status.unwrap().state(), PodSandboxState::SandboxNotready);
    assert_eq!(answer.containers_statuses[0].exit_code, 137);
    assert!(answer.info["info"].contains("uid-web"));
    let late = create(&node, &sandbox, container_config("late", &image)).await.unwrap_err();
    assert!(late.message().contains("is not running"), "{late}");

    runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await.unwrap();
    assert_eq!(status(&node, &id).await.unwrap_err().code(), Code::NotFound);
    let listed = runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await.unwrap();
    assert!(listed.into_inner().items.is_empty());
}

#[tokio::test]
async fn what_cannot_be_created_is_refused_as_containerd_refuses_it() {
    let (_registry, node, image, sandbox) = node_with_sandbox().await;
    let absent = create(&node, &sandbox, container_config("app", "absent:v1")).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    assert!(absent.message().contains("failed to resolve image"), "{absent}");
    let nowhere = create(&node, "0123", container_config("app", &image)).await.unwrap_err();
    assert_eq!(nowhere.code(), Code::NotFound);
    create(&node, &sandbox, container_config("app", &image)).await.unwrap();
    let twice = create(&node, &sandbox, container_config("app", &image)).await.unwrap_err();
    assert_eq!(twice.code(), Code::AlreadyExists);
    assert_eq!(run(&node, "web").await.unwrap_err().code(), Code::AlreadyExists);
    let nameless = RunPodSandboxRequest::default();
    assert_eq!(
        node.runtime.clone().run_pod_sandbox(nameless).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn lists_are_filtered_by_id_state_and_labels() {
    let (_registry, node, image, web) = node_with_sandbox().await;
    let mut runtime = node.runtime.clone();
    let db = run(&node, "db").await.unwrap();
    let app = create(&node, &web, container_config("app", &image)).await.unwrap();
    let side = create(&node, &db, container_config("side", &image)).await.unwrap();
    runtime.start_container(StartContainerRequest { container_id: side.clone() }).await.unwrap();

    let running = ContainerStateValue { state: ContainerState::ContainerRunning as i32 };
    for (filter, expected) in [
        (ContainerFilter::default(), vec![&app, &side]),
        (ContainerFilter { id: app[..20].into(), ..Default::default() }, vec![&app]),
        (ContainerFilter { pod_sandbox_id: db.clone(), ..Default::default() }, vec![&side]),
        (ContainerFilter { state: Some(running), ..Default::default() }, vec![&side]),
        (ContainerFilter { label_selector: labels("container", "app"), ..Default::default() }, vec![&app]),
        (ContainerFilter { label_selector: labels("container", "x"), ..Default::default() }, vec![]),
    ] {
        let request = ListContainersRequest { filter: Some(filter.clone()) };
        let found = runtime.list_containers(request).await.unwrap().into_inner().containers;
        let mut found: Vec<_> = found.iter().map(|container| &container.id).collect();
        let mut expected = expected;
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{filter:?}");
    }
    let filter = Some(PodSandboxFilter { label_selector: labels("pod", "db"), ..Default::default() });
    let found = runtime.list_pod_sandbox(ListPodSandboxRequest { filter }).await.unwrap().into_inner().items;
    assert_eq!(found.iter().map(|sandbox| &sandbox.id).collect::<Vec<_>>(), [&db]);

    let stats =
        runtime.list_container_stats(ListContainerStatsRequest::default()).await.unwrap().into_inner().stats;
    assert_eq!(stats.len(), 1, "only running containers have statistics");
    assert_eq!(stats[0].cpu.unwrap().usage_core_nano_seconds.unwrap().value, 0);
    let request = PodSandboxStatsRequest { pod_sandbox_id: db };
    let stats = runtime.pod_sandbox_stats(request).await.unwrap().into_inner().stats.unwrap();
    assert_eq!(stats.linux.unwrap().containers[0].attributes.as_ref().unwrap().id, side);
}

#[tokio::test]
async fn events_tell_what_happened_in_order_and_end_with_the_runtime() {
    use ContainerEventType::{
        ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted, ContainerStartedEvent as Started,
        ContainerStoppedEvent as Stopped,
    };
    let (_registry, node, image, sandbox) = node_with_sandbox().await;
    let mut runtime = node.runtime.clone();
    let mut events = runtime.get_container_events(GetEventsRequest {}).await.unwrap().into_inner();

    let id = create(&node, &sandbox, container_config("app", &image)).await.unwrap();
    runtime.start_container(StartContainerRequest { container_id: id.clone() }).await.unwrap();
    runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await.unwrap();

    for (about, kind) in [
        (&id, Created),
        (&id, Started),
        (&id, Stopped),
        (&sandbox, Stopped),
        (&id, Deleted),
        (&sandbox, Deleted),
    ] {
        let event = events.message().await.unwrap().unwrap();
        assert_eq!((&event.container_id, event.container_event_type()), (about, kind));
        assert_eq!(event.pod_sandbox_status.unwrap().id, sandbox);
    }
    node.stop().await;
    assert!(events.message().await.unwrap().is_none());
}

#[tokio::test]
async fn what_needs_a_process_says_that_there_is_none() {
    let node = Node::start().await;
    let mut runtime = node.runtime.clone();
    for refused in [
        runtime.exec_sync(ExecSyncRequest::default()).await.unwrap_err(),
        runtime.exec(ExecRequest::default()).await.unwrap_err(),
        runtime.attach(AttachRequest::default()).await.unwrap_err(),
        runtime.port_forward(PortForwardRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::Unimplemented);
        assert_eq!(refused.message(), "the embedded runtime keeps records only; it runs no processes");
    }
    let status = runtime.status(StatusRequest { verbose: true }).await.unwrap().into_inner();
    let conditions = status.status.unwrap().conditions;
    assert!(conditions.len() == 2 && conditions.iter().all(|condition| condition.status));
    let config = runtime.runtime_config(RuntimeConfigRequest {}).await.unwrap().into_inner();
    assert_eq!(config.linux.unwrap().cgroup_driver(), CgroupDriver::Cgroupfs);
}
