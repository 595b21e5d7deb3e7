//! What is counted of pre-pulls.

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
pub struct Prepull {
    items: Family<ItemLabels, Gauge>,
    attempts: Family<OutcomeLabel, Counter>,
    failures: Family<ReasonLabel, Counter>,
    wait: Histogram,
    run: Histogram,
    kept: Family<HowLabel, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ItemLabels {
    state: &'static str,
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HowLabel {
    how: &'static str,
}

impl Prepull {
    pub(super) fn new(registry: &mut Registry) -> Self {
        // 100 ms to 7 hours.
        let seconds = || Histogram::new(buckets(0.1, 4.0, 10));
        let prepull = Self {
            items: Family::default(),
            attempts: Family::default(),
            failures: Family::default(),
            wait: seconds(),
            run: seconds(),
            kept: Family::default(),
        };
        registry.register("prepull_items", "Items of the queue, by state and class", prepull.items.clone());
        registry.register("prepull_attempts", "Attempts that ended, by outcome", prepull.attempts.clone());
        registry.register(
            "prepull_failures",
            "Attempts that failed or were put off, by reason",
            prepull.failures.clone(),
        );
        registry.register(
            "prepull_wait_seconds",
            "Time from asking for an image to its first attempt",
            prepull.wait.clone(),
        );
        registry.register("prepull_run_seconds", "Time of an attempt", prepull.run.clone());
        registry.register(
            "prepull_kept_bytes",
            "Bytes of images that are pinned or parked",
            prepull.kept.clone(),
        );
        prepull
    }

    /// Counts the end of an attempt.
    pub fn attempt_ended(&self, outcome: &'static str, failure: Option<&'static str>, ran: Duration) {
        self.attempts.get_or_create(&OutcomeLabel { outcome }).inc();
        if let Some(reason) = failure {
            self.failures.get_or_create(&ReasonLabel { reason }).inc();
        }
        self.run.observe(ran.as_secs_f64());
    }

    /// Counts the first start of an item.
    pub fn started(&self, waited: Duration) {
        self.wait.observe(waited.as_secs_f64());
    }

    /// Notes how many items there are.
    pub fn set_items(&self, state: &'static str, class: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.items.get_or_create(&ItemLabels { state, class }).set(count);
    }

    /// Notes how much is kept.
    pub fn set_kept(&self, how: &'static str, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.kept.get_or_create(&HowLabel { how }).set(bytes);
    }
}
