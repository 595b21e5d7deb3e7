//! Private images on the node, seen by nobody: their layers stay under a lease of the item's own, their names go.
//!
//! Names are removed one by one through containerd's own API: CRI's RemoveImage would take every name of that image, also
//! those that somebody else has brought. Nothing is removed that was there before the pull, or that anybody else has
//! pulled since; and as long as it lasts, crisp's socket does not show the image.
//!
//! A private pull runs in a task of its own that cleans up behind itself when its attempt is stopped. For a crash the
//! item says on disk that such a pull is under way ([`Item::status`]`.exposed`), and [`clean`] is done at the next start.

mod before;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::containerd::{Error, ImageRecord, cri_name};
use crate::image::Reference;
use crate::prepull::actor::Turns;
use crate::prepull::attempt::{Tools, failed, image_ref};
use crate::prepull::item::{Id, Item, Reason};
use crate::prepull::queue::{Done, Outcome};
use crate::prepull::secret::Credential;
use crate::prepull::sight::HideGuard;
use crate::prepull::time::Time;
use crate::prepull::verdict;
use crate::pull::own::{Landed, LeaseGuard};

use before::Before;
pub(super) use before::Looks;

/// How long a pull that was cancelled may still bring something: mostly nothing, but a busy disk holds things up. What
/// comes after the first of these is looked for beside everything else.
pub(super) const AFTERMATH: Duration = Duration::from_secs(2);
const LATER: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(20)];

/// How long CRI may take to follow when records are removed: it hears of it by events.
const FOLLOWS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// How long an image is hidden after its names are gone: a reply that was made before may still be on its way.
const LINGER: Duration = Duration::from_secs(5);

/// What has to be known before a private pull.
#[derive(Debug)]
pub(super) struct Parking {
    before: Arc<Before>,
    hidden: Lingering,
}

/// Hides for [`LINGER`] longer than it lives.
#[derive(Debug)]
struct Lingering(Option<HideGuard>);

/// Pulls an image that nobody is to see. It comes to a clean end also if the future is dropped.
pub(super) async fn pull(
    tools: &Arc<Tools>,
    item: &Item,
    reference: &Reference,
    credential: &Credential,
    turn: &Turns,
) -> Result<Outcome, Outcome> {
    let stopped = CancellationToken::new();
    let _stop = stopped.clone().drop_guard();
    let task = {
        let (tools, item, reference) = (tools.clone(), item.clone(), reference.clone());
        let (credential, turn) = (credential.clone(), turn.clone());
        async move {
            let parking = Parking::prepare(&tools, &item).await?;
            // On disk before anything can be seen. What is in sight already stays so, whatever happens.
            if !parking.before.has_source(&item.source) && !turn.expose().await {
                let message = "the queue cannot be written".into();
                return Err(Outcome::Later { reason: Reason::Queued, message });
            }
            let landed = tokio::select! {
                landed = tools.fly(&item, &reference, Some(&credential), &turn) => landed,
                () = stopped.cancelled() => Err(Outcome::Later {
                    reason: Reason::Queued,
                    message: "stopped".into(),
                }),
            };
            let outcome = match landed {
                Ok(landed) => parking.park(&tools, &item, landed).await,
                Err(outcome) => parking.clean_up(&tools, &item).await.and(Err(outcome)),
            };
            if stopped.is_cancelled() {
                if item.status.kept.is_none() && matches!(&outcome, Ok(Outcome::Done(done)) if done.parked) {
                    // Nobody hears of it, so nobody would ever give it up.
                    release(&tools, item.id).await;
                }
                if !matches!(outcome, Err(Outcome::Later { reason: Reason::RuntimeAway, .. })) {
                    turn.cleaned().await;
                }
            }
            outcome
        }
    };
    let gone = |_| Err(failed(Reason::Error, "the pull ended without a word".into(), false));
    tools.looks.tasks.spawn(task).await.unwrap_or_else(gone)
}

/// Removes what an attempt that was cut off may have left for all to see. What is older than the item is not its own.
pub(super) async fn clean(tools: &Tools, item: &Item) -> Result<(), Error> {
    let hidden = tools.sight.hide([&item.source]);
    let mut records = tools.containerd.images().await?;
    records.retain(|record| is_older(record, item));
    let parking = Parking { before: Arc::new(Before::of(records)), hidden: Lingering(Some(hidden)) };
    parking.remove(tools, item, None).await.map(drop)
}

// === impl Parking ===

impl Parking {
    /// To be made before the pull.
    pub(super) async fn prepare(tools: &Tools, item: &Item) -> Result<Self, Outcome> {
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

    /// Hides what a pull has brought, for good.
    async fn park(self, tools: &Tools, item: &Item, landed: Landed) -> Result<Outcome, Outcome> {
        if landed.reply.code() != Code::Ok {
            // It may have come to its end all the same, if the runtime went away with the reply.
            self.remove(tools, item, None).await.map_err(still_there)?;
            return Err(verdict::of_reply(&landed.reply));
        }
        let image_id = image_ref(&landed.reply)?;
        let seen = |note: &str| {
            let (image_id, note) = (image_id.clone(), note.to_owned());
            Ok(Outcome::Done(Done { present: false, image_id, bytes: 0, parked: false, public: false, note }))
        };
        if self.before.has_source(&item.source) {
            return seen("it was there before, so it is not hidden");
        }
        if landed.others {
            return seen("somebody else has pulled it too, so it is not hidden");
        }
        let kept = self.keep(tools, item, landed.lease.as_ref().map(LeaseGuard::id)).await;
        // Whatever became of the lease, nobody may see the image.
        match self.remove(tools, item, Some(&image_id)).await {
            Ok(true) => {}
            Ok(false) => {
                release(tools, item.id).await;
                return seen("somebody else has pulled it too, so it is not hidden");
            }
            Err(error) => return Err(still_there(error)),
        }
        Ok(Outcome::Done(Done {
            present: false,
            image_id,
            bytes: kept?,
            parked: true,
            public: false,
            note: "parked: pods with the right credentials start with what is here".into(),
        }))
    }

    /// Keeps what was pulled, and tells how much it is. A pull that could get no lease is kept by what it has brought.
    async fn keep(&self, tools: &Tools, item: &Item, lease: Option<&str>) -> Result<u64, Outcome> {
        let containerd = &tools.containerd;
        let name = format!("crisp-parked-{}-{}-{}", tools.instance, item.id, Time::now().0);
        let image = item.image.chars().take(1000).collect();
        let labels = BTreeMap::from([("crisp.dev/image".to_owned(), image)]);
        let owner = owner(tools, item.id);
        let kept = async {
            match lease {
                Some(lease) => containerd.copy_lease(lease, &name, &owner, &labels).await?,
                None => {
                    let source = Reference::parse(&item.source).map(|source| cri_name(&source));
                    let record = containerd.image(source.as_deref().unwrap_or_default()).await?;
                    containerd.create_parked_lease(&name, &owner, &labels).await?;
                    if let Some(record) = record {
                        containerd.lease_content(&name, &record.target.digest).await?;
                    }
                }
            }
            containerd.lease_size(&name).await
        };
        kept.await.map_err(containerd_failed)
    }

    /// After a pull that failed or was stopped: it may have come to its end all the same.
    pub(super) async fn clean_up(self, tools: &Arc<Tools>, item: &Item) -> Result<(), Outcome> {
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
    async fn remove(&self, tools: &Tools, item: &Item, image_id: Option<&str>) -> Result<bool, Error> {
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

/// Gives up what is parked for an item.
pub(super) async fn release(tools: &Tools, id: Id) {
    let owner = owner(tools, id);
    let given_up = async {
        for lease in tools.containerd.parked_leases().await? {
            if lease.parked_for() == Some(&owner) {
                // Otherwise containerd collects its garbage only when a hundred other things have changed.
                tools.containerd.delete_lease(&lease.id, true).await?;
            }
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = given_up.await {
        tracing::warn!(%error, item = id, "cannot give up what is parked; it expires");
    }
}

/// Whether a record was there when the item was asked for.
fn is_older(record: &ImageRecord, item: &Item) -> bool {
    let asked = SystemTime::UNIX_EPOCH + Duration::from_millis(item.status.asked.0);
    record.created_at.is_some_and(|time| time < asked)
}

/// What the lease of an item's parked image says of its owner.
pub(super) fn owner(tools: &Tools, id: Id) -> String {
    format!("{}/{id}", tools.instance)
}

/// Nobody knows whether the image can be seen, so this has to be tried again before anything else.
pub(super) fn still_there(error: Error) -> Outcome {
    let message = format!("cannot tell whether a private image was left in sight: containerd: {error}");
    Outcome::Later { reason: Reason::RuntimeAway, message }
}

fn containerd_failed(error: Error) -> Outcome {
    failed(Reason::Error, format!("containerd: {error}"), false)
}
