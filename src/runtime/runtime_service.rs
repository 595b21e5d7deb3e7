//! The CRI's RuntimeService over the records.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_cri::v1::runtime_service_server::RuntimeService;
use k8s_cri::v1::*;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};

use super::records::{Records, now};
use super::state::{Container, UsedImage};
use super::store::Store;

/// Why calls that need a process are refused.
const NO_PROCESSES: &str = "the embedded runtime keeps records only; it runs no processes";

/// Answers the sandbox and container calls.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) records: Arc<Records>,
    pub(super) images: Arc<Store>,
    /// Ends event streams, which otherwise have no end.
    pub(super) stop: CancellationToken,
}

// === impl Runtime ===

#[async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        answer(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "crisp-embedded".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let condition =
            |name: &str| RuntimeCondition { r#type: name.to_owned(), status: true, ..Default::default() };
        let mut info = HashMap::new();
        if request.get_ref().verbose {
            info.insert("embedded".to_owned(), format!("{{\"note\":\"{NO_PROCESSES}\"}}"));
        }
        answer(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            }),
            info,
            runtime_handlers: vec![RuntimeHandler::default()],
            features: Some(RuntimeFeatures::default()),
        })
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        // Nothing is put into a cgroup here; this is the driver that needs no systemd.
        let cgroup_driver = CgroupDriver::Cgroupfs as i32;
        answer(RuntimeConfigResponse { linux: Some(LinuxRuntimeConfiguration { cgroup_driver }) })
    }

    async fn update_runtime_config(
        &self,
        _: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        answer(UpdateRuntimeConfigResponse {})
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let request = request.into_inner();
        let pod_sandbox_id =
            self.records.run_sandbox(request.config.unwrap_or_default(), request.runtime_handler)?;
        answer(RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        self.records.stop_sandbox(&request.get_ref().pod_sandbox_id);
        answer(StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        self.records.remove_sandbox(&request.get_ref().pod_sandbox_id);
        answer(RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let request = request.into_inner();
        answer(self.records.read(|state| {
            let sandbox = state.sandbox(&request.pod_sandbox_id)?;
            Ok::<_, Status>(PodSandboxStatusResponse {
                status: Some(sandbox.status()),
                info: info(request.verbose, &sandbox.config),
                containers_statuses: state.statuses_in(&sandbox.id),
                timestamp: now(),
            })
        })?)
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let items = self.records.read(|state| state.list_sandboxes(request.get_ref().filter.as_ref()));
        answer(ListPodSandboxResponse { items })
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("container config is missing"))?;
        let name = config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        let Some(image) = self.images.get(&name) else {
            return Err(Status::not_found(format!("failed to resolve image {name:?}: not found")));
        };
        let first = |names: Vec<String>| names.into_iter().next().unwrap_or_else(|| image.id.clone());
        let image =
            UsedImage { name: first(image.repo_tags), reference: first(image.repo_digests), id: image.id };
        let container_id = self.records.create_container(&request.pod_sandbox_id, config, image)?;
        answer(CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        self.records.start_container(&request.get_ref().container_id)?;
        answer(StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        self.records.stop_container(&request.get_ref().container_id, request.get_ref().timeout);
        answer(StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        self.records.remove_container(&request.get_ref().container_id);
        answer(RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let containers = self.records.read(|state| state.list_containers(request.get_ref().filter.as_ref()));
        answer(ListContainersResponse { containers })
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let request = request.into_inner();
        answer(self.records.read(|state| {
            let container = state.container(&request.container_id)?;
            let info = info(request.verbose, &container.config);
            Ok::<_, Status>(ContainerStatusResponse { status: Some(container.status()), info })
        })?)
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        self.records.update_resources(request.into_inner())?;
        answer(UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Result<Response<ReopenContainerLogResponse>, Status> {
        let id = &request.get_ref().container_id;
        let state = self.records.read(|state| state.container(id).map(|container| container.state))?;
        if state != ContainerState::ContainerRunning {
            return Err(Status::unknown("container is not running"));
        }
        answer(ReopenContainerLogResponse {})
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Result<Response<ContainerStatsResponse>, Status> {
        let id = &request.get_ref().container_id;
        let stats = self.records.read(|state| state.container(id).map(Container::stats))?;
        answer(ContainerStatsResponse { stats: Some(stats) })
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Result<Response<ListContainerStatsResponse>, Status> {
        let stats = self.records.read(|state| state.container_stats(request.get_ref().filter.as_ref()));
        answer(ListContainerStatsResponse { stats })
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Result<Response<PodSandboxStatsResponse>, Status> {
        let id = &request.get_ref().pod_sandbox_id;
        let stats = self.records.read(|state| state.sandbox(id).map(|sandbox| state.stats_of(sandbox)))?;
        answer(PodSandboxStatsResponse { stats: Some(stats) })
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Result<Response<ListPodSandboxStatsResponse>, Status> {
        let stats = self.records.read(|state| state.sandbox_stats(request.get_ref().filter.as_ref()));
        answer(ListPodSandboxStatsResponse { stats })
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> Result<Response<ListMetricDescriptorsResponse>, Status> {
        answer(ListMetricDescriptorsResponse::default())
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> Result<Response<ListPodSandboxMetricsResponse>, Status> {
        answer(ListPodSandboxMetricsResponse::default())
    }

    type GetContainerEventsStream =
        Pin<Box<dyn Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        // `None` as the state says that the stream ends after what was sent last.
        let events = stream::unfold(Some(self.records.subscribe()), |events| async move {
            let mut events = events?;
            match events.recv().await {
                Ok(event) => Some((Ok(event), Some(events))),
                Err(RecvError::Closed) => None,
                // Gaps must not pass unseen: the client lists again and asks for a new stream.
                Err(RecvError::Lagged(missed)) => {
                    Some((Err(Status::data_loss(format!("{missed} events were missed"))), None))
                }
            }
        });
        answer(events.take_until(self.stop.clone().cancelled_owned()).boxed())
    }

    async fn exec_sync(&self, _: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        Err(Status::unimplemented(NO_PROCESSES))
    }

    async fn exec(&self, _: Request<ExecRequest>) -> Result<Response<ExecResponse>, Status> {
        Err(Status::unimplemented(NO_PROCESSES))
    }

    async fn attach(&self, _: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        Err(Status::unimplemented(NO_PROCESSES))
    }

    async fn port_forward(
        &self,
        _: Request<PortForwardRequest>,
    ) -> Result<Response<PortForwardResponse>, Status> {
        Err(Status::unimplemented(NO_PROCESSES))
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> Result<Response<CheckpointContainerResponse>, Status> {
        Err(Status::unimplemented(NO_PROCESSES))
    }
}

fn answer<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}

/// The config a record was made from, for `crictl inspect`.
fn info(verbose: bool, config: &impl serde::Serialize) -> HashMap<String, String> {
    let config = verbose.then(|| serde_json::to_string(config).ok()).flatten();
    config.map(|config| ("info".to_owned(), format!(r#"{{"config":{config}}}"#))).into_iter().collect()
}
