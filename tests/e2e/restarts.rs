//! crisp tells why a container was made again, of real containers in real pods.

use k8s_cri::v1::{ListPodSandboxRequest, PodSandboxFilter, PodSandboxStatusRequest};
use serde_json::{Value, json};

use crate::lab::client::Cri;
use crate::lab::cluster::Cluster;
use crate::lab::crisp::Crisp;
use crate::lab::process::kill_all;
use crate::lab::wait;
use crate::member::{self, LIMIT, Member, NEWEST, idle};
use crate::report;

/// Another image than busybox:1.35.
const ANOTHER: &str = "gcr.io/k8s-staging-cri-tools/test-image-1:latest";

#[test]
fn each_restart_is_told_with_its_cause() {
    let Some(node) = member::runtime("causes of restarts", NEWEST) else { return };
    let (mut member, crisp) = Member::join_through_crisp(node, Cluster::shared(), &[]);
    let names = ["edited", "crashing", "hungry", "unboxed", "quiet"];
    member.add_pod("edited", &Value::Null, &json!({"containers": [idle("main", "busybox:1.35")]}));
    member.add_pod("crashing", &Value::Null, &once("exit 3", &json!({})));
    let little = json!({"limits": {"memory": "24Mi"}});
    member.add_pod("hungry", &Value::Null, &once("exec tail /dev/zero", &little));
    member.add_pod("unboxed", &Value::Null, &json!({"containers": [idle("main", "busybox:1.35")]}));
    member.add_pod("quiet", &Value::Null, &json!({"containers": [idle("main", "busybox:1.35")]}));
    for pod in ["crashing", "hungry"] {
        member.wait_restarts(pod, 1);
    }
    member.wait_running(names.len());

    let patch = json!({"spec": {"containers": [{"name": "main", "image": ANOTHER}]}});
    member.cluster.patch_pod(&member.namespace, "edited", &patch);
    member.kill_sandbox("unboxed");
    for pod in ["edited", "unboxed"] {
        member.wait_restarts(pod, 1);
    }
    let expected = [
        ("edited", "spec-changed", Some(format!("image: busybox:1.35 → {ANOTHER}"))),
        ("crashing", "crashed", None),
        ("hungry", "oom-killed", None),
        ("unboxed", "sandbox-recreated", None),
    ];
    for (pod, cause, difference) in &expected {
        let restart = member.restart_of(&crisp, pod);
        assert_eq!(restart["cause"], *cause, "{restart:#}");
        assert_eq!(restart["attempt"], 1, "{restart:#}");
        let differences = restart["differences"].as_array().cloned().unwrap_or_default();
        assert_eq!(differences, difference.iter().map(|one| json!(one)).collect::<Vec<_>>(), "{restart:#}");
        member.wait_event(pod);
    }
    assert_eq!(member.restart_of(&crisp, "crashing")["exitCode"], 3);

    // A kubelet that starts again restarts nothing, and nothing is told.
    let before = member.running();
    member.kubelet.stop();
    member.kubelet.start_again(&crisp.endpoint());
    member.wait_rounds(&names, 3);
    assert_eq!(member.running(), before);
    let all = crisp.command(&["restarts"]);
    assert_eq!(all["restarts"].as_array().map(Vec::len), Some(expected.len()), "{all:#}");
    assert_eq!(crisp.metric("crisp_container_restarts_total"), expected.len() as u64, "{}", crisp.metrics());
    report::add_note(
        "restarts by an edited image, a crash, an OOM kill and a killed sandbox are told as what they were; a kubelet \
         that starts again restarts nothing",
    );
}

// === impl Member ===

impl Member {
    /// The only restart in a pod, as `crisp restarts` tells it.
    fn restart_of(&self, crisp: &Crisp, pod: &str) -> Value {
        let mut last = Value::Null;
        let told = wait::try_until(LIMIT, || {
            last = crisp.command(&["restarts", &format!("{pod}/main"), "--namespace", &self.namespace]);
            last["restarts"].as_array().filter(|all| all.len() == 1).map(|all| all[0].clone())
        });
        told.unwrap_or_else(|| panic!("of {pod} crisp tells {last:#}\n{}", crisp.log_tail()))
    }

    /// Ends the process that holds a pod together, behind the kubelet's back.
    fn kill_sandbox(&self, pod: &str) {
        let pid = self.background.block_on(async {
            let mut cri = Cri::new(self.node.socket());
            let label_selector = [("io.kubernetes.pod.name".to_owned(), pod.to_owned())].into();
            let filter = Some(PodSandboxFilter { label_selector, ..PodSandboxFilter::default() });
            let sandboxes = cri.runtime.list_pod_sandbox(ListPodSandboxRequest { filter }).await;
            let id = sandboxes.expect("ListPodSandbox").into_inner().items.remove(0).id;
            let request = PodSandboxStatusRequest { pod_sandbox_id: id, verbose: true };
            let info =
                cri.runtime.pod_sandbox_status(request).await.expect("PodSandboxStatus").into_inner().info;
            let info: Value = serde_json::from_str(&info["info"]).expect("JSON");
            info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("the sandbox's process")
        });
        kill_all(&[pid]);
    }
}

/// A container that does something when it runs for the first time, and nothing later.
fn once(what: &str, resources: &Value) -> Value {
    let script = format!(
        "[ -e /kept/ran ] || {{ touch /kept/ran; {what}; }}; trap 'exit 0' TERM; tail -f /dev/null & wait"
    );
    json!({
        "containers": [{
            "name": "main", "image": "busybox:1.35", "imagePullPolicy": "IfNotPresent", "resources": resources,
            "command": ["sh", "-c", script], "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
        }],
        "volumes": [{"name": "kept", "emptyDir": {}}],
    })
}
