//! Sandboxes and containers as records: they have every state a runtime's have, and no process.
//!
//! They live in memory and are gone when the process ends, as running containers would be gone after a reboot.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_cri::v1::{
    ContainerConfig, ContainerEventResponse, ContainerEventType, ContainerResources, ContainerState,
    PodSandboxConfig, PodSandboxState, UpdateContainerResourcesRequest,
};
use tokio::sync::broadcast;
use tonic::Status;

use super::digest::hex;
use super::state::{Container, Sandbox, State, UsedImage, key};

/// Most sandboxes, and most containers, that are kept.
const MAX_RECORDS: usize = 10_000;
/// Events that a slow reader may lag behind before its stream is ended.
const MAX_LAG: usize = 1024;
/// Exit code of a process that was killed.
const KILLED: i32 = 137;

/// All sandboxes and containers.
#[derive(Debug)]
pub(super) struct Records {
    /// Held for moments only, never across an `.await`.
    state: Mutex<State>,
    events: broadcast::Sender<ContainerEventResponse>,
}

// === impl Records ===

impl Records {
    /// No records yet.
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), events: broadcast::channel(MAX_LAG).0 }
    }

    /// What happens from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<ContainerEventResponse> {
        self.events.subscribe()
    }

    /// Looks at the records. The answer must be quick: everybody else waits.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Makes a sandbox, which is ready at once.
    pub(super) fn run_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<String, Status> {
        let metadata = config.metadata.clone().ok_or_else(|| missing("sandbox config has no metadata"))?;
        let mut state = self.lock();
        full(state.sandboxes.len(), "sandboxes")?;
        let same = |sandbox: &&Sandbox| sandbox.config.metadata.as_ref() == Some(&metadata);
        if let Some(other) = state.sandboxes.values().find(same) {
            return Err(reserved("sandbox", &metadata.name, &other.id));
        }
        let id = new_id()?;
        let ready = PodSandboxState::SandboxReady;
        let sandbox = Sandbox { id: id.clone(), config, runtime_handler, state: ready, created_at: now() };
        state.sandboxes.insert(id.clone(), sandbox);
        self.emit(&state, &id, &id, ContainerEventType::ContainerCreatedEvent);
        self.emit(&state, &id, &id, ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// Stops a sandbox and kills its containers; an absent one is no error.
    pub(super) fn stop_sandbox(&self, id: &str) {
        let mut state = self.lock();
        if let Some(id) = key(&state.sandboxes, id) {
            self.stop_sandbox_in(&mut state, &id);
        }
    }

    /// Removes a sandbox and its containers; an absent one is no error.
    pub(super) fn remove_sandbox(&self, id: &str) {
        let mut state = self.lock();
        let Some(id) = key(&state.sandboxes, id) else { return };
        self.stop_sandbox_in(&mut state, &id);
        for container in state.containers_of(&id) {
            self.remove_container_in(&mut state, &container);
        }
        self.emit(&state, &id, &id, ContainerEventType::ContainerDeletedEvent);
        state.sandboxes.remove(&id);
    }

    /// Makes a container in a ready sandbox.
    pub(super) fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        image: UsedImage,
    ) -> Result<String, Status> {
        let metadata = config.metadata.clone().ok_or_else(|| missing("container config has no metadata"))?;
        let mut state = self.lock();
        full(state.containers.len(), "containers")?;
        let sandbox = state.sandbox(sandbox)?;
        if sandbox.state != PodSandboxState::SandboxReady {
            return Err(Status::unknown(format!("sandbox container {:?} is not running", sandbox.id)));
        }
        let id = new_id()?;
        let container = Container {
            id: id.clone(),
            sandbox_id: sandbox.id.clone(),
            log_directory: sandbox.config.log_directory.clone(),
            resources: ContainerResources {
                linux: config.linux.as_ref().and_then(|linux| linux.resources.clone()),
                windows: config.windows.as_ref().and_then(|windows| windows.resources.clone()),
            },
            config,
            image,
            state: ContainerState::ContainerCreated,
            created_at: now(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
        };
        let same = |other: &&Container| {
            other.sandbox_id == container.sandbox_id && other.config.metadata.as_ref() == Some(&metadata)
        };
        if let Some(other) = state.containers.values().find(same) {
            return Err(reserved("container", &metadata.name, &other.id));
        }
        let sandbox = container.sandbox_id.clone();
        state.containers.insert(id.clone(), container);
        self.emit(&state, &sandbox, &id, ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    /// Starts a container that was created and not started yet.
    pub(super) fn start_container(&self, id: &str) -> Result<(), Status> {
        let mut state = self.lock();
        let container = state.container_mut(id)?;
        if container.state != ContainerState::ContainerCreated {
            let text = format!("container {:?} is in {} state", container.id, container.state.as_str_name());
            return Err(Status::failed_precondition(text));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now();
        let (sandbox, id) = (container.sandbox_id.clone(), container.id.clone());
        self.emit(&state, &sandbox, &id, ContainerEventType::ContainerStartedEvent);
        Ok(())
    }

    /// Stops a container; an absent or stopped one is no error. Given time it ends well, without it it is killed.
    pub(super) fn stop_container(&self, id: &str, timeout: i64) {
        let mut state = self.lock();
        if let Some(id) = key(&state.containers, id) {
            self.stop_container_in(&mut state, &id, if timeout > 0 { 0 } else { KILLED });
        }
    }

    /// Removes a container, killing it first if it runs; an absent one is no error.
    pub(super) fn remove_container(&self, id: &str) {
        let mut state = self.lock();
        if let Some(id) = key(&state.containers, id) {
            self.remove_container_in(&mut state, &id);
        }
    }

    /// Takes new resources for a container that has not ended.
    pub(super) fn update_resources(&self, update: UpdateContainerResourcesRequest) -> Result<(), Status> {
        let mut state = self.lock();
        let container = state.container_mut(&update.container_id)?;
        if container.state == ContainerState::ContainerExited {
            return Err(Status::failed_precondition(format!("container {:?} has exited", container.id)));
        }
        container.resources.linux = update.linux.or(container.resources.linux.take());
        container.resources.windows = update.windows.or(container.resources.windows.take());
        Ok(())
    }

    fn stop_sandbox_in(&self, state: &mut State, id: &str) {
        for container in state.containers_of(id) {
            self.stop_container_in(state, &container, KILLED);
        }
        let Some(sandbox) = state.sandboxes.get_mut(id) else { return };
        if std::mem::replace(&mut sandbox.state, PodSandboxState::SandboxNotready)
            == PodSandboxState::SandboxReady
        {
            self.emit(state, id, id, ContainerEventType::ContainerStoppedEvent);
        }
    }

    fn stop_container_in(&self, state: &mut State, id: &str, exit_code: i32) {
        let Some(container) = state.containers.get_mut(id) else { return };
        // One that was never started has nothing to stop, and stays startable, as in containerd.
        if container.state != ContainerState::ContainerRunning {
            return;
        }
        container.state = ContainerState::ContainerExited;
        container.finished_at = now();
        container.exit_code = exit_code;
        let sandbox = container.sandbox_id.clone();
        self.emit(state, &sandbox, id, ContainerEventType::ContainerStoppedEvent);
    }

    fn remove_container_in(&self, state: &mut State, id: &str) {
        self.stop_container_in(state, id, KILLED);
        if let Some(container) = state.containers.remove(id) {
            self.emit(state, &container.sandbox_id, id, ContainerEventType::ContainerDeletedEvent);
        }
    }

    /// Tells everybody who listens; under the lock, so that events come in the order of what they report.
    fn emit(&self, state: &State, sandbox: &str, id: &str, kind: ContainerEventType) {
        if self.events.receiver_count() > 0 {
            // It fails only if the last listener left just now.
            let _ = self.events.send(state.event(sandbox, id, kind));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn new_id() -> Result<String, Status> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Status::internal(format!("no random bytes for an id: {error}")))?;
    Ok(hex(&bytes))
}

fn full(count: usize, what: &str) -> Result<(), Status> {
    if count < MAX_RECORDS {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!("the embedded runtime keeps at most {MAX_RECORDS} {what}")))
}

fn missing(what: &str) -> Status {
    Status::invalid_argument(what)
}

fn reserved(kind: &str, name: &str, id: &str) -> Status {
    Status::already_exists(format!("failed to reserve {kind} name {name:?}: it is reserved for {id:?}"))
}
