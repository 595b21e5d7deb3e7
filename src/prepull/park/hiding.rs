//! What is not shown while it is put away, and a little longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::runtime::Handle;

use super::before;
use crate::containerd::ImageRecord;
use crate::cri::view;
use crate::prepull::attempt::Tools;
use crate::prepull::sight::{HideGuard, Shown};

/// How long CRI may take to follow when records are removed: it hears of it by events.
const FOLLOWS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// How long an image is hidden after its names are gone: a reply that was made before may still be on its way.
const LINGER: Duration = Duration::from_secs(5);

/// Hides for [`LINGER`] longer than it lives.
#[derive(Debug)]
pub(super) struct Lingering(pub(super) Option<HideGuard>);

// === impl Lingering ===

impl Drop for Lingering {
    fn drop(&mut self) {
        if let (Some(hidden), Ok(handle)) = (self.0.take(), Handle::try_current()) {
            handle.spawn(async move {
                tokio::time::sleep(LINGER).await;
                drop(hidden);
            });
        }
    }
}

// === impl Tools ===

impl Tools {
    /// Waits until CRI has heard that a name is gone, so that crisp need not hide it any longer.
    pub(super) async fn has_gone(&self, name: &str) {
        let gone = async {
            while let Ok(Some(_)) = self.images.status(name).await {
                // Somebody else may have brought it back.
                if matches!(self.containerd.image(name).await, Ok(Some(_)) | Err(_)) {
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(FOLLOWS, gone).await.is_err() {
            tracing::warn!(name, "CRI still shows an image that was removed from containerd");
        }
    }
}

/// Targets of records that are hidden, because somebody else is about to park them. They were not there before.
pub(super) fn passing(tools: &Tools, records: &[ImageRecord]) -> BTreeSet<String> {
    let mut images = BTreeMap::<&String, view::Image>::new();
    for record in records {
        let image = images.entry(&record.target.digest).or_default();
        match (before::is_id(record), record.name.contains('@')) {
            (true, _) => image.id.clone_from(&record.name),
            (_, true) => image.repo_digests.push(record.name.clone()),
            (_, false) => image.repo_tags.push(record.name.clone()),
        }
    }
    let shown = tools.sight.show(images.values());
    let hidden = images.keys().zip(shown).filter(|(_, shown)| *shown == Shown::Hidden);
    hidden.map(|(target, _)| (*target).clone()).collect()
}
