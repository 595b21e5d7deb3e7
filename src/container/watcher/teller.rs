//! Tells that a container was made again: a log line, a metric, an entry of the history, an Event.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Subject;
use crate::container::history::{History, Restart};
use crate::container::restart::{Cause, Difference, sentence};
use crate::container::{PodEvent, PodEvents};
use crate::metrics::Metrics;
use crate::time::Time;

/// One Event for a container and a cause in this time: a container that crashes all the time says nothing new.
const QUIET: Duration = Duration::from_secs(600);

/// So many are remembered for that; beyond it no more Events are told.
const REMEMBERED: usize = 1000;

/// The longest name that is written down.
const NAME: usize = 300;

/// So many bytes of differences are written down; how many more there are is said.
const LISTED: usize = 8 << 10;

pub(super) struct Teller {
    history: History,
    events: PodEvents,
    metrics: Arc<Metrics>,
    told: HashMap<(String, String, &'static str), Instant>,
}

impl Teller {
    pub(super) fn new(history: History, events: PodEvents, metrics: Arc<Metrics>) -> Self {
        Self { history, events, metrics, told: HashMap::new() }
    }

    pub(super) async fn tell(
        &mut self,
        subject: Subject,
        id: &str,
        cause: &Cause,
        differences: &[Difference],
        exit_code: Option<i32>,
        previous: String,
    ) {
        let words = sentence(cause, differences);
        let Subject { namespace, pod, uid, container, attempt, .. } = subject;
        tracing::info!(
            namespace = cut(&namespace),
            pod = cut(&pod),
            container = cut(&container),
            attempt,
            cause = cause.as_str(),
            "a container was made again: {words}"
        );
        self.metrics.containers.restarted(cause.as_str());
        if self.is_news(&uid, &container, cause.as_str(), Instant::now()) {
            (self.events.0)(PodEvent {
                namespace: namespace.clone(),
                pod: pod.clone(),
                uid: uid.clone(),
                reason: "ContainerRestarted",
                message: format!("Container {} was made again: {words}", cut(&container)),
                warning: matches!(cause, Cause::Crashed { .. } | Cause::OomKilled),
            });
        }
        self.history
            .add(Restart {
                time: Time::now(),
                namespace: cut(&namespace).to_owned(),
                pod: cut(&pod).to_owned(),
                uid: cut(&uid).to_owned(),
                container: cut(&container).to_owned(),
                attempt,
                cause: cause.as_str().to_owned(),
                words: cause.to_string(),
                exit_code,
                differences: listed(differences),
                id: cut(id).to_owned(),
                previous: cut(&previous).to_owned(),
            })
            .await;
    }

    fn is_news(&mut self, uid: &str, container: &str, cause: &'static str, now: Instant) -> bool {
        let key = (cut(uid).to_owned(), cut(container).to_owned(), cause);
        let is_quiet = |told: &Instant| now.duration_since(*told) < QUIET;
        if self.told.get(&key).is_some_and(is_quiet) {
            return false;
        }
        if self.told.len() >= REMEMBERED {
            self.told.retain(|_, told| is_quiet(told));
        }
        if self.told.len() >= REMEMBERED && !self.told.contains_key(&key) {
            return false;
        }
        self.told.insert(key, now);
        true
    }
}

fn listed(differences: &[Difference]) -> Vec<String> {
    let (mut lines, mut left) = (Vec::new(), LISTED);
    for difference in differences {
        let line = difference.to_string();
        let Some(rest) = left.checked_sub(line.len()) else { break };
        left = rest;
        lines.push(line);
    }
    match differences.len() - lines.len() {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines
}

/// Names come from anybody who can call; what is kept of them has an end.
fn cut(name: &str) -> &str {
    name.char_indices().nth(NAME).map_or(name, |(end, _)| name.get(..end).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::restart::Shown;

    #[test]
    fn what_is_written_down_has_an_end() {
        let of = |path: String| Difference { path, old: Shown::Hidden, new: Shown::Hidden };
        assert_eq!(listed(&[]), [""; 0]);
        assert_eq!(listed(&[of("tty".into())]), ["tty: changed"]);
        let many: Vec<_> = (0..50).map(|_| of("€".repeat(240))).collect();
        let lines = listed(&many);
        // 720 bytes of path and ": changed".
        assert_eq!((lines.len(), lines.last().unwrap().as_str()), (12, "and 39 more"));
        assert!(lines.iter().map(String::len).sum::<usize>() <= LISTED + 20);
    }
}
