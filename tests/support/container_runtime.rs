//! A runtime of which only its containers matter: it remembers what it was asked to create, and tells it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use crisp::wire::last;
use k8s_cri::v1::{
    Container, ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    ContainerStatusResponse, CreateContainerRequest, CreateContainerResponse, ImageSpec, KeyValue,
    ListContainersRequest, ListContainersResponse, PodSandboxConfig, PodSandboxMetadata,
    StopContainerRequest,
};
use prost::Message;

use crate::support::bytes_on_the_wire::Reply;
use crate::support::fake_runtime::FakeRuntime;

pub(crate) const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
pub(crate) const STOP: &str = "/runtime.v1.RuntimeService/StopContainer";
pub(crate) const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";
pub(crate) const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

/// The runtime.
#[derive(Debug)]
pub(crate) struct ContainerRuntime {
    _runtime: FakeRuntime,
    containers: Arc<Mutex<Vec<Made>>>,
}

/// A container.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    /// The request that made it, as it came.
    pub(crate) request: Bytes,
    pub(crate) container: Container,
    pub(crate) exit: Option<(i32, &'static str)>,
}

// === impl ContainerRuntime ===

impl ContainerRuntime {
    pub(crate) fn start(socket: &Path) -> Self {
        let containers: Arc<Mutex<Vec<Made>>> = Arc::default();
        let state = containers.clone();
        let runtime = FakeRuntime::start(socket, move |mut incoming| {
            let state = state.clone();
            async move {
                let Ok(seen) = incoming.read().await else { return };
                let message = seen.body.slice(5.min(seen.body.len())..);
                let reply = match incoming.path() {
                    CREATE => create(&mut state.lock().unwrap(), message),
                    LIST => list(&state.lock().unwrap(), message),
                    STATUS => status(&state.lock().unwrap(), message),
                    STOP => stop(message),
                    _ => Reply::error("12", "no"),
                };
                let _ = incoming.reply(&reply).await;
            }
        });
        Self { _runtime: runtime, containers }
    }

    pub(crate) fn containers(&self) -> MutexGuard<'_, Vec<Made>> {
        self.containers.lock().unwrap()
    }

    /// The last container that was made.
    pub(crate) fn last(&self) -> Made {
        self.containers().last().unwrap().clone()
    }

    /// The last container ends.
    pub(crate) fn end(&self, code: i32, reason: &'static str) {
        self.containers().last_mut().unwrap().exit = Some((code, reason));
    }
}

fn create(containers: &mut Vec<Made>, message: Bytes) -> Reply {
    let request = CreateContainerRequest::decode(message.clone()).unwrap_or_default();
    let config = request.config.unwrap_or_default();
    let number = containers.len() as i64 + 1;
    let id = format!("{number:064x}");
    let container = Container {
        id: id.clone(),
        pod_sandbox_id: request.pod_sandbox_id,
        metadata: config.metadata,
        image: config.image,
        labels: config.labels,
        annotations: config.annotations,
        created_at: number,
        ..Container::default()
    };
    containers.push(Made { request: message, container, exit: None });
    Reply::of(&[&CreateContainerResponse { container_id: id }.encode_to_vec()])
}

fn list(containers: &[Made], message: Bytes) -> Reply {
    let filter = ListContainersRequest::decode(message).unwrap().filter.unwrap_or_default();
    let fits = |made: &&Made| {
        filter.label_selector.iter().all(|(key, value)| made.container.labels.get(key) == Some(value))
    };
    let containers = containers.iter().filter(fits).map(|made| made.container.clone()).collect();
    Reply::of(&[&ListContainersResponse { containers }.encode_to_vec()])
}

/// Refused if it may take as long as no kubelet says.
fn stop(message: Bytes) -> Reply {
    match StopContainerRequest::decode(message).unwrap().timeout {
        i64::MAX => Reply::error("13", "no"),
        _ => Reply::of(&[b""]),
    }
}

fn status(containers: &[Made], message: Bytes) -> Reply {
    let id = ContainerStatusRequest::decode(message).unwrap().container_id;
    let Some(made) = containers.iter().find(|made| made.container.id == id) else {
        return Reply::error("5", "not%20found");
    };
    let state = match made.exit {
        Some(_) => ContainerState::ContainerExited,
        None => ContainerState::ContainerRunning,
    };
    let (exit_code, reason) = made.exit.unwrap_or_default();
    let Container { id, metadata, labels, annotations, .. } = made.container.clone();
    let status = ContainerStatus {
        id,
        metadata,
        labels,
        annotations,
        state: state.into(),
        exit_code,
        reason: reason.into(),
        ..ContainerStatus::default()
    };
    Reply::of(&[&ContainerStatusResponse { status: Some(status), ..Default::default() }.encode_to_vec()])
}

/// What a kubelet asks for.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) pod: &'static str,
    pub(crate) sandbox: &'static str,
    pub(crate) attempt: u32,
    pub(crate) image: &'static str,
    pub(crate) hash: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) labels: Vec<(String, String)>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            pod: "web",
            sandbox: "sandbox-1",
            attempt: 0,
            image: "busybox:1.35",
            hash: "11111111",
            args: vec!["serve".into()],
            env: vec![("MODE".into(), "fast".into())],
            labels: Vec::new(),
        }
    }
}

impl Spec {
    /// The request.
    pub(crate) fn request(&self) -> Vec<u8> {
        let uid = format!("uid-of-{}", self.pod);
        let pairs = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mut labels = pairs(&[
            ("io.kubernetes.pod.name", self.pod),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.uid", &uid),
            ("io.kubernetes.container.name", "app"),
        ]);
        labels.extend(self.labels.iter().cloned());
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "app".into(), attempt: self.attempt }),
            image: Some(ImageSpec {
                image: "sha256:1111".into(),
                user_specified_image: self.image.into(),
                ..ImageSpec::default()
            }),
            args: self.args.clone(),
            envs: self
                .env
                .iter()
                .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() })
                .collect(),
            labels,
            annotations: pairs(&[("io.kubernetes.container.hash", self.hash)]),
            log_path: format!("app/{}.log", self.attempt),
            ..ContainerConfig::default()
        };
        let metadata =
            PodSandboxMetadata { name: self.pod.into(), uid, namespace: "shop".into(), attempt: 0 };
        CreateContainerRequest {
            pod_sandbox_id: self.sandbox.into(),
            config: Some(config),
            sandbox_config: Some(PodSandboxConfig { metadata: Some(metadata), ..Default::default() }),
        }
        .encode_to_vec()
    }

    /// One with an environment of about so many bytes.
    pub(crate) fn of_size(bytes: usize) -> Self {
        let value = "v".repeat(bytes.min(60_000) / 2);
        let count = bytes / value.len().max(1);
        let env = (0..count.max(1)).map(|n| (format!("VARIABLE_{n}"), format!("{value}{n}"))).collect();
        Self { env, ..Self::default() }
    }
}

/// The value of a label in a request.
pub(crate) fn label(request: &Bytes, key: &str) -> Option<String> {
    let config = last(request, [2]).unwrap()?.as_bytes()?;
    let value = crisp::wire::entry(config, [9], key).unwrap()?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}
