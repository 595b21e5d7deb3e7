//! Shows containers with the hash that the kubelet expects, by [`Shield`], wherever it reads one: ContainerStatus,
//! ListContainers, StreamContainers, PodSandboxStatus and events. While no container needs it, a call costs one look.

use bytes::Bytes;
use futures_util::FutureExt;

use crate::container::census::{CONTAINER_NAME, POD_UID};
use crate::container::hash;
use crate::container::shield::Shield;
use crate::cri::plan::{First, OnReply, Step};
use crate::cri::{Call, Forward, Method, Plan, Policy};
use crate::error::Error;
use crate::intercept::Feature;
use crate::wire::{Patch, Value, entry, last};

const NAME: &str = "hash-shield";

/// Field numbers of annotations in Container and in ContainerStatus.
const IN_CONTAINER: u32 = 9;
const IN_STATUS: u32 = 13;

#[derive(Debug)]
pub(super) struct Hashes {
    shield: Shield,
}

// === impl Hashes ===

impl Hashes {
    pub(super) fn new(shield: Shield) -> Self {
        Self { shield }
    }

    /// Looks whether the kubelet computes hashes as crisp does. Only of containers that a kubelet makes for a pod.
    fn verify(&self, call: &Call) -> Result<(), Error> {
        let message = &call.message;
        let text = |found: Option<&[u8]>| found.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        let label = |key: &str| entry(message, [2, 9], key).map(text);
        let computed = entry(message, [2, 10], hash::ANNOTATION).map(text)?;
        let image = last(message, [2, 2, 18])?.and_then(Value::as_str);
        let made_for_a_pod = label(POD_UID)?.is_some_and(|uid| !uid.is_empty());
        if let (true, Some(name), Some(image), Some(computed)) =
            (made_for_a_pod, label(CONTAINER_NAME)?, image, computed)
        {
            self.shield.verify(call.user_agent(), &name, image, &computed);
        }
        Ok(())
    }
}

impl Feature for Hashes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn policy(&self) -> Policy {
        Policy::Open
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        // Where the containers are in a reply, and where their annotations are.
        let (containers, annotations) = match call.method {
            Method::CREATE_CONTAINER if self.shield.is_for(call) => {
                self.verify(call)?;
                return Ok(None);
            }
            Method::CONTAINER_STATUS => (1, IN_STATUS),
            Method::LIST_CONTAINERS | Method::STREAM_CONTAINERS => (1, IN_CONTAINER),
            Method::POD_SANDBOX_STATUS => (3, IN_STATUS),
            Method::GET_CONTAINER_EVENTS => (5, IN_STATUS),
            _ => return Ok(None),
        };
        if !self.shield.is_for(call) {
            return Ok(None);
        }
        let waits = self.shield.settled(call.connection);
        // A stream of events may live longer than what is known now.
        let agent = call.user_agent();
        if waits.is_none() && !self.shield.has_answers(agent) && call.method != Method::GET_CONTAINER_EVENTS {
            return Ok(None);
        }
        forward.first.extend(waits.map(|settled| Step {
            feature: NAME,
            policy: Policy::Open,
            action: First(settled.map(|()| Ok(Patch::new())).boxed()),
        }));
        let (shield, agent) = (self.shield.clone(), agent.map(str::to_owned));
        let map = move |_: &Bytes| {
            if !shield.has_answers(agent.as_deref()) {
                return Ok(Patch::new());
            }
            let shield = shield.clone();
            Ok(Patch::new().each([containers], move |container| {
                let id = last(container, [1]).ok()??.as_str()?;
                let hash = shield.answer(id)?;
                Some(Patch::new().set_entry([annotations], hash::ANNOTATION, &*hash))
            }))
        };
        forward.reply.push(Step { feature: NAME, policy: Policy::Open, action: OnReply::Map(Box::new(map)) });
        Ok(None)
    }
}
