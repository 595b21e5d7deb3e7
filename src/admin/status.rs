//! The summary that `crisp status` shows. Its JSON form is part of the admin API, version 1.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};

use crate::admin::health::Health;
use crate::admin::prepull::QueueStatus;
use crate::container::history::History;
use crate::container::links::Links;
use crate::kube::Kube;
use crate::metrics::Metrics;
use crate::prepull::Prepull;
use crate::pull::Coordinator;

/// How long the queue has to tell how it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running crisp in a few lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of crisp.
    pub version: String,
    /// Git revision of crisp.
    pub revision: String,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// The socket that the kubelet connects to.
    pub listen: String,
    /// Whether systemd passed it.
    #[serde(default)]
    pub activated: bool,
    /// The real runtime.
    pub runtime_endpoint: String,
    /// The real image service.
    pub image_endpoint: String,
    /// What the runtime says of itself, if it answers.
    pub runtime: Option<Runtime>,
    /// Why the runtime does not answer.
    pub runtime_error: Option<String>,
    /// Why an image service of its own does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_error: Option<String>,
    /// The Kubernetes API server, if crisp may ask one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Kubernetes>,
    /// Pods that wait for Services now.
    #[serde(default)]
    pub waiting_for_services: usize,
    /// Ended calls.
    pub calls: u64,
    /// Ended calls with a code other than OK.
    pub errors: u64,
    /// Calls under way.
    pub in_flight: i64,
    /// The pre-pull queue, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepull: Option<QueueStatus>,
    /// Why there is no pre-pull queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepull_error: Option<String>,
    /// Every method that was called, slowest first.
    pub methods: Vec<MethodStatus>,
}

/// The runtime's own words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    /// For example `containerd`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The CRI version it speaks.
    pub api_version: String,
}

/// The Kubernetes API server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kubernetes {
    /// Where it is, as far as that could be read.
    pub server: Option<String>,
    /// The name of this node there.
    pub node: String,
    /// Why it cannot be asked: what is wrong with the kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MethodStatus {
    /// Its bare name.
    pub method: String,
    /// Ended calls.
    pub calls: u64,
    /// Ended calls with a code other than OK.
    pub errors: u64,
    /// Calls under way.
    pub in_flight: i64,
    /// Mean milliseconds of an ended call.
    pub mean_ms: f64,
    /// Milliseconds of the slowest call.
    pub slowest_ms: f64,
}

/// Makes the summary when asked.
#[derive(Debug)]
pub struct Reporter {
    /// Asks the runtime.
    pub health: Arc<Health>,
    /// The pulls.
    pub pulls: Coordinator,
    /// The pre-pull queue, unless it is off.
    pub prepull: Option<Prepull>,
    /// The Kubernetes API server, if crisp may ask one.
    pub kube: Option<Kube>,
    /// Restarts of containers, unless nobody looks at them.
    pub restarts: Option<History>,
    /// The pods that ask for Services, unless that is off.
    pub links: Option<Links>,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// When crisp started.
    pub started: Instant,
    /// The socket that the kubelet connects to.
    pub listen: String,
    /// Whether systemd passed it.
    pub activated: bool,
    /// The real runtime.
    pub runtime_endpoint: String,
    /// The real image service.
    pub image_endpoint: String,
}

// === impl Reporter ===

impl Reporter {
    /// The summary as of now.
    pub async fn status(&self) -> Status {
        let (runtime, image) = self.health.both().await;
        let (runtime, runtime_error) = match runtime {
            Ok(version) => {
                let runtime =
                    Runtime { name: version.name, version: version.version, api_version: version.api };
                (Some(runtime), None)
            }
            Err(error) => (None, Some(error.message().to_owned())),
        };
        let (prepull, prepull_error) = match self.queue().await {
            Some(Ok(queue)) => (Some(queue), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let kubernetes = match &self.kube {
            Some(kube) => {
                let problem = kube.problem().await;
                Some(Kubernetes { server: kube.server(), node: kube.node().into(), problem })
            }
            None => None,
        };
        let mut summaries = self.metrics.summaries();
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary.slowest));
        let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: env!("CRISP_REVISION").into(),
            uptime_seconds: self.started.elapsed().as_secs(),
            listen: self.listen.clone(),
            activated: self.activated,
            runtime_endpoint: self.runtime_endpoint.clone(),
            image_endpoint: self.image_endpoint.clone(),
            runtime,
            runtime_error,
            image_error: image.err().map(|error| error.message().to_owned()),
            kubernetes,
            waiting_for_services: self
                .links
                .as_ref()
                .map(|links| links.waiting().iter().filter(|pod| pod.held).count())
                .unwrap_or_default(),
            calls: summaries.iter().map(|summary| summary.calls).sum(),
            errors: summaries.iter().map(|summary| summary.errors).sum(),
            in_flight: summaries.iter().map(|summary| summary.in_flight).sum(),
            prepull,
            prepull_error,
            methods: summaries
                .iter()
                .map(|summary| MethodStatus {
                    method: summary.method.name().into(),
                    calls: summary.calls,
                    errors: summary.errors,
                    in_flight: summary.in_flight,
                    mean_ms: millis(summary.mean),
                    slowest_ms: millis(summary.slowest),
                })
                .collect(),
        }
    }

    /// The queue in a few figures; nothing if it is off.
    async fn queue(&self) -> Option<Result<QueueStatus, String>> {
        let look = self.prepull.as_ref()?.look(QueueStatus::of);
        // Its store may still be opening, on a disk that is busy.
        Some(match tokio::time::timeout(PATIENCE, look).await {
            Ok(queue) => queue.map_err(|refusal| refusal.to_string()),
            Err(_) => Err("it does not answer within 1 s".into()),
        })
    }
}

/// The queue in a few words.
fn queue_line(queue: &QueueStatus) -> String {
    let QueueStatus { waiting, pulling, succeeded, failed, .. } = queue;
    let (pinned, parked) = (HumanBytes(queue.pinned_bytes), HumanBytes(queue.parked_bytes));
    let paused = if queue.paused { "PAUSED; " } else { "" };
    format!(
        "{paused}{waiting} waiting, {pulling} pulling, {succeeded} succeeded, {failed} failed; {pinned} pinned, {parked} \
         parked"
    )
}

// === impl Status ===

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crisp     {} ({}), up {}", self.version, self.revision, span(self.uptime_seconds))?;
        writeln!(f, "listen    {}{}", self.listen, if self.activated { " (from systemd)" } else { "" })?;
        match (&self.runtime, &self.runtime_error) {
            (Some(runtime), _) => writeln!(
                f,
                "runtime   {} {} (CRI {}) at {}",
                runtime.name, runtime.version, runtime.api_version, self.runtime_endpoint
            )?,
            (None, error) => {
                let error = error.as_deref().unwrap_or("no answer");
                writeln!(f, "runtime   DOWN at {}\n          {error}", self.runtime_endpoint)?;
            }
        }
        match &self.image_error {
            Some(error) => writeln!(f, "images    DOWN at {}\n          {error}", self.image_endpoint)?,
            None if self.image_endpoint != self.runtime_endpoint => {
                writeln!(f, "images    {}", self.image_endpoint)?;
            }
            None => {}
        }
        if let Some(Kubernetes { server, node, problem }) = &self.kubernetes {
            match problem {
                Some(problem) => writeln!(f, "cluster   CANNOT BE ASKED: {problem}; this is node {node}")?,
                None => {
                    writeln!(f, "cluster   {}, this is node {node}", server.as_deref().unwrap_or_default())?
                }
            }
        }
        writeln!(f, "calls     {} ended, {} failed, {} under way", self.calls, self.errors, self.in_flight)?;
        if self.waiting_for_services > 0 {
            writeln!(
                f,
                "links     pods that wait for Services: {} (see crisp links)",
                self.waiting_for_services
            )?;
        }
        match (&self.prepull, &self.prepull_error) {
            (Some(queue), _) => writeln!(f, "queue     {}", queue_line(queue))?,
            (None, Some(error)) => writeln!(f, "queue     NONE: {error}")?,
            (None, None) => {}
        }
        if !self.methods.is_empty() {
            writeln!(
                f,
                "\n{:<28}{:>9}{:>9}{:>9}{:>12}{:>12}",
                "SLOWEST METHODS", "CALLS", "FAILED", "NOW", "MEAN ms", "SLOWEST ms"
            )?;
        }
        for method in self.methods.iter().take(10) {
            writeln!(
                f,
                "{:<28}{:>9}{:>9}{:>9}{:>12.3}{:>12.3}",
                method.method,
                method.calls,
                method.errors,
                method.in_flight,
                method.mean_ms,
                method.slowest_ms
            )?;
        }
        Ok(())
    }
}

fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
