//! Calls about containers.

use std::sync::Arc;

use crate::cri::{Call, Forward, Method, Plan, Policy, read, view};
use crate::error::Error;
use crate::intercept::{Feature, count_entries, observe_replies};
use crate::metrics::Metrics;

/// Reads container calls as views and counts them.
#[derive(Debug)]
pub(super) struct Observer {
    metrics: Arc<Metrics>,
}

const NAME: &str = "container-observer";

impl Observer {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl Feature for Observer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn policy(&self) -> Policy {
        Policy::Open
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        let metrics = &self.metrics;
        match call.method {
            Method::CREATE_CONTAINER => {
                let request: view::CreateContainerRequest = read(&call.message)?;
                tracing::debug!(
                    sandbox = request.pod_sandbox_id,
                    container = request.config.and_then(|config| config.metadata).map(|meta| meta.name),
                    "container to be created"
                );
                forward.reply.push(observe_replies::<view::CreateContainerResponse>(NAME, call, metrics));
            }
            Method::CONTAINER_STATUS => {
                read::<view::ContainerStatusRequest>(&call.message)?;
                forward.reply.push(observe_replies::<view::ContainerStatusResponse>(NAME, call, metrics));
            }
            Method::LIST_CONTAINERS | Method::STREAM_CONTAINERS => {
                forward.reply.push(count_entries(NAME, call, metrics));
            }
            Method::GET_CONTAINER_EVENTS => {
                forward.reply.push(observe_replies::<view::ContainerEventResponse>(NAME, call, metrics));
            }
            _ => return Ok(None),
        }
        metrics.read_request(call.method);
        Ok(None)
    }
}
