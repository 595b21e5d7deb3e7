//! PullImage: handed to the coordinator, which answers it with what the one flight for that image brings.

use std::sync::Arc;

use futures_util::FutureExt;
use tonic::Code;

use crate::cri::{Call, Forward, Method, Plan, Policy, Raw, read, view};
use crate::error::{Error, Kind, Origin};
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::prepull::Sight;
use crate::pull::{Coordinator, Request};

/// Pulls through the coordinator.
#[derive(Debug)]
pub(super) struct Pulls {
    coordinator: Coordinator,
    sight: Sight,
    metrics: Arc<Metrics>,
}

impl Pulls {
    pub(super) fn new(coordinator: Coordinator, sight: Sight, metrics: Arc<Metrics>) -> Self {
        Self { coordinator, sight, metrics }
    }
}

/// Pulls, and says so to those who would hide or remove the image, before the caller hears of it.
async fn pull(coordinator: Coordinator, sight: Sight, request: Request) -> Raw {
    let reference = request.reference.clone();
    let _pulling = sight.pulling(&reference).await;
    let reply = coordinator.pull(request).await;
    if reply.code() == Code::Ok {
        let pulled = reply.unary_message().and_then(|message| read::<view::PullImageResponse>(&message));
        sight.brought(&reference, pulled.ok().as_ref().map(|pulled| pulled.image_ref.as_str()));
    }
    reply
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
        let deadline = call.deadline;
        let pull = pull(self.coordinator.clone(), self.sight.clone(), request);
        let pull = async move {
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
