//! containerd crashes and comes back under crisp.

use std::time::{Duration, Instant};

use k8s_cri::v1::{ExecSyncRequest, ListImagesRequest, VersionRequest};
use tonic::Code;

use crate::lab::client::{Cri, container_pid};
use crate::lab::containerd::Containerd;
use crate::lab::crisp::Crisp;
use crate::lab::{parts, process};
use crate::suite;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_at_once_and_then_go_on_over_the_same_connection() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: containerd outage", &reason);
    }
    let mut node = Containerd::of_the_machine();
    let crisp = Crisp::start(&node.endpoint());
    let mut cri = Cri::new(&crisp.socket);
    let container = suite::start_container(&mut cri, &node.registry, "outage").await;
    let pid = container_pid(&node.socket, &container).expect("the container's process");
    cri.images.list_images(ListImagesRequest::default()).await.expect("list images");
    assert_eq!(cri.dials(), 2, "one connection per service");

    // A call that is on its way when the runtime goes.
    let mut caller = cri.runtime.clone();
    let request = ExecSyncRequest {
        container_id: container.clone(),
        cmd: vec!["sh".into(), "-c".into(), "touch /tmp/started; sleep 600".into()],
        timeout: 600,
    };
    let waiting = tokio::spawn(async move { caller.exec_sync(request).await });
    suite::until_succeeds(&mut cri, &container, &["test", "-e", "/tmp/started"]).await;

    node.kill();
    let began = Instant::now();
    let lost = waiting.await.expect("the call does not panic").expect_err("the call is lost");
    assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "the waiting call hung for {:?}", began.elapsed());
    for _ in 0..20 {
        let began = Instant::now();
        let refused =
            cri.runtime.version(VersionRequest::default()).await.expect_err("no runtime, no answer");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains("containerd.sock"), "the message names the endpoint: {refused:?}");
        assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
        let refused =
            cri.images.list_images(ListImagesRequest::default()).await.expect_err("no images either");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }
    assert!(process::is_alive(pid), "the container goes on without containerd");

    node.restart();
    cri.runtime.version(VersionRequest::default()).await.expect("the first call after the outage");
    cri.images.list_images(ListImagesRequest::default()).await.expect("the image service too");
    assert_eq!(container_pid(&crisp.socket, &container), Some(pid), "the same container still runs");
    assert_eq!(cri.dials(), 2, "the client kept its connections");
}
