//! Records as the CRI shows them, and which of them a filter selects.

use std::collections::HashMap;

use k8s_cri::v1;

use super::records::now;
use super::state::{Container, Sandbox, State};

// === impl State ===

impl State {
    /// The sandboxes that `filter` selects.
    pub(super) fn list_sandboxes(&self, filter: Option<&v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let selected = |sandbox: &&Sandbox| {
            filter.is_none_or(|filter| {
                sandbox.id.starts_with(&filter.id)
                    && filter.state.is_none_or(|wanted| wanted.state == sandbox.state as i32)
                    && has_labels(&sandbox.config.labels, &filter.label_selector)
            })
        };
        self.sandboxes.values().filter(selected).map(Sandbox::listed).collect()
    }

    /// The containers that `filter` selects.
    pub(super) fn list_containers(&self, filter: Option<&v1::ContainerFilter>) -> Vec<v1::Container> {
        let selected = |container: &&Container| {
            filter.is_none_or(|filter| {
                container.id.starts_with(&filter.id)
                    && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
                    && filter.state.is_none_or(|wanted| wanted.state == container.state as i32)
                    && has_labels(&container.config.labels, &filter.label_selector)
            })
        };
        self.containers.values().filter(selected).map(Container::listed).collect()
    }

    /// The statuses of a sandbox's containers.
    pub(super) fn statuses_in(&self, sandbox: &str) -> Vec<v1::ContainerStatus> {
        let inside = self.containers.values().filter(|container| container.sandbox_id == sandbox);
        inside.map(Container::status).collect()
    }

    /// An event about `id`, with the sandbox as it is now.
    pub(super) fn event(
        &self,
        sandbox: &str,
        id: &str,
        kind: v1::ContainerEventType,
    ) -> v1::ContainerEventResponse {
        v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            created_at: now(),
            pod_sandbox_status: self.sandboxes.get(sandbox).map(Sandbox::status),
            containers_statuses: self.statuses_in(sandbox),
        }
    }
}

// === impl Sandbox ===

impl Sandbox {
    fn listed(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state as i32,
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }

    /// The sandbox in full. It has no network, so it has no address.
    pub(super) fn status(&self) -> v1::PodSandboxStatus {
        let security = self.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = security.and_then(|security| security.namespace_options.clone());
        v1::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state as i32,
            created_at: self.created_at,
            network: Some(v1::PodSandboxNetworkStatus::default()),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }
}

// === impl Container ===

impl Container {
    fn listed(&self) -> v1::Container {
        v1::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox_id.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image.id.clone(),
            state: self.state as i32,
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image.id.clone(),
        }
    }

    /// The container in full. Like containerd it shows the image's own tag here, and in lists what the kubelet sent.
    pub(super) fn status(&self) -> v1::ContainerStatus {
        let user_specified = self.config.image.as_ref().map(|image| image.user_specified_image.clone());
        let reason = match (self.state, self.exit_code) {
            (v1::ContainerState::ContainerExited, 0) => "Completed",
            (v1::ContainerState::ContainerExited, _) => "Error",
            _ => "",
        };
        v1::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state as i32,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: Some(v1::ImageSpec {
                image: self.image.name.clone(),
                user_specified_image: user_specified.unwrap_or_default(),
                ..Default::default()
            }),
            image_ref: self.image.reference.clone(),
            reason: reason.to_owned(),
            message: String::new(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path(),
            resources: Some(self.resources.clone()),
            image_id: self.image.id.clone(),
            user: None,
        }
    }

    fn log_path(&self) -> String {
        match (self.log_directory.as_str(), self.config.log_path.as_str()) {
            ("", _) | (_, "") => String::new(),
            (directory, path) => format!("{}/{path}", directory.trim_end_matches('/')),
        }
    }
}

/// Whether `labels` holds every pair of `selector`.
pub(super) fn has_labels(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
