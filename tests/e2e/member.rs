//! A node of a real cluster: kubelet, containerd, and crisp where a test wants it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1::{ContainerFilter, ContainerState, ContainerStateValue, ListContainersRequest};
use serde_json::{Value, json};

use crate::lab::client::Cri;
use crate::lab::cluster::{Cluster, PEERS, User};
use crate::lab::crisp::Crisp;
use crate::lab::kubelet::Kubelet;
use crate::lab::node::{Kind, Node};
use crate::lab::parts;
use crate::lab::wait;

/// The runtime that CI has time for.
pub(crate) const NEWEST: Kind = Kind::Containerd("containerd-2.4.2");
const KUBELET: &str = "kubelet-1.36.3";

/// Pods start within seconds, but the kubelet tries again after at most 15 s when a call for one failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The order of the fields is that in which they go.
pub(crate) struct Member {
    pub(crate) kubelet: Kubelet,
    pub(crate) node: Node,
    /// The namespace of all pods of the test.
    pub(crate) namespace: String,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) background: tokio::runtime::Runtime,
}

/// The IDs of running containers by `POD/CONTAINER`.
pub(crate) type Ids = BTreeMap<String, String>;

/// A node without a kubelet, unless this machine lacks a part; `test` then is reported as skipped.
pub(crate) fn runtime(test: &str, kind: Kind) -> Option<Node> {
    let peers: Vec<_> = PEERS.into_iter().chain([KUBELET]).collect();
    if let Some(reason) = kind.missing(&peers) {
        parts::skip(test, &reason);
        return None;
    }
    Some(kind.start())
}

// === impl Member ===

impl Member {
    /// Makes the runtime a node of the cluster whose kubelet is at `endpoint`, with a namespace of its own.
    pub(crate) fn join(node: Node, cluster: Arc<Cluster>, endpoint: &str) -> Self {
        let kubelet = Kubelet::join(&cluster, &cluster.new_node_name(), KUBELET, endpoint);
        Self::new(kubelet, node, cluster)
    }

    fn new(kubelet: Kubelet, node: Node, cluster: Arc<Cluster>) -> Self {
        let namespace = format!("of-{}", kubelet.node());
        cluster.add_namespace(&namespace);
        let background = tokio::runtime::Runtime::new().expect("a runtime");
        Self { kubelet, node, namespace, cluster, background }
    }

    /// The same through crisp, which knows the cluster too and is given more options.
    pub(crate) fn join_through_crisp(node: Node, cluster: Arc<Cluster>, options: &[&str]) -> (Self, Crisp) {
        let kubeconfig = cluster.kubeconfig_file(User::Crisp);
        let name = cluster.new_node_name();
        let mut all = vec!["--kubeconfig", &kubeconfig, "--node-name", &name];
        all.extend(options);
        let crisp = Crisp::start_with(&node.endpoint(), &all);
        let kubelet = Kubelet::join(&cluster, &name, KUBELET, &crisp.endpoint());
        (Self::new(kubelet, node, cluster), crisp)
    }

    /// Gives the kubelet a pod through the API server.
    pub(crate) fn add_pod(&self, name: &str, annotations: &Value, spec: &Value) {
        let metadata = json!({"annotations": annotations});
        self.cluster.add_pod((&self.namespace, name), self.kubelet.node(), &metadata, spec);
    }

    /// The pod as the API server has it.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.cluster.pod(&self.namespace, name).unwrap_or_default()
    }

    /// Waits until so many containers run by the runtime's own word, and the API server knows it of all pods.
    pub(crate) fn wait_running(&self, containers: usize) -> Ids {
        let running = wait::try_until(LIMIT, || {
            let ids = self.running();
            let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
            let pods = self.cluster.get(&path)?;
            let all = pods["items"].as_array()?.iter().all(|pod| pod["status"]["phase"] == "Running");
            (ids.len() == containers && all).then_some(ids)
        });
        running.unwrap_or_else(|| {
            panic!("not {containers} containers run but {:#?}\n{}", self.running(), self.kubelet.log_tail())
        })
    }

    /// The running containers of the test's pods, by the runtime's own word.
    pub(crate) fn running(&self) -> Ids {
        let state = Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() });
        let label_selector = [("io.kubernetes.pod.namespace".to_owned(), self.namespace.clone())].into();
        let filter = Some(ContainerFilter { state, label_selector, ..ContainerFilter::default() });
        let listed = self.background.block_on(async {
            Cri::new(self.node.socket()).runtime.list_containers(ListContainersRequest { filter }).await
        });
        let listed = listed.expect("ListContainers").into_inner().containers;
        let label = |labels: &std::collections::HashMap<String, String>, name: &str| {
            labels.get(&format!("io.kubernetes.{name}")).cloned().unwrap_or_default()
        };
        let named = listed.into_iter().map(|one| {
            let (pod, container) = (label(&one.labels, "pod.name"), label(&one.labels, "container.name"));
            (format!("{pod}/{container}"), one.id)
        });
        named.collect()
    }

    /// Waits until the API server has it that each container of a pod was restarted so often, and that all run.
    pub(crate) fn wait_restarts(&self, pod: &str, restarts: u64) {
        let mut last = Value::Null;
        let told = wait::try_until(LIMIT, || {
            last = self.pod(pod)["status"].clone();
            let lists = [&last["containerStatuses"], &last["initContainerStatuses"]];
            let all: Vec<_> = lists.into_iter().filter_map(Value::as_array).flatten().collect();
            let told = |one: &&Value| one["restartCount"] == restarts && one["state"]["running"].is_object();
            (!all.is_empty() && all.iter().all(told)).then_some(())
        });
        assert!(told.is_some(), "the containers of {pod} were not restarted {restarts} times: {last:#}");
    }

    /// Waits until the owner of a pod can read in an Event what crisp has done or waits for.
    pub(crate) fn wait_event(&self, pod: &str) -> Value {
        let mut last = Vec::new();
        let told = wait::try_until(Duration::from_secs(30), || {
            last = self.cluster.events(&self.namespace, pod);
            last.iter().find(|event| event["source"]["component"] == "crisp").cloned()
        });
        told.unwrap_or_else(|| panic!("no Event of crisp's on {pod}: {last:#?}"))
    }

    /// Waits until the kubelet has looked at each of these pods so often since it started.
    pub(crate) fn wait_rounds(&self, pods: &[&str], rounds: usize) {
        let pods: Vec<_> = pods.iter().map(|pod| format!("{}/{pod}", self.namespace)).collect();
        let seen = wait::try_until(LIMIT, || (self.kubelet.rounds(&pods) >= rounds).then_some(()));
        assert!(seen.is_some(), "the kubelet does not look at all of {pods:?}\n{}", self.kubelet.log_tail());
    }
}

/// A container that does nothing until it is told to end.
pub(crate) fn idle(name: &str, image: &str) -> Value {
    let script = "trap 'exit 0' TERM; tail -f /dev/null & wait";
    json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]})
}
