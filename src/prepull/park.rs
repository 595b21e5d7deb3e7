//! Private images on the node, seen by nobody: their layers stay under a lease of the item's own, their names go.
//!
//! Names are removed one by one through containerd's own API: CRI's RemoveImage would take every name of that image, also
//! those that somebody else has brought. Nothing is removed that was there before the pull, or that anybody else has
//! pulled since; and as long as it lasts, crisp's socket does not show the image.
//!
//! A private pull runs in a task of its own that cleans up behind itself when its attempt is stopped. For a crash it is
//! on disk that such a pull is under way ([`Trace`]), from before it begins until nothing of it is in sight any more,
//! also if its item is removed meanwhile; at the next start what was [`Left`] is removed.

mod before;
mod hiding;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::containerd::{Error, ImageRecord, cri_name};
use crate::image::Reference;
use crate::prepull::attempt::{Tools, failed, image_ref};
use crate::prepull::item::{Id, Item, Reason, Trace};
use crate::prepull::notes::Turns;
use crate::prepull::queue::{Done, Outcome};
use crate::prepull::secret::Credential;
use crate::prepull::time::Time;
use crate::prepull::verdict;
use crate::pull::own::{Landed, LeaseGuard};

pub(super) use before::Looks;
use before::{Before, Flying};
use hiding::{Lingering, passing};

/// How long a pull that was cancelled may still bring something.
const AFTERMATH: Duration = Duration::from_secs(2);

/// And a busy one.
const LATER: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(20)];

/// How long after a failure what may have been left is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// What has to be known before a private pull.
#[derive(Debug)]
pub(super) struct Parking {
    source: String,
    before: Arc<Before>,
    hidden: Lingering,
    /// Held as long as the pull may bring something.
    flying: Option<Flying>,
    /// Since when everything that comes to the repository is taken for the pull's: of one that a crash has cut off nobody
    /// knows what it has brought.
    since: Option<SystemTime>,
    /// What the name stood for when it was removed. The pull may not have been at its end.
    seen: BTreeSet<String>,
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
            let mut parking = Parking::prepare(&tools, &item).await?;
            let Some(trace) = parking.trace() else { return Ok(there_before(&tools, &item).await) };
            // On disk before anything can be seen.
            if !turn.expose(trace).await {
                // What could not be noted is not to be acted upon.
                turn.cleaned().await;
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
            let cut_off = landed.is_err();
            let parked = match landed {
                Ok(landed) => parking.park(&tools, &item, landed).await,
                Err(outcome) => parking.clean_up(&tools).await.map(|()| Err(outcome)),
            };
            match parked {
                Ok(outcome) => {
                    turn.cleaned().await;
                    if cut_off {
                        tokio::spawn(parking.look_again(tools));
                    }
                    outcome
                }
                Err(error) => {
                    // The next attempt may be far away, or never come. It is hidden until it is known to be gone.
                    tokio::spawn(async move {
                        Left { id: item.id, parking }.remove(&tools).await;
                        turn.cleaned().await;
                    });
                    Err(still_there(error))
                }
            }
        }
    };
    let gone = |_| Err(failed(Reason::Error, "the pull ended without a word".into(), false));
    tools.looks.tasks.spawn(task).await.unwrap_or_else(gone)
}

/// The end of a private item whose image everybody sees. It is not pulled: what has come to its name meanwhile would be
/// seen by everybody too.
async fn there_before(tools: &Tools, item: &Item) -> Outcome {
    let image = tools.images.status(&item.source).await.ok().flatten().unwrap_or_default();
    Outcome::Done(Done {
        present: true,
        image_id: image.id,
        bytes: image.size,
        parked: false,
        public: false,
        note: "it was there before for everybody, so it is left as it is".into(),
    })
}

/// Removes what an attempt that was cut off may have left for all to see.
pub(super) async fn clean(tools: &Tools, trace: &Trace) -> Result<(), Error> {
    Parking::of(tools, trace).remove(tools, None).await.map(drop)
}

// === impl Left ===

impl Left {
    /// What is noted of an item. It is hidden until it is removed.
    pub(super) fn new(tools: &Tools, id: Id, trace: Trace) -> Self {
        Self { id, parking: Parking::of(tools, &trace) }
    }

    /// Removes it, as soon as that is possible. The runtime may still have been at work when crisp was not there any more.
    pub(super) async fn remove(&mut self, tools: &Tools) {
        while let Err(error) = self.parking.clean_up(tools).await {
            if tools.coordinator.lease_support().await == Some(false) {
                // Another runtime by now, which never had it.
                return;
            }
            tracing::debug!(%error, image = self.parking.source, "cannot look for what was left yet");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

// === impl Parking ===

impl Parking {
    /// To be made before the pull.
    pub(super) async fn prepare(tools: &Tools, item: &Item) -> Result<Self, Outcome> {
        let hidden = tools.sight.watch([&item.source]);
        let flying = tools.looks.flying(&item.source).await;
        let _alone = tools.looks.alone().await;
        let mut records = tools.containerd.images().await.map_err(containerd_failed)?;
        let passing = passing(tools, &records);
        records.retain(|record| !passing.contains(&record.target.digest));
        let before = tools.looks.begin(&item.source, records, |name| tools.sight.was_brought(name));
        hidden.hide_new(before.ids());
        let (source, flying) = (item.source.clone(), Some(flying));
        let hidden = Lingering(Some(hidden));
        Ok(Self { source, before, hidden, flying, since: None, seen: BTreeSet::new() })
    }

    /// What has to be on disk before the pull begins, if something of it may be seen that was not there.
    pub(super) fn trace(&self) -> Option<Trace> {
        let trace = || Trace { source: self.source.clone(), since: Time::now() };
        (!self.before.has_source(&self.source)).then(trace)
    }

    /// What is known of a pull that was cut off.
    fn of(tools: &Tools, trace: &Trace) -> Self {
        Self {
            source: trace.source.clone(),
            before: Arc::default(),
            hidden: Lingering(Some(tools.sight.hide([&trace.source]))),
            flying: None,
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(trace.since.0)),
            seen: BTreeSet::new(),
        }
    }

    /// Hides what a pull has brought, for good. An error: something may be in sight still.
    async fn park(
        &mut self,
        tools: &Tools,
        item: &Item,
        landed: Landed,
    ) -> Result<Result<Outcome, Outcome>, Error> {
        self.flying = None;
        if landed.reply.code() != Code::Ok {
            // It may have come to its end all the same, if the runtime went away with the reply.
            self.remove(tools, None).await?;
            return Ok(Err(verdict::of_reply(&landed.reply)));
        }
        let image_id = match image_ref(&landed.reply) {
            Ok(image_id) => image_id,
            Err(outcome) => return self.remove(tools, None).await.map(|_| Err(outcome)),
        };
        let seen = |note: &str| {
            let (image_id, note) = (image_id.clone(), note.to_owned());
            let done = Done { present: false, image_id, bytes: 0, parked: false, public: false, note };
            Ok(Ok(Outcome::Done(done)))
        };
        if landed.others {
            return seen("somebody else has pulled it too, so it is not hidden");
        }
        let lease = format!("crisp-parked-{}-{}-{}", tools.instance, item.id, Time::now().0);
        let kept = self.keep(tools, item, landed.lease.as_ref().map(LeaseGuard::id), &lease).await;
        // Whatever became of the lease, nobody may see the image.
        if !self.remove(tools, Some(&image_id)).await? {
            if let Err(error) = tools.containerd.delete_lease(&lease, false).await {
                tracing::debug!(%error, lease, "cannot give up what is not to be parked; it is tried again");
            }
            return seen("somebody else has pulled it too, so it is not hidden");
        }
        Ok(kept.map(|bytes| {
            let note = "parked: pods with the right credentials start with what is here".into();
            Outcome::Done(Done { present: false, image_id, bytes, parked: true, public: false, note })
        }))
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

    /// After a pull that failed or was stopped: it may have come to its end all the same.
    pub(super) async fn clean_up(&mut self, tools: &Tools) -> Result<(), Error> {
        self.flying = None;
        self.remove(tools, None).await?;
        tokio::time::sleep(AFTERMATH).await;
        self.remove(tools, None).await.map(drop)
    }

    /// A busy runtime may bring what was cancelled long after. That is looked for beside everything else.
    async fn look_again(mut self, tools: Arc<Tools>) {
        for wait in LATER {
            tokio::time::sleep(wait).await;
            if let Err(error) = self.remove(&tools, None).await {
                tracing::warn!(%error, image = self.source, "cannot tell whether a private image was left");
            }
        }
    }

    /// Removes the names that the pull has made. `false`: somebody else has brought the image, so nothing was removed.
    async fn remove(&mut self, tools: &Tools, image_id: Option<&str>) -> Result<bool, Error> {
        let containerd = &tools.containerd;
        // Another pull by the same name would make some of its records again while others are removed.
        let _landed = tools.looks.landed(&self.source).await;
        let Some(hidden) = &self.hidden.0 else { return Ok(false) };
        let Some(claim) = hidden.claim(image_id).await else { return Ok(false) };
        let alone = tools.looks.alone().await;
        let all = containerd.images().await?;
        let before = match self.since {
            Some(since) => {
                let older = all.iter().filter(|record| record.created_at.is_some_and(|time| time < since));
                &Before::of(&self.source, older.cloned())
            }
            None => &*self.before,
        };
        self.seen.extend(before::brought(&all, &self.source, image_id, self.since));
        let made = before.made(&all, &self.source, &self.seen);
        for record in &made {
            containerd.delete_image(&record.name).await?;
        }
        for before in before.changed(&all) {
            containerd.create_or_update_image(before).await?;
        }
        if made.iter().any(|record| before::is_id(record)) {
            // Somebody may have pulled the same content by another name at this very moment, and found the ID there.
            let left: BTreeSet<_> =
                containerd.images().await?.into_iter().map(|record| record.target.digest).collect();
            let needed =
                |record: &&&ImageRecord| before::is_id(record) && left.contains(&record.target.digest);
            for id in made.iter().filter(needed) {
                containerd.create_or_update_image(id).await?;
            }
        }
        drop((alone, claim));
        for record in made {
            tools.has_gone(&record.name).await;
        }
        Ok(true)
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

/// The item of this store that such a lease belongs to.
pub(super) fn item_of(tools: &Tools, owner: &str) -> Option<Id> {
    owner.strip_prefix(&tools.instance)?.strip_prefix('/')?.parse().ok()
}

/// Nobody knows whether the image can be seen, so this has to be tried again before anything else.
pub(super) fn still_there(error: Error) -> Outcome {
    let message = format!("cannot tell whether a private image was left in sight: containerd: {error}");
    Outcome::Later { reason: Reason::RuntimeAway, message }
}

fn containerd_failed(error: Error) -> Outcome {
    failed(Reason::Error, format!("containerd: {error}"), false)
}
