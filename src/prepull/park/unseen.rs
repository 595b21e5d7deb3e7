//! How what a private pull has made goes out of sight, and how it is hidden until then.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;

use super::before::{self, Before};
use super::{containerd_failed, still_there};
use crate::containerd::{Error, ImageRecord};
use crate::prepull::attempt::Tools;
use crate::prepull::item::Item;
use crate::prepull::queue::Outcome;
use crate::prepull::sight::HideGuard;

/// How long a pull that was cancelled may still bring something: mostly nothing, but a busy disk holds things up. What
/// comes after the first of these is looked for beside everything else.
pub(in crate::prepull) const AFTERMATH: Duration = Duration::from_secs(2);
const LATER: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(20)];

/// How long CRI may take to follow when records are removed: it hears of it by events.
const FOLLOWS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// How long an image is hidden after its names are gone: a reply that was made before may still be on its way.
const LINGER: Duration = Duration::from_secs(5);

/// What has to be known before a private pull.
#[derive(Debug)]
pub(in crate::prepull) struct Parking {
    pub(super) before: Arc<Before>,
    hidden: Lingering,
}

/// Hides for [`LINGER`] longer than it lives.
#[derive(Debug)]
struct Lingering(Option<HideGuard>);

/// Removes what an attempt that was cut off may have left for all to see. What is older than the item is not its own.
pub(in crate::prepull) async fn clean(tools: &Tools, item: &Item) -> Result<(), Error> {
    let hidden = tools.sight.hide([&item.source]);
    let mut records = tools.containerd.images().await?;
    records.retain(|record| is_older(record, item));
    let parking = Parking { before: Arc::new(Before::of(records)), hidden: Lingering(Some(hidden)) };
    parking.remove(tools, item, None).await.map(drop)
}

/// Whether a record was there when the item was asked for.
fn is_older(record: &ImageRecord, item: &Item) -> bool {
    let asked = SystemTime::UNIX_EPOCH + Duration::from_millis(item.status.asked.0);
    record.created_at.is_some_and(|time| time < asked)
}

// === impl Parking ===

impl Parking {
    /// To be made before the pull.
    pub(in crate::prepull) async fn prepare(tools: &Tools, item: &Item) -> Result<Self, Outcome> {
        let hidden = tools.sight.watch([&item.source]);
        let _alone = tools.looks.alone().await;
        let mut records = tools.containerd.images().await.map_err(containerd_failed)?;
        if item.status.exposed {
            // An attempt that was cut off may still bring what nobody is to see.
            records.retain(|record| is_older(record, item) || tools.sight.was_brought(&record.name));
        }
        let before = tools.looks.begin(records, |name| tools.sight.was_brought(name));
        hidden.hide_new(before.ids());
        Ok(Self { before, hidden: Lingering(Some(hidden)) })
    }

    /// After a pull that failed or was stopped: it may have come to its end all the same.
    pub(in crate::prepull) async fn clean_up(self, tools: &Arc<Tools>, item: &Item) -> Result<(), Outcome> {
        self.remove(tools, item, None).await.map_err(still_there)?;
        tokio::time::sleep(AFTERMATH).await;
        self.remove(tools, item, None).await.map_err(still_there)?;
        let (tools, item) = (tools.clone(), item.clone());
        tokio::spawn(async move {
            for wait in LATER {
                tokio::time::sleep(wait).await;
                if let Err(error) = self.remove(&tools, &item, None).await {
                    tracing::warn!(%error, image = item.source, "cannot tell whether a private image was left");
                }
            }
        });
        Ok(())
    }

    /// Removes the names that the pull has made. `false`: somebody else has brought the image, so nothing was removed.
    pub(super) async fn remove(
        &self,
        tools: &Tools,
        item: &Item,
        image_id: Option<&str>,
    ) -> Result<bool, Error> {
        let containerd = &tools.containerd;
        let Some(hidden) = &self.hidden.0 else { return Ok(false) };
        let Some(_claim) = hidden.claim(image_id).await else { return Ok(false) };
        let alone = tools.looks.alone().await;
        let all = containerd.images().await?;
        let made = self.before.made(&all, &item.source);
        for record in &made {
            containerd.delete_image(&record.name).await?;
        }
        for before in self.before.changed(&all) {
            containerd.create_or_update_image(before).await?;
        }
        let ids: Vec<_> = made.iter().filter(|record| before::is_id(record)).collect();
        if !ids.is_empty() {
            // Somebody may have pulled the same content by another name at this very moment, and found the ID there.
            let left = containerd.images().await?;
            let is_named =
                |id: &ImageRecord| left.iter().any(|record| record.target.digest == id.target.digest);
            for id in ids.into_iter().filter(|id| is_named(id)) {
                containerd.create_or_update_image(id).await?;
            }
        }
        drop(alone);
        for record in made {
            tools.has_gone(&record.name).await;
        }
        Ok(true)
    }
}

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
    async fn has_gone(&self, name: &str) {
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
