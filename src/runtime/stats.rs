//! Statistics of containers that run nothing: well-formed, and zero.

use k8s_cri::v1;

use super::records::now;
use super::state::{Container, Sandbox, State};
use super::views::has_labels;

/// Measured, and nothing: not the same as absent.
const ZERO: Option<v1::UInt64Value> = Some(v1::UInt64Value { value: 0 });

// === impl State ===

impl State {
    /// Statistics of the running containers that `filter` selects.
    pub(super) fn container_stats(
        &self,
        filter: Option<&v1::ContainerStatsFilter>,
    ) -> Vec<v1::ContainerStats> {
        let selected = |container: &&Container| {
            container.state == v1::ContainerState::ContainerRunning
                && filter.is_none_or(|filter| {
                    container.id.starts_with(&filter.id)
                        && container.sandbox_id.starts_with(&filter.pod_sandbox_id)
                        && has_labels(&container.config.labels, &filter.label_selector)
                })
        };
        self.containers.values().filter(selected).map(Container::stats).collect()
    }

    /// Statistics of the ready sandboxes that `filter` selects.
    pub(super) fn sandbox_stats(
        &self,
        filter: Option<&v1::PodSandboxStatsFilter>,
    ) -> Vec<v1::PodSandboxStats> {
        let selected = |sandbox: &&Sandbox| {
            sandbox.state == v1::PodSandboxState::SandboxReady
                && filter.is_none_or(|filter| {
                    sandbox.id.starts_with(&filter.id)
                        && has_labels(&sandbox.config.labels, &filter.label_selector)
                })
        };
        self.sandboxes.values().filter(selected).map(|sandbox| self.stats_of(sandbox)).collect()
    }

    /// Statistics of one sandbox and its running containers.
    pub(super) fn stats_of(&self, sandbox: &Sandbox) -> v1::PodSandboxStats {
        let inside = v1::ContainerStatsFilter { pod_sandbox_id: sandbox.id.clone(), ..Default::default() };
        v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: sandbox.id.clone(),
                metadata: sandbox.config.metadata.clone(),
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                cpu: Some(cpu()),
                memory: Some(memory()),
                network: Some(v1::NetworkUsage { timestamp: now(), ..Default::default() }),
                process: Some(v1::ProcessUsage { timestamp: now(), process_count: ZERO }),
                containers: self.container_stats(Some(&inside)),
            }),
            windows: None,
        }
    }
}

// === impl Container ===

impl Container {
    /// Statistics of one container.
    pub(super) fn stats(&self) -> v1::ContainerStats {
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: self.id.clone(),
                metadata: self.config.metadata.clone(),
                labels: self.config.labels.clone(),
                annotations: self.config.annotations.clone(),
            }),
            cpu: Some(cpu()),
            memory: Some(memory()),
            writable_layer: Some(v1::FilesystemUsage {
                timestamp: now(),
                fs_id: Some(v1::FilesystemIdentifier::default()),
                used_bytes: ZERO,
                inodes_used: ZERO,
            }),
            swap: Some(v1::SwapUsage {
                timestamp: now(),
                swap_available_bytes: ZERO,
                swap_usage_bytes: ZERO,
            }),
        }
    }
}

fn cpu() -> v1::CpuUsage {
    v1::CpuUsage { timestamp: now(), usage_core_nano_seconds: ZERO, usage_nano_cores: ZERO }
}

fn memory() -> v1::MemoryUsage {
    v1::MemoryUsage {
        timestamp: now(),
        working_set_bytes: ZERO,
        available_bytes: ZERO,
        usage_bytes: ZERO,
        rss_bytes: ZERO,
        page_faults: ZERO,
        major_page_faults: ZERO,
    }
}
