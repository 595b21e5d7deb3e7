//! A kubelet of another age takes over containers that carry a hash which it does not compute: without crisp it kills
//! every one of them.

mod older_kubelet;

use serde_json::{Value, json};

use crate::lab::client::Cri;
use crate::lab::cluster::Cluster;
use crate::lab::wait;
use crate::member::{self, Ids, LIMIT, Member, idle};
use crate::report;

use older_kubelet::OlderKubelet;

/// Two tags of one image.
const ONE_IMAGE: [&str; 2] =
    ["gcr.io/k8s-staging-cri-tools/test-image-tags:2", "gcr.io/k8s-staging-cri-tools/test-image-tags:3"];

/// How many containers there are in all.
const CONTAINERS: usize = 10;

/// The kubelet kills what has another hash the first time that it looks at a pod.
const ROUNDS: usize = 3;

#[test]
fn without_crisp_a_foreign_hash_kills_every_container() {
    let Some(node) = member::runtime("an upgrade of the kubelet") else { return };
    let older = OlderKubelet::in_front_of(&node.socket);
    let mut member = Member::join(node, Cluster::shared(), &older.endpoint());
    let (pods, before) = member.start_pods();

    // The same kubelet, told of its own hashes: a restart alone kills nothing.
    member.kubelet.stop();
    member.kubelet.start_again(&older.endpoint());
    member.wait_rounds(&pods, ROUNDS);
    assert_eq!(member.running(), before);

    member.kubelet.stop();
    member.kubelet.start_again(&member.node.endpoint());
    let after = member.wait_all_new(&before);
    assert_eq!(after.len(), CONTAINERS);
    for pod in &pods {
        member.wait_restarts(pod, 1);
    }
    report::add_note(&format!(
        "a kubelet that computes other hashes kills {CONTAINERS} of {CONTAINERS} containers"
    ));
}

// === impl Member ===

impl Member {
    /// Ten containers under a foreign hash, of images named in all the ways that people name them. Gives the pods.
    fn start_pods(&self) -> (Vec<&'static str>, Ids) {
        let image = self.background.block_on(async {
            let cri = Cri::new(&self.node.socket);
            cri.pull("busybox:1.35", None).await.expect("the image");
            cri.image("busybox:1.35").await.expect("the image")
        });
        let digest = image.repo_digests.first().and_then(|name| name.split_once('@')).expect("a digest").1;
        let by_digest = format!("busybox@{digest}");
        let both = format!("docker.io/library/busybox:1.35@{digest}");
        let local = self.node.registry.image("busybox:1.35");
        let mut sidecar = idle("sidecar", "docker.io/library/busybox:also");
        sidecar["restartPolicy"] = json!("Always");
        let pods = [
            ("two-names", json!({"containers": [idle("a", "busybox:1.35"), idle("b", "busybox:also")]})),
            ("two-tags", json!({"containers": [idle("a", ONE_IMAGE[0]), idle("b", ONE_IMAGE[1])]})),
            ("sidecar", json!({"initContainers": [sidecar], "containers": [idle("main", &by_digest)]})),
            ("tag-and-digest", json!({"containers": [idle("main", &both)]})),
            ("local", json!({"containers": [idle("main", &local)]})),
            ("never", json!({"restartPolicy": "Never", "containers": [idle("main", "busybox:1.35")]})),
            (
                "elsewhere",
                json!({"containers": [idle("main", "registry.k8s.io/e2e-test-images/busybox:1.29-2")]}),
            ),
        ];
        for (name, spec) in &pods {
            self.add_pod(name, &Value::Null, spec);
        }
        (pods.iter().map(|(name, _)| *name).collect(), self.wait_running(CONTAINERS))
    }

    /// Waits until all containers run again under other IDs.
    fn wait_all_new(&self, before: &Ids) -> Ids {
        wait::until("all containers are restarted", LIMIT, || {
            let now = self.running();
            (now.len() == before.len()
                && now.iter().all(|(name, id)| before.get(name).is_some_and(|old| old != id)))
            .then_some(now)
        })
    }
}
