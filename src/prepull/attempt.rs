//! One attempt at one item: check, pull, and leave the image as its owner may have it.

use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1::PullImageResponse;
use prost::Message;
use tonic::Code;

use crate::config;
use crate::containerd::Containerd;
use crate::cri::{Raw, view};
use crate::image::Reference;
use crate::prepull::check::Check;
use crate::prepull::cri::Images;
use crate::prepull::item::{Item, Reason};
use crate::prepull::node::Node;
use crate::prepull::notes::Turns;
use crate::prepull::park;
use crate::prepull::queue::{Done, Outcome};
use crate::prepull::secret::{Credential, matching};
use crate::prepull::sight::{Shown, Sight};
use crate::prepull::spec::{Policy, Visibility};
use crate::prepull::verdict;
use crate::pull::Request;
use crate::pull::coordinator::Coordinator;
use crate::pull::own::{Landed, OwnPull, OwnRequest, OwnStage};

/// How often a pull is looked at until its size is known.
const LOOK: Duration = Duration::from_millis(25);

/// How long an image may take to appear under its second name.
const ALIAS_LIMIT: Duration = Duration::from_secs(10);
const ALIAS_LOOK: Duration = Duration::from_millis(10);

/// What attempts are made with.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) settings: config::Prepull,
    pub(super) coordinator: Coordinator,
    pub(super) containerd: Containerd,
    pub(super) images: Images,
    pub(super) sight: Sight,
    pub(super) looks: park::Looks,
    pub(super) node: Node,
    /// Tells the parked images of this store from those of another.
    pub(super) instance: String,
}

/// An attempt that ends when it is dropped, and at once.
struct Pulling(Option<OwnPull>);

impl Drop for Pulling {
    fn drop(&mut self) {
        if let Some(pull) = self.0.take() {
            pull.cancel();
        }
    }
}

// === impl Tools ===

impl Tools {
    /// Whether images can have second names at the runtime.
    pub(super) async fn has_aliases(&self) -> bool {
        self.coordinator.supports_leases().await
    }

    /// Makes the attempt. `turn` is told when bytes may come and when they may not.
    pub(super) async fn attempt(self: &Arc<Self>, item: &Item, turn: &Turns) -> Outcome {
        self.try_it(item, turn).await.unwrap_or_else(|outcome| outcome)
    }

    async fn try_it(self: &Arc<Self>, item: &Item, turn: &Turns) -> Result<Outcome, Outcome> {
        if let Some(trace) = &item.status.exposed {
            let cleaned = park::clean(self, trace).await;
            cleaned.map_err(park::still_there)?;
        }
        self.check_node(item).await?;
        let reference = Reference::parse(&item.source)
            .map_err(|error| failed(Reason::Invalid, format!("source: {error}"), true))?;
        // What an attempt has left that was cut off is not there for this one.
        if item.spec.policy == Policy::IfNotPresent
            && item.status.exposed.is_none()
            && let Some(done) = self.present(item).await?
        {
            return Ok(Outcome::Done(done));
        }
        let credentials = matching(&item.spec.secrets, &reference);
        if credentials.is_empty() {
            return self.pull(item, &reference, None, turn).await;
        }
        let private = item.spec.visibility != Some(Visibility::Shared);
        if private {
            self.can_park().await?;
        }
        let last = credentials.len() - 1;
        for (number, credential) in credentials.into_iter().enumerate() {
            let pulled = match private {
                true => park::pull(self, item, &reference, credential, turn).await,
                false => self.pull(item, &reference, Some(credential), turn).await,
            };
            match pulled {
                Err(Outcome::Failed { reason: Reason::Unauthorized | Reason::NotFound, message, .. })
                    if number < last =>
                {
                    tracing::debug!(image = item.image, number, message, "the next credential is tried");
                }
                result => return result,
            }
        }
        Err(failed(Reason::Unauthorized, "no credential was accepted".into(), false))
    }

    /// Whether private images can be kept private here.
    async fn can_park(&self) -> Result<(), Outcome> {
        match self.coordinator.lease_support().await {
            Some(true) => Ok(()),
            Some(false) => {
                let message = "this runtime cannot keep a private image from other pods; ask for it with visibility \
                               `shared`, or let its pods pull it";
                Err(failed(Reason::Unsupported, message.into(), true))
            }
            None => {
                let message = "the runtime does not say whether it can keep a private image from other pods";
                Err(Outcome::Later { reason: Reason::RuntimeAway, message: message.into() })
            }
        }
    }

    /// Whether the node has enough to spare to begin at all.
    async fn check_node(&self, item: &Item) -> Result<(), Outcome> {
        for check in &item.spec.checks {
            let (reason, verdict) = match check {
                Check::Disk => (Reason::DiskPressure, self.node.disk(&self.images, None).await),
                Check::Cpu => (Reason::CpuPressure, self.node.cpu().await),
                Check::Memory => (Reason::MemoryPressure, self.node.memory().await),
            };
            if let Some(message) = verdict {
                return Err(Outcome::Later { reason, message });
            }
        }
        Ok(())
    }

    /// The end of an item whose image is there, for all to see.
    async fn present(&self, item: &Item) -> Result<Option<Done>, Outcome> {
        let public = item.spec.secrets.is_empty() || item.spec.visibility == Some(Visibility::Shared);
        let done = |image: k8s_cri::v1::Image, note: String| Done {
            present: true,
            image_id: image.id,
            bytes: image.size,
            parked: false,
            public,
            note,
        };
        if let Some(image) = self.in_sight(&item.image).await? {
            return Ok(Some(done(image, "it was there already".into())));
        }
        if item.source == item.image || !public || self.in_sight(&item.source).await?.is_none() {
            return Ok(None);
        }
        self.name(item).await?;
        let image = self.appeared(item).await?;
        Ok(Some(done(image, format!("it was there already, as {}", item.source))))
    }

    /// The image of that name, unless another item is about to park it: that one is not there for anybody else.
    async fn in_sight(&self, name: &str) -> Result<Option<k8s_cri::v1::Image>, Outcome> {
        let Some(image) = self.images.status(name).await.map_err(runtime)? else { return Ok(None) };
        let view = view::Image {
            id: image.id.clone(),
            repo_tags: image.repo_tags.clone(),
            repo_digests: image.repo_digests.clone(),
            ..Default::default()
        };
        Ok(Some(image).filter(|_| self.sight.show([&view]) != [Shown::Hidden]))
    }

    /// Pulls an image that everybody may see.
    async fn pull(
        &self,
        item: &Item,
        reference: &Reference,
        credential: Option<&Credential>,
        turn: &Turns,
    ) -> Result<Outcome, Outcome> {
        let _pulling = self.sight.pulling(&item.source).await;
        let landed = self.fly(item, reference, credential, turn).await?;
        if landed.reply.code() != Code::Ok {
            return Err(verdict::of_reply(&landed.reply));
        }
        self.publish(item, &landed.reply).await
    }

    /// Pulls, and gives up for the time being when it turns out that the image is too large.
    pub(super) async fn fly(
        &self,
        item: &Item,
        reference: &Reference,
        credential: Option<&Credential>,
        turn: &Turns,
    ) -> Result<Landed, Outcome> {
        let sandbox = item.spec.sandbox.clone();
        let auth = credential.map(Credential::auth_config);
        let request = Request::own(OwnRequest {
            reference,
            class: item.spec.class,
            credential: auth.as_ref(),
            namespace: Some(sandbox.namespace).filter(|namespace| !namespace.is_empty()),
            labels: sandbox.labels,
            annotations: sandbox.annotations,
        });
        let mut pulling = Pulling(Some(self.coordinator.own(request).await));
        let Some(pull) = &mut pulling.0 else { return Err(failed(Reason::Error, "no pull".into(), false)) };
        let mut stage = pull.stage();
        let mut size_is_known = !item.spec.checks.contains(&Check::Disk);
        if !size_is_known && self.coordinator.lease_support().await == Some(false) {
            self.node.sizes_are_unknown();
            size_is_known = true;
        }
        let is_running = |stage: OwnStage| stage == OwnStage::Running;
        let first = *stage.borrow_and_update();
        turn.tell(is_running(first)).await;
        let landed = loop {
            tokio::select! {
                biased;
                landed = pull.landed() => break landed,
                Ok(()) = stage.changed() => {
                    let now = *stage.borrow_and_update();
                    turn.tell(is_running(now)).await;
                }
                () = tokio::time::sleep(LOOK), if !size_is_known => {
                    let Some(progress) = pull.progress().await else { continue };
                    let Some(total) = progress.bytes_total else { continue };
                    size_is_known = true;
                    let missing = total.saturating_sub(progress.bytes_done);
                    if let Some(message) = self.node.disk(&self.images, Some(missing)).await {
                        return Err(Outcome::Later { reason: Reason::DiskPressure, message });
                    }
                }
            }
        };
        pulling.0 = None;
        Ok(landed)
    }

    /// The image is for all, also under the name that pods use.
    async fn publish(&self, item: &Item, reply: &Raw) -> Result<Outcome, Outcome> {
        let image_ref = image_ref(reply)?;
        self.sight.brought(&item.source, Some(&image_ref));
        let mut note = String::new();
        if item.source != item.image {
            note = format!("pulled as {}", item.source);
            self.name(item).await?;
        }
        let image = self.appeared(item).await?;
        Ok(Outcome::Done(Done {
            present: false,
            image_id: image.id,
            bytes: image.size,
            parked: false,
            public: true,
            note,
        }))
    }

    /// Gives the image the name that pods use, where the runtime can; otherwise crisp answers for it.
    async fn name(&self, item: &Item) -> Result<(), Outcome> {
        if !self.has_aliases().await {
            self.sight.map_name(&item.image, &item.source);
            return Ok(());
        }
        let aliased = self.containerd.alias(&item.source, &item.image).await;
        aliased.map_err(|error| failed(Reason::Error, format!("second name: {error}"), false))
    }

    /// The image as the runtime shows it, under the name that pods use where the runtime can.
    async fn appeared(&self, item: &Item) -> Result<k8s_cri::v1::Image, Outcome> {
        let mapped = self.sight.mapped(&item.image);
        let name = mapped.as_deref().unwrap_or(&item.image);
        let look = async {
            loop {
                if let Some(image) = self.images.status(name).await.map_err(runtime)? {
                    return Ok(image);
                }
                // CRI follows containerd's own records by events, a moment later.
                tokio::time::sleep(ALIAS_LOOK).await;
            }
        };
        let late = || failed(Reason::Error, format!("{name} was pulled but does not appear"), false);
        tokio::time::timeout(ALIAS_LIMIT, look).await.map_err(|_| late())?
    }
}

/// The runtime's name for what was pulled.
pub(super) fn image_ref(reply: &Raw) -> Result<String, Outcome> {
    let message = reply.unary_message().map_err(runtime)?;
    let reply = PullImageResponse::decode(message);
    let wrong = |error| failed(Reason::Error, format!("the runtime's reply cannot be read: {error}"), false);
    Ok(reply.map_err(wrong)?.image_ref)
}

pub(super) fn failed(reason: Reason, message: String, permanent: bool) -> Outcome {
    Outcome::Failed { reason, message, permanent }
}

/// A call to the runtime that failed.
pub(super) fn runtime(error: crate::error::Error) -> Outcome {
    verdict::of_failure(error.code(), error.message())
}
