//! PullImage: handed to the coordinator, which answers it with what the one flight for that image brings.

use futures_util::FutureExt;

use crate::cri::{Call, Forward, Method, Plan, Policy, Raw};
use crate::error::{Error, Kind, Origin};
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::pull::{Coordinator, Request};
use std::sync::Arc;

/// Pulls through the coordinator.
#[derive(Debug)]
pub(super) struct Pulls {
    coordinator: Coordinator,
    metrics: Arc<Metrics>,
}

impl Pulls {
    pub(super) fn new(coordinator: Coordinator, metrics: Arc<Metrics>) -> Self {
        Self { coordinator, metrics }
    }
}

impl Feature for Pulls {
    fn name(&self) -> &'static str {
        "pull"
    }

    /// A pull that cannot be read goes to the runtime as it came.
    fn policy(&self) -> Policy {
        Policy::Open
    }

    fn plan(&self, call: &Call, _: &mut Forward) -> Result<Option<Plan>, Error> {
        if call.method != Method::PULL_IMAGE {
            return Ok(None);
        }
        let Some(request) = Request::read(call, self.coordinator.bare_is_background())? else {
            return Ok(None);
        };
        self.metrics.read_request(call.method);
        let (coordinator, deadline) = (self.coordinator.clone(), call.deadline);
        let pull = async move {
            let pull = coordinator.pull(request);
            match deadline {
                None => pull.await,
                // The caller's own deadline ends only its waiting.
                Some(deadline) => tokio::time::timeout_at(deadline.into(), pull).await.unwrap_or_else(|_| {
                    Raw::error(&Error::new(
                        Kind::Deadline,
                        Origin::Kubelet,
                        "the caller's deadline passed while the image was being pulled; the pull goes on for a \
                         moment, so that a retry can join it",
                    ))
                }),
            }
        };
        Ok(Some(Plan::Delegate(pull.boxed())))
    }
}
