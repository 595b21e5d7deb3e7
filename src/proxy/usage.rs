//! Notices when crisp is used as image endpoint only, and says once what that switches off.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cri::method::Service;

/// How long after the first image call a runtime call is waited for. A kubelet makes both within seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which services clients have called.
#[derive(Debug, Default)]
pub struct Usage {
    image: AtomicBool,
    runtime: AtomicBool,
    first_image_call: Notify,
}

impl Usage {
    /// Notes a call.
    pub(super) fn saw(&self, service: Service) {
        match service {
            Service::Runtime => self.runtime.store(true, Ordering::Relaxed),
            Service::Image if !self.image.load(Ordering::Relaxed) => {
                self.image.store(true, Ordering::Relaxed);
                self.first_image_call.notify_one();
            }
            Service::Image => {}
        }
    }

    /// Waits for the first image call, then tells whether no runtime call has come by the end of `patience`.
    pub async fn images_only(&self, patience: Duration) -> bool {
        self.first_image_call.notified().await;
        tokio::time::sleep(patience).await;
        !self.runtime.load(Ordering::Relaxed)
    }

    /// Logs, at most once, that only the image half of crisp is in use and which features are therefore off.
    pub async fn report(&self, patience: Duration, off: &str) {
        if self.images_only(patience).await {
            tracing::info!(
                off,
                "only image calls arrive: crisp serves as image endpoint. Features that need container and pod calls \
                 are off; point the kubelet's containerRuntimeEndpoint here to use them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn image_calls_alone_are_noticed() {
        let usage = Usage::default();
        usage.saw(Service::Image);
        assert!(usage.images_only(PATIENCE).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_call_means_full_service() {
        let usage = Usage::default();
        usage.saw(Service::Image);
        usage.saw(Service::Runtime);
        assert!(!usage.images_only(PATIENCE).await);
    }
}
