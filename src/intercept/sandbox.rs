//! Calls about sandboxes.

use std::sync::Arc;

use crate::cri::{Call, Forward, Method, Plan, Policy, read, view};
use crate::error::Error;
use crate::intercept::{Feature, observe_replies};
use crate::metrics::Metrics;

/// Reads sandbox calls as views and counts them.
#[derive(Debug)]
pub(super) struct Observer {
    metrics: Arc<Metrics>,
}

pub(super) const NAME: &str = "sandbox-observer";

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
        if call.method == Method::RUN_POD_SANDBOX {
            let request: view::RunPodSandboxRequest = read(&call.message)?;
            let pod = request.config.and_then(|config| config.metadata).unwrap_or_default();
            tracing::debug!(namespace = pod.namespace, pod = pod.name, "sandbox to be made");
            forward.reply.push(observe_replies::<view::RunPodSandboxResponse>(NAME, call, &self.metrics));
            self.metrics.read_request(call.method);
        }
        Ok(None)
    }
}
