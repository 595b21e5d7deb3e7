//! Private images on the node, seen by nobody: their layers stay under a lease of the item's own, their names go.
//!
//! Names are removed one by one through containerd's own API: CRI's RemoveImage would take every name of that image, also
//! those that somebody else has brought. Nothing is removed that was there before the pull, or that anybody else has
//! pulled since; and as long as it lasts, crisp's socket does not show the image.
//!
//! A private pull runs in a task of its own that cleans up behind itself when its attempt is stopped. For a crash the
//! item says on disk that such a pull is under way ([`Item::status`]`.exposed`), and [`clean`] is done at the next start.

mod before;
mod unseen;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::containerd::{Error, cri_name};
use crate::image::Reference;
use crate::prepull::actor::Turns;
use crate::prepull::attempt::{Tools, failed, image_ref};
use crate::prepull::item::{Id, Item, Reason};
use crate::prepull::queue::{Done, Outcome};
use crate::prepull::secret::Credential;
use crate::prepull::time::Time;
use crate::prepull::verdict;
use crate::pull::own::{Landed, LeaseGuard};

pub(super) use before::Looks;
pub(super) use unseen::{AFTERMATH, Parking, clean};

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

// === impl Parking ===

impl Parking {
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
}

/// Gives up what is parked for an item.
pub(super) async fn release(tools: &Tools, id: Id) {
    let owner = owner(tools, id);
    let given_up = async {
        for lease in tools.containerd.parked_leases().await? {
            if lease.parked_for() == Some(&owner) {
                // When this returns, the space is free; otherwise containerd collects its garbage only when a hundred other
                // things have changed.
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

/// Nobody knows whether the image can be seen, so this has to be tried again before anything else.
pub(super) fn still_there(error: Error) -> Outcome {
    let message = format!("cannot tell whether a private image was left in sight: containerd: {error}");
    Outcome::Later { reason: Reason::RuntimeAway, message }
}

fn containerd_failed(error: Error) -> Outcome {
    failed(Reason::Error, format!("containerd: {error}"), false)
}
