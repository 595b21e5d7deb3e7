//! What is counted of pods that ask for Services.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::buckets;

/// The families.
#[derive(Debug)]
pub struct Links {
    /// Pods that wait for Services now.
    pub held: Gauge,
    refused: Family<ReasonLabel, Counter>,
    wait: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Links {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let links = Self {
            held: Gauge::default(),
            refused: Family::default(),
            // 100 ms to 4 minutes.
            wait: Histogram::new(buckets(0.1, 3.0, 8)),
        };
        registry.register("links_held", "Pods that wait for Services", links.held.clone());
        registry.register(
            "links_refused",
            "Sandboxes and containers that were refused for want of Services, by reason",
            links.refused.clone(),
        );
        registry.register(
            "links_wait_seconds",
            "Time that pods waited for Services, however it ended",
            links.wait.clone(),
        );
        links
    }

    /// Counts a refusal.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts the end of waiting.
    pub fn waited(&self, time: Duration) {
        self.wait.observe(time.as_secs_f64());
    }
}
