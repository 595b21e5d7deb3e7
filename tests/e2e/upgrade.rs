//! A kubelet of another age takes over containers that carry a hash which it does not compute. Without crisp it kills
//! every one of them, with crisp none but those that have changed.

mod older_kubelet;

use std::collections::BTreeSet;

use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, PodSandboxConfig,
    PodSandboxMetadata, RemovePodSandboxRequest, RunPodSandboxRequest,
};
use serde_json::{Value, json};

use crate::lab::client::{self, Cri};
use crate::lab::cluster::{Cluster, User};
use crate::lab::crisp::Crisp;
use crate::lab::node::Kind;
use crate::lab::wait;
use crate::member::{self, Ids, LIMIT, Member, NEWEST, idle};
use crate::report;

use older_kubelet::OlderKubelet;

/// Two tags of one image.
const ONE_IMAGE: [&str; 2] =
    ["gcr.io/k8s-staging-cri-tools/test-image-tags:2", "gcr.io/k8s-staging-cri-tools/test-image-tags:3"];
/// Another one.
const ANOTHER: &str = "gcr.io/k8s-staging-cri-tools/test-image-1:latest";

/// How many containers nobody edits.
const CONTAINERS: usize = 10;

/// The kubelet kills what has another hash the first time that it looks at a pod.
const ROUNDS: usize = 3;

#[test]
fn an_upgrade_kills_nothing_through_crisp_and_everything_without() {
    upgrades(NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn an_upgrade_kills_nothing_through_crisp_on_containerd_1_7() {
    upgrades(Kind::Containerd("containerd-1.7.30"));
}

#[test]
#[ignore = "part of make e2e-all"]
fn an_upgrade_kills_nothing_through_crisp_on_crio() {
    upgrades(Kind::Crio);
}

fn upgrades(kind: Kind) {
    let Some(node) = member::runtime("an upgrade of the kubelet", kind) else { return };
    // CRI-O refuses to make a container without the user's name of its image.
    let older = OlderKubelet::in_front_of(node.socket(), matches!(kind, Kind::Crio));
    let mut member = Member::join(node, Cluster::shared(), &older.endpoint());
    let pods = member.start_pods();
    // Beside the ten, one whose image is edited while there is no kubelet, and two that are edited while all runs.
    let edited = [idle("offline", "busybox:1.35"), idle("other", "busybox:1.35"), idle("tag", ONE_IMAGE[0])];
    member.add_pod("edited", &Value::Null, &json!({"containers": edited}));
    let before = member.wait_running(CONTAINERS + 3);
    let all: Vec<_> = pods.iter().copied().chain(["edited"]).collect();

    member.kubelet.stop();
    member.edit_image("edited", "offline", ANOTHER);
    // With the kubelet's own rights.
    let kubeconfig = member.cluster.kubeconfig_file(User::Node(member.kubelet.node()));
    let options = ["--kubeconfig", &kubeconfig, "--node-name", member.kubelet.node()];
    let mut crisp = Crisp::start_with(&member.node.endpoint(), &options);
    member.kubelet.start_again(&crisp.endpoint());
    let mut expected = member.wait_restarted(&before, &["edited/offline"]);
    member.wait_rounds(&all, ROUNDS);
    assert_eq!(member.running(), expected, "{}", crisp.metrics());
    assert_eq!(crisp.metric("crisp_hash_shield_containers"), CONTAINERS as u64 + 2, "{}", crisp.metrics());

    // What is edited while everything runs is restarted, and nothing else; two names of one image are two.
    for (container, image) in [("other", ANOTHER), ("tag", ONE_IMAGE[1])] {
        member.edit_image("edited", container, image);
        expected = member.wait_restarted(&expected, &[&format!("edited/{container}")]);
    }

    // Others make containers beside the kubelet, and what they call a hash is not the kubelet's. All start again.
    member.kubelet.stop();
    member.background.block_on(make_containers_of_others(&crisp));
    crisp.kill();
    crisp.restart();
    member.background.block_on(make_containers_of_others(&crisp));
    member.kubelet.start_again(&crisp.endpoint());
    member.wait_rounds(&all, ROUNDS);
    assert_eq!(member.running(), expected, "{}", crisp.metrics());
    assert_eq!(crisp.metric("crisp_hash_shield_refuted"), 0);

    // Without crisp. Those that were edited carry the kubelet's own hash by now.
    member.kubelet.stop();
    member.kubelet.start_again(&member.node.endpoint());
    let foreign: Vec<_> =
        before.keys().map(String::as_str).filter(|name| !name.starts_with("edited/")).collect();
    assert_eq!(foreign.len(), CONTAINERS);
    member.wait_restarted(&expected, &foreign);
    for pod in pods {
        member.wait_restarts(pod, 1);
    }
    let runtime = client::version(member.node.socket()).expect("the runtime's version");
    let runtime = format!("{} {}", runtime.runtime_name, runtime.runtime_version);
    report::add_note(&format!(
        "{runtime}: a kubelet that computes other hashes kills {CONTAINERS} of {CONTAINERS} containers, through crisp 0 \
         and those that were edited"
    ));
}

/// A runtime that knows what its containers were made from makes the API server needless.
#[test]
fn an_upgrade_kills_nothing_where_the_runtime_knows_the_images() {
    let Some(node) = member::runtime("an upgrade of the kubelet without an API server", NEWEST) else {
        return;
    };
    let older = OlderKubelet::in_front_of(node.socket(), true);
    let mut member = Member::join(node, Cluster::shared(), &older.endpoint());
    let pods = member.start_pods();
    member.add_pod("edited", &Value::Null, &json!({"containers": [idle("tag", ONE_IMAGE[0])]}));
    let before = member.wait_running(CONTAINERS + 1);
    member.kubelet.stop();
    // Another tag of the same image, which not even the image's ID gives away.
    member.edit_image("edited", "tag", ONE_IMAGE[1]);
    let crisp = Crisp::start(&member.node.endpoint());
    member.kubelet.start_again(&crisp.endpoint());
    let expected = member.wait_restarted(&before, &["edited/tag"]);
    member.wait_rounds(&pods, ROUNDS);
    assert_eq!(member.running(), expected, "{}", crisp.metrics());
    report::add_note(&format!(
        "the same without an API server on containerd 2.4: 0 of {CONTAINERS} and what was edited"
    ));
}

// === impl Member ===

impl Member {
    /// Ten containers of images that are named in all the ways that people name them. Gives the names of their pods.
    fn start_pods(&self) -> Vec<&'static str> {
        let image = self.background.block_on(async {
            let cri = Cri::new(self.node.socket());
            cri.pull("busybox:1.35", None).await.expect("the image");
            cri.image("busybox:1.35").await.expect("the image")
        });
        let digest = image.repo_digests.first().and_then(|name| name.split_once('@')).expect("a digest").1;
        let by_digest = format!("busybox@{digest}");
        let both = format!("docker.io/library/busybox:1.35@{digest}");
        let local = self.node.registry().image("busybox:1.35");
        let elsewhere = "registry.k8s.io/e2e-test-images/busybox:1.29-2";
        let mut sidecar = idle("sidecar", "docker.io/library/busybox:also");
        sidecar["restartPolicy"] = json!("Always");
        let pods = [
            ("two-names", json!({"containers": [idle("a", "busybox:1.35"), idle("b", "busybox:also")]})),
            ("two-tags", json!({"containers": [idle("a", ONE_IMAGE[0]), idle("b", ONE_IMAGE[1])]})),
            ("sidecar", json!({"initContainers": [sidecar], "containers": [idle("main", &by_digest)]})),
            ("tag-and-digest", json!({"containers": [idle("main", &both)]})),
            ("local", json!({"containers": [idle("main", &local)]})),
            ("never", json!({"restartPolicy": "Never", "containers": [idle("main", "busybox:1.35")]})),
            ("elsewhere", json!({"containers": [idle("main", elsewhere)]})),
        ];
        for (name, spec) in &pods {
            self.add_pod(name, &Value::Null, spec);
        }
        pods.iter().map(|(name, _)| *name).collect()
    }

    fn edit_image(&self, pod: &str, container: &str, image: &str) {
        let patch = json!({"spec": {"containers": [{"name": container, "image": image}]}});
        self.cluster.patch_pod(&self.namespace, pod, &patch);
    }

    /// Waits until these containers, and only these, run under other IDs than before.
    fn wait_restarted(&self, before: &Ids, restarted: &[&str]) -> Ids {
        let restarted: BTreeSet<_> = restarted.iter().copied().collect();
        wait::until("containers are restarted", LIMIT, || {
            let now = self.running();
            let others = before.iter().filter(|(name, _)| !restarted.contains(name.as_str()));
            for (name, id) in others {
                assert_eq!(now.get(name), Some(id), "{name} was restarted");
            }
            let new = |name: &&str| now.get(*name).is_some_and(|id| before.get(*name) != Some(id));
            (now.len() == before.len() && restarted.iter().all(new)).then_some(now)
        })
    }
}

/// Makes containers through crisp as critest does, which has no pods: with the kubelet's annotation, once without the
/// pod's label and once as a pod that names itself. Takes them away again.
async fn make_containers_of_others(crisp: &Crisp) {
    let mut cri = Cri::new(&crisp.socket);
    let metadata = PodSandboxMetadata {
        name: "other".into(),
        uid: "other".into(),
        namespace: "others".into(),
        attempt: 0,
    };
    let sandbox = PodSandboxConfig { metadata: Some(metadata), ..PodSandboxConfig::default() };
    let request = RunPodSandboxRequest { config: Some(sandbox.clone()), ..RunPodSandboxRequest::default() };
    let pod_sandbox_id =
        cri.runtime.run_pod_sandbox(request).await.expect("a sandbox").into_inner().pod_sandbox_id;
    let name = "busybox:1.35".to_owned();
    let image = ImageSpec { image: name.clone(), user_specified_image: name, ..ImageSpec::default() };
    for labels in [vec![], vec![("io.kubernetes.container.name", "main")]] {
        let name = format!("with-{}-labels", labels.len());
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name, attempt: 0 }),
            image: Some(image.clone()),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            annotations: [("io.kubernetes.container.hash".to_owned(), "abcd".to_owned())].into(),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.clone()),
        };
        cri.runtime.create_container(request).await.expect("a container");
    }
    cri.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await.expect("it goes");
}
