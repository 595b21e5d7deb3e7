//! What is counted and logged of one call. Made when the call comes, told on drop, so that no way out is missed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::cri::plan::{OnEnd, Step};
use crate::cri::{Method, Raw};
use crate::error::{Error, Origin};
use crate::metrics::{self, Metrics};
use crate::proxy::replies::{failure, guarded};

/// A caller's clock started before its call came here, and may be that much ahead.
const IN_TIME: Duration = Duration::from_millis(50);

/// One call, from its head to its end.
#[derive(Debug)]
pub(super) struct Observation {
    metrics: Arc<Metrics>,
    method: Method,
    /// The path, if the method does not tell it.
    path: Option<Box<str>>,
    started: Instant,
    /// How long the caller waits.
    timeout: Option<Duration>,
    /// How the call ended and by whose doing. Until it is known, the caller went away.
    outcome: (Code, Origin),
    /// crisp's own words on a failure. The runtime's words are not logged: they may hold what nobody should read.
    words: Option<String>,
    /// Features that want to know how the call ended.
    end: Vec<Step<OnEnd>>,
}

impl Observation {
    pub(super) fn start(
        metrics: Arc<Metrics>,
        method: Method,
        path: &str,
        timeout: Option<Duration>,
    ) -> Self {
        if let Some(handles) = metrics.method(method) {
            handles.in_flight.inc();
        }
        let outcome = (Code::Cancelled, Origin::Kubelet);
        let path = (method == Method::OTHER).then(|| clip(path).into());
        let started = Instant::now();
        Self { metrics, method, path, started, timeout, outcome, words: None, end: Vec::new() }
    }

    pub(super) fn request_bytes(&self, count: usize) {
        if let Some(handles) = self.metrics.method(self.method) {
            handles.request_bytes.inc_by(count as u64);
        }
    }

    pub(super) fn reply_bytes(&self, count: usize) {
        if let Some(handles) = self.metrics.method(self.method) {
            handles.reply_bytes.inc_by(count as u64);
        }
    }

    /// The runtime ended the call with this code.
    pub(super) fn runtime_said(&mut self, code: Code) {
        self.outcome = (code, Origin::Runtime);
    }

    /// The call was answered with a whole reply.
    pub(super) fn answered(&mut self, raw: &Raw) {
        self.outcome = (raw.code(), raw.origin());
        self.words = raw.words().map(str::to_owned);
    }

    /// The caller gave the call up. If its time was over, that is the fault of who had the call.
    pub(super) fn given_up(&mut self, keeper: Origin) {
        if self.timeout.is_some_and(|timeout| self.started.elapsed() + IN_TIME >= timeout) {
            self.outcome = (Code::DeadlineExceeded, keeper);
        }
    }

    /// crisp ended the call with this error.
    pub(super) fn failed(&mut self, error: &Error) {
        self.outcome = (error.code(), error.origin());
        self.words = Some(error.message().to_owned());
    }

    /// Whom to tell how the call ended.
    pub(super) fn tell(&mut self, end: Vec<Step<OnEnd>>) {
        self.end = end;
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let after = self.started.elapsed();
        let (code, origin) = self.outcome;
        if let Some(handles) = self.metrics.method(self.method) {
            handles.in_flight.dec();
            handles.ended(code, after);
        }
        if code != Code::Ok {
            tracing::warn!(
                method = self.path.as_deref().unwrap_or(self.method.path()),
                code = metrics::code_name(code),
                origin = origin.as_str(),
                duration_ms = (after.as_secs_f64() * 1e6).round() / 1e3,
                detail = self.words.as_deref(),
                "call failed"
            );
        }
        for Step { feature, policy, action: OnEnd(end) } in self.end.drain(..) {
            // A panic here would end the connection, and the process if there are two.
            let told = guarded(|| {
                end(code);
                Ok(())
            });
            if let Err(error) = told {
                failure(error, feature, policy, "end", &self.metrics);
            }
        }
    }
}

/// A path comes from outside; a log line has an end.
fn clip(path: &str) -> &str {
    path.char_indices().nth(200).map_or(path, |(end, _)| path.get(..end).unwrap_or(path))
}
