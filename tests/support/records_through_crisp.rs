//! Records and restarts on real runtimes: what the runtime keeps, what a kubelet sees, and what crisp tells of it.
//! Written once, and run by the tests of one node and by e2e on other runtimes.

#[path = "records_through_crisp/causes.rs"]
mod causes;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crisp::container::record::{LABEL, Label};
use k8s_cri::v1::{
    Container, ContainerConfig, ContainerMetadata, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ImageSpec, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxPodSandboxConfig, ListContainerStatsRequest, ListContainersRequest, PodSandboxConfig,
    PodSandboxMetadata, PodSandboxStatusRequest, RemoveContainerRequest, RunPodSandboxRequest,
    StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use tonic::Code;

use crate::lab::client::{Cri, version};
use crate::lab::crisp::Crisp;
use crate::lab::images::BUSYBOX;
use crate::lab::node::Node;

/// How long anything may take on a busy machine before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A Secret's value, in a variable and expanded in an argument. It occurs nowhere else.
const SECRET: &str = "c0rrect-h0rse-battery-staple";

/// So many containers have records at the limit.
const MANY: usize = 300;

/// A real runtime with crisp in front of it.
struct Lab {
    /// Through crisp, and past it. Before the node, so that crisp ends first.
    cri: Cri,
    direct: Cri,
    crisp: Crisp,
    node: Node,
    image: String,
    figures: Vec<String>,
}

/// A pod's sandbox.
#[derive(Debug, Clone)]
struct Pod {
    id: String,
    config: PodSandboxConfig,
}

/// What a container is made from.
#[derive(Debug, Clone, Default)]
struct Spec {
    name: String,
    attempt: u32,
    /// The user's name for the image; else the image's own.
    image: Option<String>,
    hash: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    memory: i64,
}

/// Everything, on one node. Returns figures for people.
pub(crate) async fn run(node: Node) -> Vec<String> {
    let mut lab = Lab::new(node).await;
    lab.specs_of_every_size_are_recorded().await;
    lab.events_carry_no_record().await;
    lab.causes_are_told().await;
    lab.many_records_at_the_limit().await;
    lab.no_secret_was_written().await;
    lab.figures
}

// === impl Lab ===

impl Lab {
    async fn new(node: Node) -> Self {
        let crisp = Crisp::start_with(&node.endpoint(), &["--log-level", "debug"]);
        let (cri, direct) = (Cri::new(&crisp.socket), Cri::new(node.socket()));
        let image = node.registry().image(BUSYBOX);
        cri.pull(&image, None).await.expect("pull");
        Self { cri, direct, crisp, node, image, figures: Vec::new() }
    }

    fn tell(&mut self, words: &str) {
        let runtime = version(self.node.socket()).expect("the runtime's version");
        self.figures.push(format!("{} {}: {words}", runtime.runtime_name, runtime.runtime_version));
    }

    async fn pod(&self, name: &str, attempt: u32) -> Pod {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: "records".to_owned(),
                attempt,
            }),
            linux: Some(LinuxPodSandboxConfig::default()),
            ..PodSandboxConfig::default()
        };
        let request = RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        let id = self.cri.runtime.clone().run_pod_sandbox(request).await.expect("run a pod");
        Pod { id: id.into_inner().pod_sandbox_id, config }
    }

    async fn create(&self, pod: &Pod, spec: &Spec) -> String {
        let request = self.request(pod, spec);
        let reply = self.cri.runtime.clone().create_container(request).await;
        reply.expect("create a container").into_inner().container_id
    }

    /// As a kubelet asks for it.
    fn request(&self, pod: &Pod, spec: &Spec) -> CreateContainerRequest {
        let metadata = pod.config.metadata.clone().unwrap_or_default();
        let pairs = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let resources = LinuxContainerResources { memory_limit_in_bytes: spec.memory, ..Default::default() };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
            image: Some(ImageSpec {
                image: self.image.clone(),
                user_specified_image: spec.image.clone().unwrap_or_else(|| self.image.clone()),
                ..ImageSpec::default()
            }),
            command: vec!["sh".to_owned()],
            args: spec.args.clone(),
            envs: spec
                .env
                .iter()
                .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() })
                .collect(),
            labels: pairs(&[
                ("io.kubernetes.pod.name", &metadata.name),
                ("io.kubernetes.pod.namespace", &metadata.namespace),
                ("io.kubernetes.pod.uid", &metadata.uid),
                ("io.kubernetes.container.name", &spec.name),
            ]),
            annotations: pairs(&[("io.kubernetes.container.hash", &spec.hash)]),
            linux: Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() }),
            ..ContainerConfig::default()
        };
        let sandbox_config = Some(pod.config.clone());
        CreateContainerRequest { pod_sandbox_id: pod.id.clone(), config: Some(config), sandbox_config }
    }

    async fn start(&self, id: &str) {
        let request = StartContainerRequest { container_id: id.to_owned() };
        self.cri.runtime.clone().start_container(request).await.expect("start a container");
    }

    async fn stop(&self, id: &str) {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: 1 };
        self.cri.runtime.clone().stop_container(request).await.expect("stop a container");
    }

    async fn status(&self, cri: &Cri, id: &str) -> ContainerStatus {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let reply = cri.runtime.clone().container_status(request).await.expect("ContainerStatus");
        reply.into_inner().status.expect("a status")
    }

    async fn list(&self, cri: &Cri) -> Vec<Container> {
        let reply = cri.runtime.clone().list_containers(ListContainersRequest::default()).await;
        reply.expect("ListContainers").into_inner().containers
    }

    /// The label of a container, as the runtime has it. Nobody else sees it.
    async fn label(&self, id: &str) -> Option<String> {
        assert_eq!(self.status(&self.cri, id).await.labels.len(), 4, "a kubelet sees its own labels");
        self.status(&self.direct, id).await.labels.remove(LABEL)
    }

    async fn specs_of_every_size_are_recorded(&mut self) {
        let pod = self.pod("sizes", 0).await;
        let of_size = |bytes: usize| {
            let count = (bytes / 50_000).max(1);
            let value = "v".repeat(bytes / count);
            (0..count).map(|n| (format!("VARIABLE_{n}"), value.clone())).collect::<Vec<_>>()
        };
        // Many small variables make a long record: each has a name and a hash.
        let many =
            |count: usize| (0..count).map(|n| (format!("VARIABLE_{n}"), n.to_string())).collect::<Vec<_>>();
        let specs = [
            ("bytes-200", of_size(200)),
            ("kib-5", of_size(5 << 10)),
            ("kib-60", of_size(60 << 10)),
            ("mib-2", of_size(2 << 20)),
            ("many-200", many(200)),
            ("many-2000", many(2000)),
        ];
        for (name, env) in specs {
            let size: usize = env.iter().map(|(key, value)| key.len() + value.len()).sum();
            let began = Instant::now();
            let id = self.create(&pod, &Spec { name: name.to_owned(), env, ..Spec::default() }).await;
            let took = began.elapsed();
            let label = self.label(&id).await.expect("a record");
            assert!(LABEL.len() + label.len() <= 4096, "{name}: {}", label.len());
            let form = match Label::parse(&label).expect("a record of crisp") {
                Label::Inline(_) => "inline".to_owned(),
                Label::Digest(reference) => format!("a digest of {} bytes", reference.size),
            };
            self.tell(&format!("a spec of {size} bytes: {form}, a label of {} bytes, {took:?}", label.len()));
            self.remove(&id).await;
        }
        self.end(&pod).await;
    }

    /// Where there are events, they come without records.
    async fn events_carry_no_record(&mut self) {
        let pod = self.pod("events", 0).await;
        let events = self.cri.runtime.clone().get_container_events(k8s_cri::v1::GetEventsRequest {}).await;
        let mut events = match events {
            Ok(events) => events.into_inner(),
            Err(status) => {
                assert_eq!(status.code(), Code::Unimplemented, "{status}");
                return self.end(&pod).await;
            }
        };
        let args = ["-c", "exit 0"].map(str::to_owned).to_vec();
        let id = self.create(&pod, &Spec { name: "short".to_owned(), args, ..Spec::default() }).await;
        self.start(&id).await;
        let mut seen = 0;
        let all = async {
            while let Ok(Some(event)) = events.message().await {
                for status in event.containers_statuses {
                    assert!(!status.labels.contains_key(LABEL), "{status:?}");
                    seen += 1;
                }
                if event.container_id == id && event.container_event_type == 2 {
                    return;
                }
            }
        };
        // A runtime that has the method may still be configured to send nothing.
        let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
        self.tell(&format!("{seen} statuses in events, none with a record"));
        self.remove(&id).await;
        self.end(&pod).await;
    }

    async fn many_records_at_the_limit(&mut self) {
        let pod = self.pod("many", 0).await;
        let env =
            |count: usize| (0..count).map(|n| (format!("V{n:03}"), SECRET.to_owned())).collect::<Vec<_>>();
        let began = Instant::now();
        let mut last = String::new();
        for n in 0..MANY {
            let spec = Spec { name: format!("c{n}"), env: env(100), ..Spec::default() };
            last = self.create(&pod, &spec).await;
        }
        let size = self.label(&last).await.expect("a record").len();
        assert!((3000..=3584).contains(&size), "{size} is not at the limit");
        self.tell(&format!(
            "{MANY} containers with records of {size} bytes created in {:?}",
            began.elapsed()
        ));

        let is_ours = |container: &&Container| container.pod_sandbox_id == pod.id;
        let listed = self.list(&self.cri).await;
        assert_eq!(listed.iter().filter(is_ours).count(), MANY);
        assert!(
            listed.iter().all(|container| !container.labels.contains_key(LABEL)),
            "a list carries a record"
        );
        let direct = self.list(&self.direct).await;
        let recorded = direct.iter().filter(is_ours).filter(|container| container.labels.contains_key(LABEL));
        assert_eq!(recorded.count(), MANY, "the runtime's own socket shows them");
        match self.cri.stream_containers().await {
            Ok(streamed) => {
                assert_eq!(streamed.iter().filter(is_ours).count(), MANY);
                assert!(streamed.iter().all(|container| !container.labels.contains_key(LABEL)));
            }
            Err(status) => assert_eq!(status.code(), Code::Unimplemented, "{status}"),
        }
        let stats = self.cri.runtime.clone().list_container_stats(ListContainerStatsRequest::default()).await;
        if let Ok(stats) = stats {
            let all = stats.into_inner().stats.into_iter().filter_map(|stats| stats.attributes);
            assert!(all.into_iter().all(|attributes| !attributes.labels.contains_key(LABEL)));
        }
        let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
        let status = self.cri.runtime.clone().pod_sandbox_status(request).await.expect("PodSandboxStatus");
        assert!(
            status.into_inner().containers_statuses.iter().all(|status| !status.labels.contains_key(LABEL))
        );
        let seen = self.crisp.metric("crisp_record_label_bytes");
        assert!(seen >= (MANY * size) as u64, "{seen} bytes are known");
        self.end(&pod).await;
    }

    /// What crisp writes anywhere, and the labels that it has had written.
    async fn no_secret_was_written(&mut self) {
        let mut texts: Vec<(String, Vec<u8>)> = Vec::new();
        texts.extend(self.crisp.written().into_iter().map(|(path, text)| (path.display().to_string(), text)));
        texts.push(("metrics".to_owned(), self.crisp.metrics().into_bytes()));
        for path in ["/v1/status", "/v1/restarts", "/v1/pulls"] {
            texts.push((path.to_owned(), self.crisp.ask_admin(path).await.into_bytes()));
        }
        assert!(
            texts.iter().any(|(name, _)| name.contains("/records/sha256-")),
            "there are records in files"
        );
        for (name, text) in &texts {
            let found = text.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
            assert!(!found, "{name} holds the secret");
        }
        self.tell(&format!("a Secret's value in none of {} files and answers", texts.len()));
    }

    async fn remove(&self, id: &str) {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        self.cri.runtime.clone().remove_container(request).await.expect("remove a container");
    }

    async fn end(&self, pod: &Pod) {
        let request = StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
        self.cri.runtime.clone().stop_pod_sandbox(request).await.expect("stop a pod");
    }
}
