//! The pods that wait for Services, and those that were refused of late, for people to see.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Pod;

/// How long a refused pod is shown: the kubelet comes again much sooner.
const REFUSED_SHOWN: Duration = Duration::from_secs(120);

/// Most pods that are shown.
const MOST: usize = 10_000;

/// A pod that waits, or was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingPod {
    /// The pod.
    pub pod: Pod,
    /// What it waits for.
    pub missing: Vec<String>,
    /// How long ago it began to wait, all its calls taken together.
    pub since: Duration,
    /// Whether it is held now; otherwise the kubelet will come again.
    pub held: bool,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By uid.
    pods: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    pod: Pod,
    missing: Vec<String>,
    since: Instant,
    last: Instant,
    /// A pod's calls may overlap when a caller went away.
    held: usize,
}

// === impl Waiting ===

impl Waiting {
    pub(super) fn waits(&mut self, pod: &Pod, missing: &[String]) {
        if let Some(entry) = self.entry(pod, missing) {
            entry.held += 1;
        }
    }

    /// What it waits for has changed.
    pub(super) fn still(&mut self, pod: &Pod, missing: &[String]) {
        if let Some(entry) = self.pods.get_mut(&pod.uid) {
            missing.clone_into(&mut entry.missing);
        }
    }

    /// It has all it needs.
    pub(super) fn started(&mut self, pod: &Pod) {
        if let Some(entry) = self.pods.get_mut(&pod.uid) {
            entry.missing.clear();
            if entry.held == 0 {
                self.pods.remove(&pod.uid);
            }
        }
    }

    pub(super) fn refused(&mut self, pod: &Pod, missing: &[String]) {
        self.entry(pod, missing);
    }

    /// A call has ended.
    pub(super) fn left(&mut self, pod: &Pod) {
        if let Some(entry) = self.pods.get_mut(&pod.uid) {
            entry.held = entry.held.saturating_sub(1);
            entry.last = Instant::now();
            if entry.missing.is_empty() && entry.held == 0 {
                self.pods.remove(&pod.uid);
            }
        }
    }

    pub(super) fn list(&mut self, now: Instant) -> Vec<WaitingPod> {
        self.forget(now);
        let shown = |entry: &Entry| WaitingPod {
            pod: entry.pod.clone(),
            missing: entry.missing.clone(),
            since: now.saturating_duration_since(entry.since),
            held: entry.held > 0,
        };
        let mut pods: Vec<_> =
            self.pods.values().filter(|entry| !entry.missing.is_empty()).map(shown).collect();
        pods.sort_by(|a, b| b.since.cmp(&a.since).then_with(|| a.pod.name.cmp(&b.pod.name)));
        pods
    }

    fn entry(&mut self, pod: &Pod, missing: &[String]) -> Option<&mut Entry> {
        let now = Instant::now();
        if self.pods.len() >= MOST {
            self.forget(now);
        }
        if self.pods.len() >= MOST && !self.pods.contains_key(&pod.uid) {
            return None;
        }
        let entry = self.pods.entry(pod.uid.clone()).or_insert_with(|| Entry {
            pod: pod.clone(),
            missing: Vec::new(),
            since: now,
            last: now,
            held: 0,
        });
        missing.clone_into(&mut entry.missing);
        entry.last = now;
        Some(entry)
    }

    fn forget(&mut self, now: Instant) {
        self.pods
            .retain(|_, entry| entry.held > 0 || now.saturating_duration_since(entry.last) < REFUSED_SHOWN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_shown_while_it_waits_and_a_while_after_a_refusal() {
        let pod = |uid: &str| Pod { namespace: "n".into(), name: uid.into(), uid: uid.into() };
        let missing = ["a".to_owned()];
        let mut waiting = Waiting::default();
        let names = |waiting: &mut Waiting, later: u64| {
            let list = waiting.list(Instant::now() + Duration::from_secs(later));
            list.into_iter().map(|one| (one.pod.uid, one.held)).collect::<Vec<_>>()
        };
        waiting.waits(&pod("1"), &missing);
        assert_eq!(names(&mut waiting, 9999), [("1".to_owned(), true)]);
        waiting.refused(&pod("1"), &missing);
        waiting.left(&pod("1"));
        assert_eq!(names(&mut waiting, 100), [("1".to_owned(), false)]);
        assert_eq!(names(&mut waiting, 121), []);
        waiting.waits(&pod("2"), &missing);
        waiting.started(&pod("2"));
        waiting.left(&pod("2"));
        assert!(waiting.pods.is_empty());
    }
}
