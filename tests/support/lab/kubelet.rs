//! A kubelet: stand-alone with static pods, or as a node of a cluster.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::cgroup::CgroupRoot;
use super::cluster::{Cluster, User};
use super::network::free_ports;
use super::parts::peer_dir;
use super::process::Process;
use super::registry::http_get;
use super::scratch::Scratch;
use super::wait;

/// The name of a node that no cluster knows.
const ALONE: &str = "crisp-node";

#[derive(Debug)]
pub(crate) struct Kubelet {
    process: Option<Process>,
    setup: Setup,
    scratch: Scratch,
}

/// What stays the same when a kubelet is started again.
#[derive(Debug)]
struct Setup {
    peer: String,
    /// The node's name.
    node: String,
    kubeconfig: Option<Value>,
    ports: [u16; 3],
    verbosity: u8,
    /// More of its configuration.
    more: Value,
}

/// What the kubelet reports of a pod's only container.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Running {
    pub(crate) container: String,
    pub(crate) restarts: u64,
}

impl Kubelet {
    /// Starts the kubelet of a Go peer. `images` is set when only the image service goes through crisp.
    pub(crate) fn start(peer: &str, runtime: &str, images: Option<&str>) -> Self {
        Self::start_with(peer, runtime, images, None, &json!({}))
    }

    /// Starts a kubelet that keeps a control group for every pod, as on a real node.
    pub(crate) fn start_below(root: &CgroupRoot, peer: &str, runtime: &str) -> Self {
        Self::start_as_told(root, peer, runtime, None, &json!({}))
    }

    /// The same with more in its configuration, and as a node of a cluster if there is one.
    pub(crate) fn start_as_told(
        root: &CgroupRoot,
        peer: &str,
        runtime: &str,
        cluster: Option<&Cluster>,
        more: &Value,
    ) -> Self {
        let mut all = json!({"cgroupsPerQOS": true, "cgroupRoot": root.name()});
        for (key, value) in more.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        Self::start_with(peer, runtime, None, cluster, &all)
    }

    fn start_with(
        peer: &str,
        runtime: &str,
        images: Option<&str>,
        cluster: Option<&Cluster>,
        more: &Value,
    ) -> Self {
        let mut more = more.clone();
        if let Some(images) = images {
            more["imageServiceEndpoint"] = json!(images);
        }
        let node = cluster.map_or_else(|| ALONE.to_owned(), Cluster::new_node_name);
        let kubeconfig = cluster.map(|cluster| cluster.kubeconfig(User::Node(&node)));
        let peer = peer.to_owned();
        Self::first_start(runtime, Setup { peer, node, kubeconfig, ports: free_ports(), verbosity: 2, more })
    }

    /// Starts a kubelet as a node of a real cluster. Its log tells of every look at a pod.
    pub(crate) fn join(cluster: &Cluster, node: &str, peer: &str, runtime: &str) -> Self {
        Self::first_start(
            runtime,
            Setup {
                kubeconfig: Some(cluster.kubeconfig(User::Node(node))),
                peer: peer.to_owned(),
                node: node.to_owned(),
                ports: free_ports(),
                verbosity: 4,
                more: json!({}),
            },
        )
    }

    fn first_start(runtime: &str, setup: Setup) -> Self {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.join("manifests")).expect("make a folder");
        let mut kubelet = Self { process: None, setup, scratch };
        kubelet.start_again(runtime);
        kubelet
    }

    /// The name of its node.
    pub(crate) fn node(&self) -> &str {
        &self.setup.node
    }

    /// Ends the kubelet. Its containers go on.
    pub(crate) fn stop(&mut self) {
        self.process.as_mut().expect("a process").stop();
    }

    /// Starts the kubelet again after [`Self::stop`], with what it has kept on disk, on any runtime endpoint.
    pub(crate) fn start_again(&mut self, runtime: &str) {
        let Setup { peer, node, kubeconfig, ports, verbosity, more } = &self.setup;
        let mut config = config(&self.scratch, runtime, *ports);
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let config = self.scratch.write("config.json", &config.to_string());
        let mut command = Command::new(peer_dir(peer).join("kubelet"));
        command.arg("--config").arg(config).arg("--root-dir").arg(self.scratch.join("root"));
        command.arg("--cert-dir").arg(self.scratch.join("pki")).arg(format!("--hostname-override={node}"));
        command.arg(format!("--v={verbosity}"));
        if let Some(kubeconfig) = kubeconfig {
            let kubeconfig = self.scratch.write("kubeconfig.json", &kubeconfig.to_string());
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        self.process = Some(Process::start(peer, command, &self.scratch.join("kubelet.log")));
        let ready = wait::try_until(Duration::from_secs(60), || {
            match self.process.as_mut().expect("a process").ended() {
                Some(_) => Some(false),
                None => self.pods().map(|_| true),
            }
        });
        assert!(ready == Some(true), "{} does not start\n{}", self.setup.peer, self.log_tail());
    }

    /// Gives the kubelet a pod to run: one container that does nothing for long.
    pub(crate) fn add_pod(&self, name: &str, image: &str) {
        let script = "trap 'exit 0' TERM; while true; do sleep 1; done";
        let container = json!({
            "name": "main", "image": image, "imagePullPolicy": "Always", "command": ["sh", "-c", script],
            "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 2, "timeoutSeconds": 10},
        });
        self.place(name, &container);
    }

    /// Gives the kubelet a pod that costs next to nothing: its image is pulled only if it is not there, and has to
    /// have `/bin/busybox`. Nothing probes it.
    pub(crate) fn add_idle_pod(&self, name: &str, image: &str) {
        self.place(name, &idle_container(image));
    }

    fn place(&self, name: &str, container: &Value) {
        self.add_static_pod(name, &Value::Null, container);
    }

    /// Gives the kubelet a pod of one container, past any API server.
    pub(crate) fn add_static_pod(&self, name: &str, annotations: &Value, container: &Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]},
        });
        // By rename: the kubelet watches the folder and must not see half of a file.
        let fresh = self.scratch.write(&format!("{name}.json"), &pod.to_string());
        fs::rename(fresh, self.manifest(name)).expect("place the manifest");
    }

    pub(crate) fn remove_pod(&self, name: &str) {
        fs::remove_file(self.manifest(name)).expect("remove the manifest");
    }

    /// Waits until the pod's container runs and passes its exec probe.
    pub(crate) fn wait_running(&mut self, name: &str, limit: Duration) -> Running {
        let running = wait::try_until(limit, || self.running(name));
        running.unwrap_or_else(|| {
            let state = self.pods().map(|pods| pods.to_string());
            panic!(
                "pod {name} does not run within {limit:?}; the kubelet says {state:?}\n{}",
                self.log_tail()
            )
        })
    }

    /// Waits until all of these pods run, and tells how often their containers were restarted.
    pub(crate) fn wait_all_running(&mut self, names: &[String], limit: Duration) -> u64 {
        let restarts = wait::try_until(limit, || {
            let pods = self.pods()?;
            names
                .iter()
                .map(|name| running(&pods, self.node(), name).map(|running| running.restarts))
                .sum::<Option<u64>>()
        });
        restarts.unwrap_or_else(|| {
            let state = self.pods().map(|pods| pods.to_string());
            panic!("not all pods run within {limit:?}; the kubelet says {state:?}\n{}", self.log_tail())
        })
    }

    /// Waits until the kubelet no longer knows the pod.
    pub(crate) fn wait_gone(&self, name: &str, limit: Duration) {
        wait::until("the pod goes", limit, || {
            self.pods().filter(|pods| find(pods, self.node(), name).is_none())
        });
    }

    /// The pod's container, if the kubelet now reports it running and ready.
    pub(crate) fn running(&self, name: &str) -> Option<Running> {
        running(&self.pods()?, self.node(), name)
    }

    /// How often the kubelet has compared each of these pods (`NAMESPACE/NAME`) with its containers since it last
    /// started: the least of their counts. Only of a kubelet that was started by [`Self::join`].
    pub(crate) fn rounds(&self, pods: &[String]) -> usize {
        let log = self.log();
        // The first line of a start, which names the version.
        let now = log.rfind("\"Kubelet version\"").map_or("", |start| &log[start..]);
        let exits: Vec<_> = now.lines().filter(|line| line.contains("\"SyncPod exit\"")).collect();
        let of = |pod: &String| exits.iter().filter(|line| line.contains(&format!("pod=\"{pod}\""))).count();
        pods.iter().map(of).min().unwrap_or_default()
    }

    /// The last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        self.process.as_ref().map(Process::log_tail).unwrap_or_default()
    }

    /// The kubelet's log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("kubelet.log")).unwrap_or_default()
    }

    fn pods(&self) -> Option<Value> {
        let (status, body) = http_get(&format!("127.0.0.1:{}", self.setup.ports[0]), "/pods")?;
        (status == 200).then(|| serde_json::from_str(&body).ok())?
    }

    fn manifest(&self, name: &str) -> std::path::PathBuf {
        self.scratch.join("manifests").join(format!("{name}.json"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.process = None;
        remove_log_links(self.scratch.path());
    }
}

/// A container that does nothing, of an image that has `/bin/busybox`.
pub(crate) fn idle_container(image: &str) -> Value {
    let script = "trap 'exit 0' TERM; /bin/busybox tail -f /dev/null & wait";
    let command = ["/bin/busybox", "sh", "-c", script];
    json!({"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command})
}

/// A pod by its name: the kubelet adds the node's name to that of a static pod.
fn find<'a>(pods: &'a Value, node: &str, name: &str) -> Option<&'a Value> {
    pods["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == format!("{name}-{node}"))
}

/// A pod's container, if it runs and is ready.
fn running(pods: &Value, node: &str, name: &str) -> Option<Running> {
    let container = &find(pods, node, name)?["status"]["containerStatuses"][0];
    let _ready = container["ready"].as_bool().filter(|ready| *ready)?;
    container["state"]["running"].as_object()?;
    let id = container["containerID"].as_str()?;
    Some(Running {
        container: id.split_once("://").map_or(id, |(_, id)| id).to_owned(),
        restarts: container["restartCount"].as_u64()?,
    })
}

/// Kubelets keep links to container logs in one folder of the machine; those to ours would dangle.
fn remove_log_links(dir: &Path) {
    let Ok(links) = fs::read_dir("/var/log/containers") else { return };
    for link in links.flatten() {
        if fs::read_link(link.path()).is_ok_and(|target| target.starts_with(dir)) {
            let _ = fs::remove_file(link.path());
        }
    }
}

fn config(scratch: &Scratch, runtime: &str, [read_only, port, healthz]: [u16; 3]) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": runtime,
        "imageServiceEndpoint": runtime,
        "staticPodPath": scratch.join("manifests"),
        "podLogsDir": scratch.join("logs"),
        "volumePluginDir": scratch.join("plugins"),
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": healthz,
        "readOnlyPort": read_only,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        // Several kubelets may run at once. Each would take the other's pods for orphans if they shared one tree of
        // control groups, so they keep none.
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false,
        "evictionHard": {},
        "imageGCHighThresholdPercent": 99,
        // Otherwise the kubelet itself puts pulls in a row and crisp never sees two at once.
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        // Without an API server this is not looked at.
        "configMapAndSecretChangeDetectionStrategy": "Get",
        "resolvConf": "",
        "fileCheckFrequency": "1s",
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
    })
}
