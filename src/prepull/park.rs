//! Private images on the node, seen by nobody: their layers stay under a lease of the item's own, their names go.
//!
//! Names are removed one by one through containerd's own API: CRI's RemoveImage would take every name of that image, also
//! those that somebody else has brought. Nothing is removed that was there before the pull, or that anybody else has
//! pulled since; and as long as it lasts, crisp's socket does not show the image.
//!
//! A private pull runs in a task of its own that cleans up behind itself when its attempt is stopped. For a crash the
//! item says on disk that such a pull is under way ([`Item::status`]`.exposed`), and [`clean`] is done at the next start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// How long a pull that was cancelled may still bring something.
const AFTERMATH: Duration = Duration::from_secs(2);

/// What has to be known before a private pull.
#[derive(Debug)]
pub(super) struct Parking {
    /// What was there, by name.
    before: BTreeMap<String, ImageRecord>,
    hidden: HideGuard,
}

/// Pulls an image that nobody is to see. It comes to a clean end also if the future is dropped.
pub(super) async fn pull(
    tools: &Arc<Tools>,
    item: &Item,
    reference: &Reference,
    credential: &Credential,
    turn: &Turns,
) -> Result<Outcome, Outcome> {
    // On disk before anything can be seen.
    if !turn.expose().await {
        return Err(Outcome::Later { reason: Reason::Queued, message: "the queue cannot be written".into() });
    }
    let stopped = CancellationToken::new();
    let _stop = stopped.clone().drop_guard();
    let task = {
        let (tools, item, reference) = (tools.clone(), item.clone(), reference.clone());
        let (credential, turn) = (credential.clone(), turn.clone());
        async move {
            let parking = Parking::prepare(&tools, &item).await?;
            let landed = tokio::select! {
                landed = tools.fly(&item, &reference, Some(&credential), &turn) => landed,
                () = stopped.cancelled() => Err(Outcome::Later {
                    reason: Reason::Queued,
                    message: "stopped".into(),
                }),
            };
            let landed = match landed {
                Ok(landed) => landed,
                Err(outcome) => {
                    parking.clean_up(&tools, &item).await;
                    return Err(outcome);
                }
            };
            let outcome = parking.park(&tools, &item, landed).await;
            if stopped.is_cancelled() && matches!(&outcome, Ok(Outcome::Done(done)) if done.parked) {
                // Nobody hears of it, so nobody would ever give it up.
                release(&tools, item.id).await;
            }
            outcome
        }
    };
    let gone = |_| Err(failed(Reason::Error, "the pull ended without a word".into(), false));
    tokio::spawn(task).await.unwrap_or_else(gone)
}

/// Removes what an attempt that a crash cut off may have left for all to see.
pub(super) async fn clean(tools: &Tools, item: &Item) -> Result<(), Error> {
    let hidden = tools.sight.hide([&item.source]);
    let parking = Parking { before: BTreeMap::new(), hidden };
    parking.remove(tools, item, None).await.map(drop)
}

// === impl Parking ===

impl Parking {
    /// To be made before the pull.
    pub(super) async fn prepare(tools: &Tools, item: &Item) -> Result<Self, Outcome> {
        let hidden = tools.sight.watch([&item.source]);
        let records = tools.containerd.images().await.map_err(containerd_failed)?;
        // Images by their ids: those are records of their own.
        hidden.hide_new(records.iter().map(|record| &record.name).filter(|name| name.starts_with("sha256:")));
        let before = records.into_iter().map(|record| (record.name.clone(), record)).collect();
        Ok(Self { before, hidden })
    }

    /// Hides what a pull has brought, for good.
    async fn park(self, tools: &Tools, item: &Item, landed: Landed) -> Result<Outcome, Outcome> {
        if landed.reply.code() != Code::Ok {
            return Err(verdict::of_reply(&landed.reply));
        }
        let image_id = image_ref(&landed.reply)?;
        let seen = |note: &str| {
            let (image_id, note) = (image_id.clone(), note.to_owned());
            Ok(Outcome::Done(Done { present: false, image_id, bytes: 0, parked: false, public: false, note }))
        };
        if Reference::parse(&item.source).is_ok_and(|source| self.before.contains_key(&cri_name(&source))) {
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
            Err(error) => return Err(containerd_failed(error)),
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
    pub(super) async fn clean_up(self, tools: &Tools, item: &Item) {
        for wait in [Duration::ZERO, AFTERMATH] {
            tokio::time::sleep(wait).await;
            if let Err(error) = self.remove(tools, item, None).await {
                tracing::warn!(%error, image = item.source, "cannot tell whether a private image was left");
            }
        }
    }

    /// Removes the names that the pull has made. `false`: somebody else has brought the image, so nothing was removed.
    async fn remove(&self, tools: &Tools, item: &Item, image_id: Option<&str>) -> Result<bool, Error> {
        let Some(_claim) = self.hidden.claim(image_id).await else { return Ok(false) };
        let all = tools.containerd.images().await?;
        let brought = self.brought(&all, &item.source);
        let target = brought.last().map(|record| &record.target.digest);
        for record in &brought {
            tools.containerd.delete_image(&record.name).await?;
        }
        // An image has one record under its id, whichever of its manifests came last.
        for record in all.iter().filter(|record| is_id(record) && Some(&record.target.digest) == target) {
            if let Some(before) = self.before.get(&record.name)
                && before.target != record.target
            {
                tools.containerd.create_or_update_image(before).await?;
            }
        }
        Ok(true)
    }

    /// The records that the pull has made, the name last: as long as it is there it can be told what belongs to it.
    /// The one under the image's id stays if another name needs it.
    fn brought<'a>(&self, all: &'a [ImageRecord], source: &str) -> Vec<&'a ImageRecord> {
        let Ok(reference) = Reference::parse(source) else { return Vec::new() };
        let repository = format!("{}@", reference.name());
        let source = cri_name(&reference);
        let is_name = |record: &ImageRecord| record.name == source || record.name.starts_with(&repository);
        let Some(target) = all.iter().find(|record| record.name == source).map(|record| &record.target)
        else {
            return Vec::new();
        };
        let of_image = || all.iter().filter(|record| record.target.digest == target.digest);
        let new = |record: &&ImageRecord| !self.before.contains_key(&record.name);
        let shared = of_image().any(|record| !(is_id(record) || is_name(record) && new(&record)));
        let ids = of_image().filter(new).filter(|record| is_id(record) && !shared);
        let digests = of_image().filter(new).filter(|record| is_name(record) && record.name != source);
        let name = of_image().filter(new).filter(|record| record.name == source);
        ids.chain(digests).chain(name).collect()
    }
}

/// Gives up what is parked for an item.
pub(super) async fn release(tools: &Tools, id: Id) {
    let owner = owner(tools, id);
    let given_up = async {
        for lease in tools.containerd.parked_leases().await? {
            if lease.parked_for() == Some(&owner) {
                // When this returns, the space is free.
                tools.containerd.delete_lease(&lease.id, true).await?;
            }
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = given_up.await {
        tracing::warn!(%error, item = id, "cannot give up what is parked; it expires");
    }
}

/// What the lease of an item's parked image says of its owner.
pub(super) fn owner(tools: &Tools, id: Id) -> String {
    format!("{}/{id}", tools.instance)
}

fn is_id(record: &ImageRecord) -> bool {
    record.name.starts_with("sha256:")
}

fn containerd_failed(error: Error) -> Outcome {
    failed(Reason::Error, format!("containerd: {error}"), false)
}
