//! Events on pods, told in the background: nobody waits for them, and an API server that is away costs the oldest ones.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Kube;
use super::client::{is_name, post};
use crate::container::PodEvent;
use crate::error::Error;
use crate::prepull::time::Time;

/// How many events may wait to be told.
pub(super) const QUEUE: usize = 256;

/// The longest message that the API server takes.
const MAX_MESSAGE: usize = 1024;

impl Kube {
    /// Tells an Event on a pod, soon. If too many wait already, it is left out.
    pub fn event(&self, event: PodEvent) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.shared.events.try_send(event) {
            tracing::debug!(pod = event.pod, reason = event.reason, "too many Events wait, one is left out");
        }
    }

    async fn tell(&self, event: &PodEvent) -> Result<(), Error> {
        let PodEvent { namespace, pod, .. } = event;
        let what = format!("create an Event on pod {namespace}/{pod}");
        if !is_name(namespace) || !is_name(pod) {
            return Err(self.failed(&what, "that is no name of a pod"));
        }
        let body = body(event, self.node(), Time::now());
        let request = post(&format!("/api/v1/namespaces/{namespace}/events"), &body)?;
        self.ask::<Value>(&what, request).await.map(drop)
    }
}

/// Tells what comes, one after the other, as long as there is a [`Kube`].
pub(super) fn start(kube: &Kube, mut told: mpsc::Receiver<PodEvent>) {
    let shared = std::sync::Arc::downgrade(&kube.shared);
    kube.shared.background.spawn(async move {
        let mut fine = true;
        while let Some(event) = told.recv().await {
            let Some(shared) = shared.upgrade() else { return };
            let result = Kube { shared }.tell(&event).await;
            match &result {
                // Said once: it is about telling, and nothing else depends on it.
                Err(error) if fine => tracing::warn!(%error, "Events are not told"),
                Err(error) => tracing::debug!(%error, "an Event is not told"),
                Ok(()) => {}
            }
            fine = result.is_ok();
        }
    });
}

fn body(event: &PodEvent, node: &str, now: Time) -> Value {
    let mut message = event.message.clone();
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE - 3).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    // Whole seconds, as the API server keeps them.
    let now_text = Time(now.0 / 1000 * 1000).to_string();
    let cut: String = event.pod.chars().take(200).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": event.namespace,
            "name": format!("{}.{:x}", cut.trim_end_matches(['.', '-']), unique(now)),
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": event.namespace,
            "name": event.pod,
            "uid": event.uid,
        },
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "message": message,
        "source": { "component": "crisp", "host": node },
        "reportingComponent": "crisp",
        "reportingInstance": node,
        "firstTimestamp": now_text,
        "lastTimestamp": now_text,
        "count": 1,
    })
}

/// Two events of one pod never have one name, not even within a millisecond.
fn unique(now: Time) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (now.0 << 16) | (NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff)
}
