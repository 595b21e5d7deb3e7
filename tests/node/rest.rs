//! A node on which nothing is wrong.

use std::collections::BTreeSet;

use k8s_cri::v1::{CreateContainerRequest, ListContainersRequest, VersionRequest};

use crate::lab::client::Cri;
use crate::lab::containerd::Containerd;
use crate::lab::crisp::Crisp;
use crate::lab::parts;
use crate::suite;

/// Containers of a kubelet's are there when crisp starts, and when it starts again. What runs here tests/layout.sh takes
/// for what runs on every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: rest", &reason);
    }
    let node = Containerd::of_the_machine();
    let mut direct = Cri::new(&node.socket);
    let request = suite::run_pod(&mut direct, &node.registry, "rest").await;
    let mut containers = BTreeSet::new();
    for number in 0..30 {
        let request = as_kubelets_do(request.clone(), &format!("c{number}"));
        let made = direct.runtime.create_container(request).await.expect("create");
        containers.insert(made.into_inner().container_id);
    }

    // As it is deployed: settings in a file, JSON in the log, and somebody who scrapes.
    let settings = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(settings.path(), "log:\n  format: json\n").expect("written");
    let mut crisp =
        Crisp::start_with(&node.endpoint(), &["--config", settings.path().to_str().expect("a plain path")]);
    for restart in [true, false] {
        let mut cri = Cri::new(&crisp.socket);
        cri.runtime.version(VersionRequest::default()).await.expect("a version");
        let listed = cri.runtime.list_containers(ListContainersRequest::default()).await.expect("a list");
        let ids: BTreeSet<_> = listed.into_inner().containers.into_iter().map(|found| found.id).collect();
        assert_eq!(ids, containers);
        assert!(crisp.metrics().contains("crisp_upstream_up{endpoint=\"runtime\"} 1"), "the runtime is up");
        assert_eq!(crisp.command(&["status"])["runtime"]["name"], "containerd");
        let status = crisp.stop();
        assert!(status.is_some_and(|status| status.success()), "crisp ended with {status:?}");
        if restart {
            crisp.restart();
        }
    }

    let log = crisp.log();
    for expected in ["serving", "the runtime answers", "stopped"] {
        assert!(log.contains(expected), "{expected} is not said\n{log}");
    }
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// As an old kubelet and crisp would have asked for it.
fn as_kubelets_do(mut request: CreateContainerRequest, name: &str) -> CreateContainerRequest {
    let config = request.config.as_mut().expect("a config");
    config.metadata.as_mut().expect("metadata").name = name.to_owned();
    let labels = [
        ("io.kubernetes.pod.uid", "rest"),
        ("io.kubernetes.container.name", name),
        ("io.kubernetes.container.spec", r#"{"v":1,"image":"busybox"}"#),
    ];
    config.labels.extend(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
    config.annotations.insert("io.kubernetes.container.hash".to_owned(), "0".to_owned());
    request
}
