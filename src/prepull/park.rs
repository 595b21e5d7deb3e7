//! Private images on the node, seen by nobody: their layers stay under a lease of the item's own, their names go.
//!
//! Names are removed one by one through containerd's own API: CRI's RemoveImage would take every name of that image, also
//! those that somebody else has brought. Nothing is removed that was there before the pull, or that anybody else has
//! pulled since; and as long as it lasts, crisp's socket does not show the image.
//!
//! A private pull runs in a task of its own that cleans up behind itself when its attempt is stopped. For a crash it is
//! on disk that such a pull is under way ([`Trace`]), from before it begins until nothing can be seen any more, also if
//! the item is removed meanwhile; at the next start [`Left`] is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::containerd::{Error, ImageRecord, cri_name};
use crate::cri::view;
use crate::image::Reference;
use crate::prepull::actor::Turns;
use crate::prepull::attempt::{Tools, failed, image_ref};
use crate::prepull::item::{Id, Item, Reason, Trace};
use crate::prepull::queue::{Done, Outcome};
use crate::prepull::secret::Credential;
use crate::prepull::sight::{HideGuard, Shown};
use crate::prepull::time::Time;
use crate::prepull::verdict;
use crate::pull::own::{Landed, LeaseGuard};

/// How long a pull that was cancelled may still bring something.
const AFTERMATH: Duration = Duration::from_secs(2);

/// How long after a failure what may have been left is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// How many names of a repository are noted that were there before. Nodes have a handful.
const MAX_SPARED: usize = 256;

/// What has to be known before a private pull.
#[derive(Debug)]
pub(super) struct Parking {
    source: String,
    /// What was there, by name.
    before: BTreeMap<String, ImageRecord>,
    /// What was there before a pull of an earlier process.
    spared: Vec<String>,
    hidden: HideGuard,
}

/// What an item may have left for all to see.
#[derive(Debug)]
pub(super) struct Left {
    /// The item's number.
    pub(super) id: Id,
    parking: Parking,
}

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
            // On disk before anything can be seen.
            if !turn.expose(parking.trace()).await {
                let message = "the queue cannot be written".into();
                return Err(Outcome::Later { reason: Reason::Queued, message });
            }
            let landed = tokio::select! {
                // One that has come to its end was not stopped: what it has brought would have to come again.
                biased;
                landed = tools.fly(&item, &reference, Some(&credential), &turn) => landed,
                () = stopped.cancelled() => Err(Outcome::Later {
                    reason: Reason::Queued,
                    message: "stopped".into(),
                }),
            };
            // If the attempt was stopped meanwhile nobody hears of what was parked: the next attempt profits from it, or
            // the keeper finds that nobody needs it.
            let (outcome, cleaned) = match landed {
                Ok(landed) => parking.park(&tools, &item, landed).await,
                Err(outcome) => (Err(outcome), parking.clean_up(&tools).await),
            };
            match cleaned {
                true => turn.cleaned().await,
                false => drop(tokio::spawn(async move {
                    Left { id: item.id, parking }.remove(&tools).await;
                    turn.cleaned().await;
                })),
            }
            outcome
        }
    };
    let gone = |_| Err(failed(Reason::Error, "the pull ended without a word".into(), false));
    tokio::spawn(task).await.unwrap_or_else(gone)
}

/// Removes what an attempt that a crash cut off may have left for all to see.
pub(super) async fn clean(tools: &Tools, trace: &Trace) -> Result<(), Error> {
    Parking::of(trace.clone(), trace.hide(tools)).remove(tools, None).await.map(drop)
}

// === impl Left ===

impl Left {
    /// What is noted of an item. It is hidden until it is removed.
    pub(super) fn new(tools: &Tools, id: Id, trace: Trace) -> Self {
        let hidden = trace.hide(tools);
        Self { id, parking: Parking::of(trace, hidden) }
    }

    /// Removes it, as soon as that is possible. The runtime may still have been at work when crisp was not there any more.
    pub(super) async fn remove(&self, tools: &Tools) {
        while !self.parking.clean_up(tools).await {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

// === impl Trace ===

impl Trace {
    /// Hides it. What was there before may be seen.
    fn hide(&self, tools: &Tools) -> HideGuard {
        match self.spared.is_empty() {
            true => tools.sight.hide([&self.source]),
            false => tools.sight.watch([&self.source]),
        }
    }
}

// === impl Parking ===

impl Parking {
    /// To be made before the pull.
    pub(super) async fn prepare(tools: &Tools, item: &Item) -> Result<Self, Outcome> {
        let hidden = tools.sight.watch([&item.source]);
        let mut records = tools.containerd.images().await.map_err(containerd_failed)?;
        // What another item is about to park was not there before.
        let passing: BTreeSet<String> = passing(tools, &records);
        records.retain(|record| !passing.contains(&record.target.digest));
        let source = Reference::parse(&item.source).map(|source| cri_name(&source)).unwrap_or_default();
        if records.iter().any(|record| record.name == source) {
            // Or has parked a moment ago.
            let again = tools.containerd.images().await.map_err(containerd_failed)?;
            let still: BTreeSet<String> = again.into_iter().map(|record| record.name).collect();
            records.retain(|record| still.contains(&record.name));
        }
        // Images by their ids: those are records of their own.
        hidden.hide_new(records.iter().filter(|record| is_id(record)).map(|record| &record.name));
        let before = records.into_iter().map(|record| (record.name.clone(), record)).collect();
        Ok(Self { source: item.source.clone(), before, spared: Vec::new(), hidden })
    }

    fn of(trace: Trace, hidden: HideGuard) -> Self {
        let Trace { source, spared } = trace;
        Self { source, before: BTreeMap::new(), spared, hidden }
    }

    /// What has to be known of this after a crash.
    fn trace(&self) -> Trace {
        let reference = Reference::parse(&self.source);
        let repository = reference.as_ref().map(|source| format!("{}@", source.name())).unwrap_or_default();
        let source = reference.map(|source| cri_name(&source)).unwrap_or_default();
        let spared = self.before.keys().filter(|name| **name == source || name.starts_with(&repository));
        Trace { source: self.source.clone(), spared: spared.take(MAX_SPARED).cloned().collect() }
    }

    /// Hides what a pull has brought, for good. Tells also whether nothing can be seen any more that was brought.
    async fn park(&self, tools: &Tools, item: &Item, landed: Landed) -> (Result<Outcome, Outcome>, bool) {
        match landed.reply.code() {
            Code::Ok => {}
            // It may come to its end all the same.
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => {
                return (Err(verdict::of_reply(&landed.reply)), self.clean_up(tools).await);
            }
            _ => {
                let cleaned = self.remove(tools, None).await.is_ok();
                return (Err(verdict::of_reply(&landed.reply)), cleaned);
            }
        }
        let image_id = match image_ref(&landed.reply) {
            Ok(image_id) => image_id,
            Err(outcome) => return (Err(outcome), self.remove(tools, None).await.is_ok()),
        };
        let seen = |note: &str| {
            let (image_id, note) = (image_id.clone(), note.to_owned());
            let done = Done { present: false, image_id, bytes: 0, parked: false, public: false, note };
            (Ok(Outcome::Done(done)), true)
        };
        if Reference::parse(&item.source).is_ok_and(|source| self.before.contains_key(&cri_name(&source))) {
            return seen("it was there before, so it is not hidden");
        }
        if landed.others {
            return seen("somebody else has pulled it too, so it is not hidden");
        }
        let lease = format!("crisp-parked-{}-{}-{}", tools.instance, item.id, Time::now().0);
        let kept = self.keep(tools, item, landed.lease.as_ref().map(LeaseGuard::id), &lease).await;
        // Whatever became of the lease, nobody may see the image.
        match self.remove(tools, Some(&image_id)).await {
            Ok(true) => {}
            Ok(false) => {
                give_up(tools, &lease).await;
                return seen("somebody else has pulled it too, so it is not hidden");
            }
            Err(error) => return (Err(containerd_failed(error)), false),
        }
        let done = kept.map(|bytes| {
            let note = "parked: pods with the right credentials start with what is here".into();
            Outcome::Done(Done { present: false, image_id, bytes, parked: true, public: false, note })
        });
        (done, true)
    }

    /// Keeps what was pulled, and tells how much it is. A pull that could get no lease is kept by what it has brought.
    async fn keep(
        &self,
        tools: &Tools,
        item: &Item,
        lease: Option<&str>,
        name: &str,
    ) -> Result<u64, Outcome> {
        let containerd = &tools.containerd;
        let image = item.image.chars().take(1000).collect();
        let labels = BTreeMap::from([("crisp.dev/image".to_owned(), image)]);
        let owner = owner(tools, item.id);
        let kept = async {
            match lease {
                Some(lease) => containerd.copy_lease(lease, name, &owner, &labels).await?,
                None => {
                    let source = Reference::parse(&item.source).map(|source| cri_name(&source));
                    let record = containerd.image(source.as_deref().unwrap_or_default()).await?;
                    containerd.create_parked_lease(name, &owner, &labels).await?;
                    if let Some(record) = record {
                        containerd.lease_content(name, &record.target.digest).await?;
                    }
                }
            }
            containerd.lease_size(name).await
        };
        kept.await.map_err(containerd_failed)
    }

    /// After a pull that failed or was stopped: it may have come to its end all the same. Tells whether it is sure that
    /// nothing was left.
    pub(super) async fn clean_up(&self, tools: &Tools) -> bool {
        let mut cleaned = false;
        for wait in [Duration::ZERO, AFTERMATH] {
            tokio::time::sleep(wait).await;
            let removed = self.remove(tools, None).await;
            if let Err(error) = &removed {
                tracing::warn!(%error, image = self.source, "cannot tell yet whether a private image was left");
            }
            cleaned = removed.is_ok();
        }
        cleaned
    }

    /// Removes the names that the pull has made. `false`: somebody else has brought the image, so nothing was removed.
    async fn remove(&self, tools: &Tools, image_id: Option<&str>) -> Result<bool, Error> {
        let Some(_claim) = self.hidden.claim(image_id).await else { return Ok(false) };
        let all = tools.containerd.images().await?;
        let brought = self.brought(&all);
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
    fn brought<'a>(&self, all: &'a [ImageRecord]) -> Vec<&'a ImageRecord> {
        let Ok(reference) = Reference::parse(&self.source) else { return Vec::new() };
        let repository = format!("{}@", reference.name());
        let source = cri_name(&reference);
        let is_name = |record: &ImageRecord| record.name == source || record.name.starts_with(&repository);
        let Some(target) = all.iter().find(|record| record.name == source).map(|record| &record.target)
        else {
            return Vec::new();
        };
        let of_image = || all.iter().filter(|record| record.target.digest == target.digest);
        let new = |record: &&ImageRecord| {
            !self.before.contains_key(&record.name) && !self.spared.contains(&record.name)
        };
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
                tools.containerd.delete_lease(&lease.id, false).await?;
            }
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = given_up.await {
        tracing::warn!(%error, item = id, "cannot give up what is parked; it expires");
    }
}

/// Gives up one lease.
async fn give_up(tools: &Tools, lease: &str) {
    if let Err(error) = tools.containerd.delete_lease(lease, false).await {
        tracing::warn!(%error, lease, "cannot give up what is parked; it is tried again");
    }
}

/// Targets of records that are there only until another item has parked them.
fn passing(tools: &Tools, records: &[ImageRecord]) -> BTreeSet<String> {
    let mut images = BTreeMap::<&String, view::Image>::new();
    for record in records {
        let image = images.entry(&record.target.digest).or_default();
        match (is_id(record), record.name.contains('@')) {
            (true, _) => image.id.clone_from(&record.name),
            (_, true) => image.repo_digests.push(record.name.clone()),
            (_, false) => image.repo_tags.push(record.name.clone()),
        }
    }
    let shown = tools.sight.show(images.values());
    let hidden = images.keys().zip(shown).filter(|(_, shown)| *shown == Shown::Hidden);
    hidden.map(|(target, _)| (*target).clone()).collect()
}

/// What the lease of an item's parked image says of its owner.
pub(super) fn owner(tools: &Tools, id: Id) -> String {
    format!("{}/{id}", tools.instance)
}

/// The item of this store that such a lease belongs to.
pub(super) fn item_of(tools: &Tools, owner: &str) -> Option<Id> {
    owner.strip_prefix(&tools.instance)?.strip_prefix('/')?.parse().ok()
}

fn is_id(record: &ImageRecord) -> bool {
    record.name.starts_with("sha256:")
}

fn containerd_failed(error: Error) -> Outcome {
    failed(Reason::Error, format!("containerd: {error}"), false)
}
