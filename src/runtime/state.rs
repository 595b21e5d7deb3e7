//! What a sandbox and a container are, and how one is found by its id.

use std::collections::BTreeMap;

use k8s_cri::v1::{ContainerConfig, ContainerResources, ContainerState, PodSandboxConfig, PodSandboxState};
use tonic::Status;

/// The records by id; ordered, so that the beginning of an id finds it.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
}

/// One pod sandbox.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) config: PodSandboxConfig,
    pub(super) runtime_handler: String,
    pub(super) state: PodSandboxState,
    pub(super) created_at: i64,
}

/// One container.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) sandbox_id: String,
    pub(super) log_directory: String,
    pub(super) config: ContainerConfig,
    pub(super) image: UsedImage,
    pub(super) resources: ContainerResources,
    pub(super) state: ContainerState,
    pub(super) created_at: i64,
    pub(super) started_at: i64,
    pub(super) finished_at: i64,
    pub(super) exit_code: i32,
}

/// The image that a container was made from, as it was then.
#[derive(Clone, Debug)]
pub(super) struct UsedImage {
    /// `sha256:…` of the config.
    pub(super) id: String,
    /// First tag, else the id: what ContainerStatus shows.
    pub(super) name: String,
    /// First digest reference, else the id.
    pub(super) reference: String,
}

// === impl State ===

impl State {
    /// The sandbox with this id, or with the only id that begins so.
    pub(super) fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        let found = key(&self.sandboxes, id).and_then(|id| self.sandboxes.get(&id));
        found.ok_or_else(|| Status::not_found(format!("failed to find sandbox {id:?}: not found")))
    }

    /// The container with this id, or with the only id that begins so.
    pub(super) fn container(&self, id: &str) -> Result<&Container, Status> {
        let found = key(&self.containers, id).and_then(|id| self.containers.get(&id));
        found.ok_or_else(|| no_container(id))
    }

    pub(super) fn container_mut(&mut self, id: &str) -> Result<&mut Container, Status> {
        let found = key(&self.containers, id).and_then(|id| self.containers.get_mut(&id));
        found.ok_or_else(|| no_container(id))
    }

    /// Ids of the containers of a sandbox.
    pub(super) fn containers_of(&self, sandbox: &str) -> Vec<String> {
        let inside = self.containers.values().filter(|container| container.sandbox_id == sandbox);
        inside.map(|container| container.id.clone()).collect()
    }
}

/// The full id for the beginning of one; `None` if none or several begin so.
pub(super) fn key<T>(records: &BTreeMap<String, T>, id: &str) -> Option<String> {
    if id.is_empty() {
        return None;
    }
    let mut matching = records.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
    let (key, _) = matching.next()?;
    match matching.next() {
        Some(_) if key != id => None,
        _ => Some(key.clone()),
    }
}

fn no_container(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find container {id:?}: not found"))
}
