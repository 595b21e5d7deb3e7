//! Calls of the image service.

use std::sync::Arc;

use crate::cri::{Call, Forward, Method, Plan, Policy, view};
use crate::error::Error;
use crate::intercept::{Feature, count_entries, observe_replies, read};
use crate::metrics::Metrics;

/// Reads image calls as views and counts them.
#[derive(Debug)]
pub(super) struct Observer {
    metrics: Arc<Metrics>,
}

const NAME: &str = "image-observer";

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
            Method::PULL_IMAGE => {
                let request: view::PullImageRequest = read(&call.message)?;
                tracing::debug!(
                    image = request.image.map(|spec| spec.image).unwrap_or_default(),
                    pod = request.sandbox_config.and_then(|config| config.metadata).map(|pod| pod.name),
                    "pull asked for"
                );
                forward.reply.push(observe_replies::<view::PullImageResponse>(NAME, call, metrics));
            }
            Method::IMAGE_STATUS => {
                read::<view::ImageStatusRequest>(&call.message)?;
                forward.reply.push(observe_replies::<view::ImageStatusResponse>(NAME, call, metrics));
            }
            Method::REMOVE_IMAGE => {
                read::<view::RemoveImageRequest>(&call.message)?;
            }
            Method::LIST_IMAGES | Method::STREAM_IMAGES => {
                forward.reply.push(count_entries(NAME, call, metrics));
            }
            _ => return Ok(None),
        }
        metrics.read_request(call.method);
        Ok(None)
    }
}
