//! What is counted of pulls.

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
pub struct Pulls {
    ended: Family<EndLabels, Counter>,
    seconds: Family<ClassLabel, Histogram>,
    flights: Family<StageLabel, Gauge>,
    size: Histogram,
    bytes: Counter,
    /// Bytes that an interrupted pull had fetched and that were not fetched again.
    pub resumed_bytes: Counter,
    /// Callers that wait for a pull.
    pub waiters: Gauge,
    /// Callers that joined a pull under way instead of causing one.
    pub deduplicated: Counter,
    /// Times that a pull gave way.
    pub preemptions: Counter,
}

/// How a pull ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The image is there.
    Succeeded,
    /// The runtime, or the way to it, said no.
    Failed,
    /// Nobody waited any more.
    Abandoned,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    class: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

impl Pulls {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let pulls = Self {
            ended: Family::default(),
            // 10 ms to 45 minutes.
            seconds: Family::new_with_constructor(|| Histogram::new(buckets(0.01, 4.0, 10))),
            flights: Family::default(),
            // 1 MiB to 64 GiB.
            size: Histogram::new(buckets(f64::from(1 << 20), 4.0, 9)),
            bytes: Counter::default(),
            resumed_bytes: Counter::default(),
            waiters: Gauge::default(),
            deduplicated: Counter::default(),
            preemptions: Counter::default(),
        };
        registry.register("pulls", "Pulls that ended, by class and outcome", pulls.ended.clone());
        registry.register(
            "pull_duration_seconds",
            "Time from asking to the end of a pull, waiting included",
            pulls.seconds.clone(),
        );
        registry.register("pulls_under_way", "Pulls that wait or run", pulls.flights.clone());
        registry.register(
            "pull_size_bytes",
            "Compressed size of pulled images, where the runtime tells",
            pulls.size.clone(),
        );
        registry.register(
            "pull_bytes",
            "Compressed bytes that pulls brought, where the runtime tells",
            pulls.bytes.clone(),
        );
        registry.register(
            "pull_resumed_bytes",
            "Bytes that an interrupted pull had fetched and that were not fetched again",
            pulls.resumed_bytes.clone(),
        );
        registry.register("pull_waiters", "Callers that wait for a pull", pulls.waiters.clone());
        registry.register(
            "pulls_deduplicated",
            "Callers that joined a pull under way instead of causing one",
            pulls.deduplicated.clone(),
        );
        registry.register(
            "pull_preemptions",
            "Times that a pull gave way to a more urgent one",
            pulls.preemptions.clone(),
        );
        pulls
    }

    /// Counts the end of a pull.
    pub fn ended(&self, class: &'static str, outcome: Outcome, after: Duration) {
        let outcome = match outcome {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Abandoned => "abandoned",
        };
        self.ended.get_or_create(&EndLabels { class, outcome }).inc();
        self.seconds.get_or_create(&ClassLabel { class }).observe(after.as_secs_f64());
    }

    /// Notes how many pulls wait and run.
    pub fn set_flights(&self, queued: usize, running: usize) {
        for (stage, count) in [("queued", queued), ("running", running)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.flights.get_or_create(&StageLabel { stage }).set(count);
        }
    }

    /// Counts what a pull has brought.
    pub fn brought(&self, size: u64, fetched: u64) {
        self.size.observe(size as f64);
        self.bytes.inc_by(fetched);
    }
}
