//! What the kubelet is told of images, by [`Sight`]: pinned ones are pinned, hidden ones are not there, and an image that
//! was pulled from another place is found under the name that pods use.
//!
//! | call | what is done |
//! |---|---|
//! | ListImages, StreamImages | pinned images are marked, hidden ones left out; before that, pins give way if space is short |
//! | ImageStatus | the same; a mapped name that the runtime does not have is asked for under its other name |
//! | RemoveImage | refused for a pinned image, because the kubelet frees space by it |
//!
//! While there is nothing in the table, a call costs one look at a number.
//!
//! # Current limitations
//!
//! RemoveImage knows an image by the names and IDs that pins and earlier replies gave. The kubelet always lists before
//! it removes; somebody else who removes an image by a second name that no reply has shown yet is not refused. A reply
//! that is compressed or too large to be collected goes on as it came, as everywhere.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderMap;
use tonic::Code;

use crate::cri::frame::Frame;
use crate::cri::plan::{First, OnEnd, OnReply, Step};
use crate::cri::{CONTAINERD_METADATA, Call, Forward, Method, Plan, Policy, Raw, RuntimeCall, read, view};
use crate::error::{Error, Kind, Origin};
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::prepull::Sight;
use crate::prepull::sight::Shown;
use crate::wire::{Patch, Value, fields, last};

/// Shows images as the table says.
#[derive(Clone)]
pub(super) struct Images {
    sight: Sight,
    call: RuntimeCall,
    metrics: Arc<Metrics>,
}

const NAME: &str = "images";

// === impl Images ===

impl Images {
    pub(super) fn new(sight: Sight, call: RuntimeCall, metrics: Arc<Metrics>) -> Self {
        Self { sight, call, metrics }
    }

    fn list(&self, call: &Call, forward: &mut Forward) -> Result<(), Error> {
        forward.first.extend(self.sight.settled().map(|settled| Step {
            feature: NAME,
            policy: Policy::Open,
            action: First(settled.map(|()| Ok(Patch::new())).boxed()),
        }));
        if !self.sight.changes_images() {
            return Ok(());
        }
        let full = text(&call.message, &[1, 1, 1])?.is_none();
        let (images, method) = (self.clone(), call.method);
        let pinned = Arc::new(Mutex::new(HashSet::new()));
        let listed = pinned.clone();
        let map = move |message: &Bytes| {
            let patch = images.show_list(message, &mut listed.lock().unwrap_or_else(PoisonError::into_inner));
            images.metrics.read_reply(method);
            patch
        };
        forward.reply.push(step(map));
        if full {
            let sight = self.sight.clone();
            let action = OnEnd(Box::new(move |code| {
                if code == Code::Ok {
                    sight.forget_others(&pinned.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }));
            forward.end.push(Step { feature: NAME, policy: Policy::Open, action });
        }
        Ok(())
    }

    /// The changes to a list, or to one message of a stream of lists. The pinned images' IDs are added to `listed`.
    fn show_list(&self, message: &Bytes, listed: &mut HashSet<String>) -> Result<Patch, Error> {
        let (mut parts, mut images) = (Vec::new(), Vec::new());
        for field in fields(message) {
            let field = field?;
            if let (1, Value::Len(image)) = (field.number, field.value) {
                let image = message.slice_ref(image);
                images.push(read::<view::Image>(&image)?);
                parts.push(image);
            }
        }
        let (mut pinned, mut hidden) = (HashSet::new(), HashSet::new());
        let shown = self.sight.show(&images);
        for ((image, part), shown) in images.into_iter().zip(parts).zip(shown) {
            match shown {
                Shown::AsItIs => {}
                Shown::Hidden => _ = hidden.insert(part),
                Shown::Pinned => {
                    if !image.pinned {
                        pinned.insert(part);
                    }
                    listed.insert(image.id);
                }
            }
        }
        let mut patch = Patch::new();
        // Images that are the same bytes are the same image, so bytes tell which is meant.
        if !hidden.is_empty() {
            patch = patch.retain([1], move |image| !hidden.contains(image));
        }
        if !pinned.is_empty() {
            patch = patch.each([1], move |image| pinned.contains(image).then(|| Patch::new().set([8], true)));
        }
        Ok(patch)
    }

    fn status(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        let name = text(&call.message, &[1, 1])?;
        if let Some(other) = name.and_then(|name| self.sight.mapped(name)) {
            let (images, message, mut metadata) = (self.clone(), call.message.clone(), call.metadata());
            for name in CONTAINERD_METADATA {
                metadata.remove(name);
            }
            return Ok(Some(Plan::Delegate(
                async move { images.status_of_either(metadata, message, &other).await }.boxed(),
            )));
        }
        if self.sight.changes_images() {
            let (images, method) = (self.clone(), call.method);
            forward.reply.push(step(move |message| {
                let patch = images.show_status(message);
                images.metrics.read_reply(method);
                patch
            }));
        }
        Ok(None)
    }

    /// The changes to the status of one image. Nothing is left of a hidden one, as if it were not there.
    fn show_status(&self, message: &Bytes) -> Result<Patch, Error> {
        let Some(image) = read::<view::ImageStatusResponse>(message)?.image else { return Ok(Patch::new()) };
        Ok(match self.sight.show([&image]).first() {
            Some(Shown::Hidden) => fields(message)
                .map(|field| field.map(|field| Patch::new().remove([field.number])).map_err(Error::from))
                .collect::<Result<Patch, Error>>()?,
            Some(Shown::Pinned) => Patch::new().set([1, 8], true),
            Some(Shown::AsItIs) | None => Patch::new(),
        })
    }

    /// The status of the image under its own name, or else under the other one.
    async fn status_of_either(&self, metadata: HeaderMap, message: Bytes, other: &str) -> Raw {
        let ask = |message| (self.call)(Method::IMAGE_STATUS, metadata.clone(), message);
        let own = match ask(message.clone()).await {
            Ok(reply) => reply,
            Err(error) => return Raw::error(&error),
        };
        if !is_absent(&own) {
            return self.shown(own);
        }
        let Ok(request) = Patch::new().set([1, 1], other).apply(&message) else { return own };
        match ask(request).await {
            Ok(reply) if reply.code() == Code::Ok && !is_absent(&reply) => self.shown(reply),
            // What can be said of the name that was asked for has been said.
            Ok(_) | Err(_) => own,
        }
    }

    /// A reply to ImageStatus with its changes; without any it is the very same.
    fn shown(&self, reply: Raw) -> Raw {
        if reply.code() != Code::Ok || !self.sight.changes_images() {
            return reply;
        }
        let shown = reply.unary_message().and_then(|message| {
            let changed = self.show_status(&message)?.apply(&message)?;
            Ok((changed != message).then_some(changed))
        });
        match shown {
            Ok(None) => reply,
            Ok(Some(changed)) => {
                let body = vec![Frame::of_message(&changed).into_bytes()];
                Raw::new(reply.status(), reply.head().clone(), body, reply.trailers().cloned())
            }
            Err(error) => {
                self.metrics.intercept_failed(NAME, "reply");
                tracing::debug!(%error, "the status of an image goes on as it came");
                reply
            }
        }
    }

    fn remove(&self, call: &Call) -> Result<Option<Plan>, Error> {
        let Some(asked) = text(&call.message, &[1, 1])? else { return Ok(None) };
        let pins = self.sight.pins_of(asked);
        let Some(pin) = pins.first() else { return Ok(None) };
        let until = if pin.until.is_empty() { String::new() } else { format!(" until {}", pin.until) };
        let others = match pins.len() - 1 {
            0 => String::new(),
            more => format!(" (and by {more} more)"),
        };
        let message = format!(
            "the image {asked:?} is pinned as {} by {}{until}{others}, so it is not removed; `crisp pins` lists the pins, \
             `crisp queue cancel {}` ends this one",
            pin.name, pin.owner, pin.item
        );
        Ok(Some(Plan::Refuse(Error::new(Kind::Precondition, Origin::Crisp, message))))
    }
}

impl Feature for Images {
    fn name(&self) -> &'static str {
        NAME
    }

    fn policy(&self) -> Policy {
        Policy::Open
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        if self.sight.is_empty() {
            return Ok(None);
        }
        let plan = match call.method {
            Method::LIST_IMAGES | Method::STREAM_IMAGES => {
                self.list(call, forward)?;
                None
            }
            Method::IMAGE_STATUS => self.status(call, forward)?,
            Method::REMOVE_IMAGE => self.remove(call)?,
            _ => return Ok(None),
        };
        self.metrics.read_request(call.method);
        Ok(plan)
    }
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("sight", &self.sight).finish_non_exhaustive()
    }
}

/// Whether the reply says that there is no such image. What cannot be read may be one.
fn is_absent(reply: &Raw) -> bool {
    let message = reply.unary_message().and_then(|message| read::<view::ImageStatusResponse>(&message));
    match reply.code() {
        Code::Ok => message.is_ok_and(|status| status.image.is_none()),
        code => code == Code::NotFound,
    }
}

fn step(map: impl FnMut(&Bytes) -> Result<Patch, Error> + Send + 'static) -> Step<OnReply> {
    Step { feature: NAME, policy: Policy::Open, action: OnReply::Map(Box::new(map)) }
}

/// The text at a path, unless it is absent or empty.
fn text<'a>(message: &'a [u8], path: &[u32]) -> Result<Option<&'a str>, Error> {
    let value = last(message, path)?;
    Ok(value.and_then(Value::as_str).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests;
