//! Which calls are looked at. Everything else passes through, whether crisp has heard of it or not.

use std::sync::Arc;

use crate::cri::Method;
use crate::intercept::{Feature, Features};

/// The one place that decides what is intercepted.
#[derive(Debug, Clone, Default)]
pub struct Router {
    features: Features,
}

impl Router {
    /// A router to these features.
    pub fn new(features: Features) -> Self {
        Self { features }
    }

    /// The features that image calls alone never reach.
    pub fn beyond_images(&self) -> String {
        self.features.beyond_images()
    }

    /// The features that look at a call, in order. None: the call passes through as frames.
    pub fn route(&self, method: Method) -> &[Arc<dyn Feature>] {
        match method {
            Method::PULL_IMAGE => &self.features.pull,
            Method::IMAGE_STATUS => &self.features.image_status,
            Method::LIST_IMAGES | Method::STREAM_IMAGES | Method::REMOVE_IMAGE => &self.features.image,
            Method::CREATE_CONTAINER
            | Method::CONTAINER_STATUS
            | Method::LIST_CONTAINERS
            | Method::STREAM_CONTAINERS
            | Method::GET_CONTAINER_EVENTS
            | Method::POD_SANDBOX_STATUS
            | Method::STOP_CONTAINER
            // Stats carry the labels of their containers.
            | Method::CONTAINER_STATS
            | Method::LIST_CONTAINER_STATS
            | Method::STREAM_CONTAINER_STATS
            | Method::POD_SANDBOX_STATS
            | Method::LIST_POD_SANDBOX_STATS
            | Method::STREAM_POD_SANDBOX_STATS => &self.features.container,
            Method::RUN_POD_SANDBOX => &self.features.sandbox,
            _ => &[],
        }
    }
}
