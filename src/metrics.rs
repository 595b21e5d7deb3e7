//! Every metric family of crisp. Handles per method are made once, so that a call costs no look-up by label.

pub mod containers;
mod counted;
pub mod links;
pub mod prepull;
pub mod pulls;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tonic::Code;

pub(crate) use self::counted::Counted;
use crate::cri::Method;

/// The families, and a handle for each method.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: CallFamilies,
    /// Filled when a method is first called, so that only methods in use become time series.
    methods: Vec<OnceLock<PerMethod>>,
    requests_read: Family<MethodLabel, Counter>,
    replies_read: Family<MethodLabel, Counter>,
    list_entries: Family<MethodLabel, Counter>,
    intercept_failures: Family<FailureLabels, Counter>,
    upstream_up: Family<EndpointLabel, Gauge>,
    /// Open connections from clients.
    pub downstream_connections: Gauge,
    /// Open connections to the runtime.
    pub upstream_connections: Gauge,
    /// What is counted of pulls.
    pub pulls: pulls::Pulls,
    /// What is counted of pre-pulls.
    pub prepull: prepull::Prepull,
    /// What is counted of pods that ask for Services.
    pub links: links::Links,
    /// What is counted of containers.
    pub containers: containers::Containers,
}

/// What is counted for one method.
#[derive(Debug)]
pub struct PerMethod {
    /// Calls under way.
    pub in_flight: Gauge,
    /// Bytes of request bodies.
    pub request_bytes: Counter,
    /// Bytes of reply bodies.
    pub reply_bytes: Counter,
    seconds: Histogram,
    /// Messages read as views. Filled when the first one is, so that only methods that are read become time series.
    requests_read: OnceLock<Counter>,
    replies_read: OnceLock<Counter>,
    method: Method,
    calls: Family<CallLabels, Counter>,
    /// Ended calls by code; the position is the code's number. Filled when a code is first seen.
    ended: [OnceLock<Counter>; CODES.len()],
    /// The histogram cannot be read back, so `crisp status` has sums of its own.
    total_micros: AtomicU64,
    slowest_micros: AtomicU64,
}

/// The families that are labelled by method.
#[derive(Debug)]
struct CallFamilies {
    calls: Family<CallLabels, Counter>,
    seconds: Family<MethodLabel, Histogram>,
    bytes: Family<BytesLabels, Counter>,
    in_flight: Family<MethodLabel, Gauge>,
}

/// A summary of one method, for `crisp status`.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Which method.
    pub method: Method,
    /// Ended calls.
    pub calls: u64,
    /// Ended calls with a code other than OK.
    pub errors: u64,
    /// Calls under way.
    pub in_flight: i64,
    /// Mean time of an ended call.
    pub mean: Duration,
    /// The slowest call so far.
    pub slowest: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BytesLabels {
    method: &'static str,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    feature: &'static str,
    step: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabel {
    endpoint: &'static str,
}

/// gRPC codes by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a gRPC code, as the gRPC specification spells it.
pub fn code_name(code: Code) -> &'static str {
    CODES.get(code as usize).copied().unwrap_or("UNKNOWN")
}

// === impl Metrics ===

impl Metrics {
    /// Makes and registers every family.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("crisp");
        let calls = CallFamilies {
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(buckets(0.000_1, 4.0, 12))),
            bytes: Family::default(),
            in_flight: Family::default(),
        };
        let requests_read = Family::default();
        let replies_read = Family::default();
        let list_entries = Family::default();
        let intercept_failures = Family::default();
        let upstream_up = Family::default();
        let downstream_connections = Gauge::default();
        let upstream_connections = Gauge::default();

        registry.register("calls", "Ended calls by method and gRPC code", calls.calls.clone());
        registry.register(
            "call_duration_seconds",
            "Time from the head of a call to its end",
            calls.seconds.clone(),
        );
        registry.register("call_bytes", "Bytes of message bodies by direction", calls.bytes.clone());
        registry.register("calls_in_flight", "Calls under way", calls.in_flight.clone());
        registry.register(
            "intercepted_requests",
            "Request messages that crisp read as a view",
            Family::clone(&requests_read),
        );
        registry.register(
            "intercepted_replies",
            "Reply messages that crisp read as a view",
            Family::clone(&replies_read),
        );
        registry.register(
            "list_entries",
            "Containers in the replies to list calls",
            Family::clone(&list_entries),
        );
        registry.register(
            "intercept_failures",
            "Times a feature could not do its part, by feature and step",
            Family::clone(&intercept_failures),
        );
        registry.register("upstream_up", "1 while the runtime answers", Family::clone(&upstream_up));
        registry.register(
            "downstream_connections",
            "Open connections from clients",
            downstream_connections.clone(),
        );
        registry.register(
            "upstream_connections",
            "Open connections to the runtime",
            upstream_connections.clone(),
        );
        registry.register(
            "build",
            "Version and git revision of this process",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION")), ("revision", env!("CRISP_REVISION"))]),
        );

        let pulls = pulls::Pulls::new(&mut registry);
        let prepull = prepull::Prepull::new(&mut registry);
        let links = links::Links::new(&mut registry);
        let containers = containers::Containers::new(&mut registry);

        Arc::new(Self {
            registry,
            calls,
            methods: Method::ALL.iter().map(|_| OnceLock::new()).collect(),
            requests_read,
            replies_read,
            list_entries,
            intercept_failures,
            upstream_up,
            downstream_connections,
            upstream_connections,
            pulls,
            prepull,
            links,
            containers,
        })
    }

    /// The handles of one method.
    pub fn method(&self, method: Method) -> Option<&PerMethod> {
        self.methods.get(method.index()).map(|cell| cell.get_or_init(|| self.calls.handles(method)))
    }

    /// Counts a request that was read as a view.
    pub fn read_request(&self, method: Method) {
        if let Some(handles) = self.method(method) {
            handles.requests_read.get_or_init(|| read_counter(&self.requests_read, method)).inc();
        }
    }

    /// Counts a reply message that was read as a view.
    pub fn read_reply(&self, method: Method) {
        if let Some(handles) = self.method(method) {
            handles.replies_read.get_or_init(|| read_counter(&self.replies_read, method)).inc();
        }
    }

    /// Counts the entries of a list reply.
    pub fn listed(&self, method: Method, entries: u64) {
        self.list_entries.get_or_create(&MethodLabel { method: method.name() }).inc_by(entries);
    }

    /// Counts a feature's failure; `step` is `plan`, `first`, `request` or `reply`.
    pub fn intercept_failed(&self, feature: &'static str, step: &'static str) {
        self.intercept_failures.get_or_create(&FailureLabels { feature, step }).inc();
    }

    /// Notes whether an endpoint (`runtime` or `image`) answers.
    pub fn set_upstream_up(&self, endpoint: &'static str, up: bool) {
        self.upstream_up.get_or_create(&EndpointLabel { endpoint }).set(i64::from(up));
    }

    /// What happened so far, for every method that was called.
    pub fn summaries(&self) -> Vec<Summary> {
        self.methods.iter().filter_map(OnceLock::get).map(PerMethod::summary).collect()
    }

    /// All metrics in the text format that Prometheus scrapes.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The limits of a histogram, each so many times the one before. The crate's own need libm, which would lie in memory for it.
fn buckets(first: f64, factor: f64, count: i32) -> impl Iterator<Item = f64> {
    (0..count).map(move |number| first * factor.powi(number))
}

fn read_counter(family: &Family<MethodLabel, Counter>, method: Method) -> Counter {
    family.get_or_create_owned(&MethodLabel { method: method.name() })
}

// === impl CallFamilies ===

impl CallFamilies {
    fn handles(&self, method: Method) -> PerMethod {
        let name = method.name();
        let label = MethodLabel { method: name };
        let bytes = |direction| self.bytes.get_or_create_owned(&BytesLabels { method: name, direction });
        PerMethod {
            in_flight: self.in_flight.get_or_create_owned(&label),
            request_bytes: bytes("request"),
            reply_bytes: bytes("reply"),
            seconds: self.seconds.get_or_create_owned(&label),
            requests_read: OnceLock::new(),
            replies_read: OnceLock::new(),
            method,
            calls: self.calls.clone(),
            ended: Default::default(),
            total_micros: AtomicU64::new(0),
            slowest_micros: AtomicU64::new(0),
        }
    }
}

// === impl PerMethod ===

impl PerMethod {
    /// Counts the end of a call.
    pub fn ended(&self, code: Code, after: Duration) {
        if let Some(cell) = self.ended.get(code as usize) {
            cell.get_or_init(|| {
                let labels = CallLabels { method: self.method.name(), code: code_name(code) };
                self.calls.get_or_create_owned(&labels)
            })
            .inc();
        }
        self.seconds.observe(after.as_secs_f64());
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.total_micros.fetch_add(micros, Ordering::Relaxed);
        self.slowest_micros.fetch_max(micros, Ordering::Relaxed);
    }

    fn summary(&self) -> Summary {
        let count = |cell: &OnceLock<Counter>| cell.get().map_or(0, Counter::get);
        let calls: u64 = self.ended.iter().map(count).sum();
        let ok = self.ended.first().map_or(0, count);
        Summary {
            method: self.method,
            calls,
            errors: calls.saturating_sub(ok),
            in_flight: self.in_flight.get(),
            mean: Duration::from_micros(self.total_micros.load(Ordering::Relaxed) / calls.max(1)),
            slowest: Duration::from_micros(self.slowest_micros.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_shows_up_under_its_name_and_code() {
        let metrics = Metrics::new();
        metrics.method(Method::VERSION).unwrap().ended(Code::NotFound, Duration::from_millis(3));
        let text = metrics.encode().unwrap();
        assert!(text.contains("crisp_calls_total{method=\"Version\",code=\"NOT_FOUND\"} 1"), "{text}");
        let summary = metrics.summaries();
        assert_eq!((summary.len(), summary[0].calls, summary[0].errors), (1, 1, 1));
    }
}
