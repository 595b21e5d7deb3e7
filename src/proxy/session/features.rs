//! Calls that features look at: read → plan → forward → observe.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};

use crate::cri::call::grpc_timeout;
use crate::cri::frame::{Frame, PREFIX};
use crate::cri::plan::{First, OnEnd, OnReply, Step};
use crate::cri::{Call, Forward, Plan, Policy, Raw};
use crate::error::Error;
use crate::http2::Fields;
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::proxy::head::without_length;
use crate::proxy::replies::{Replies, failure, guarded, panicked, patched};
use crate::proxy::session::Session;
use crate::proxy::stream::{State, Waiting};
use crate::wire::Patch;

/// What came of something that was waited for.
#[derive(Debug)]
pub(super) enum Brought {
    /// A whole reply.
    Reply(Raw),
    /// The call may go on.
    Forward(Box<Forwarding>),
    /// The call must not go on.
    Refusal(Error),
}

/// A call that is to go on, as it was planned.
#[derive(Debug)]
pub(super) struct Forwarding {
    head: Fields,
    frame: Frame,
    message: Bytes,
    changes: Vec<Step<Patch>>,
    reply: Vec<Step<OnReply>>,
    end: Vec<Step<OnEnd>>,
}

impl Session {
    /// More of a request has come that features look at: perhaps its first message is whole.
    pub(super) fn collected(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let State::Collecting { splitter, .. } = &mut stream.state else { return };
        let frame = match splitter.next_frame() {
            Ok(Some(frame)) => Some(frame),
            Ok(None) if !stream.request.source_done => return,
            // Too large, or no message at all.
            Ok(None) | Err(_) => None,
        };
        let State::Collecting { head, splitter } = std::mem::replace(&mut stream.state, State::Answered)
        else {
            return;
        };
        let rest = splitter.into_rest();
        match frame.map(|frame| (frame.message(), frame)) {
            Some((Some(message), frame)) => self.plan(id, *head, frame, message, rest),
            // Compressed, too large or not a gRPC message: nothing that crisp could read, so it goes on as it is.
            unreadable => {
                let first = unreadable.map(|(_, frame)| frame.into_bytes());
                for bytes in first.into_iter().chain([rest]) {
                    stream.observation.request_bytes(bytes.len());
                    stream.request.push(bytes);
                }
                let fields = self.ask(id, *head);
                self.down.recycle(fields);
            }
        }
    }

    fn plan(&mut self, id: u32, head: Fields, frame: Frame, message: Bytes, rest: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let call = Call {
            connection: self.id,
            method: stream.method,
            deadline: grpc_timeout(&head).and_then(|timeout| Instant::now().checked_add(timeout)),
            head,
            message,
        };
        let plan = plan(&call, self.proxy.router.route(stream.method), &self.proxy.metrics);
        let Call { head, message, .. } = call;
        match plan {
            Plan::Forward(Forward { first, request, reply, end }) => {
                stream.observation.request_bytes(rest.len());
                stream.request.push(rest);
                let forwarding = Forwarding { head, frame, message, changes: request, reply, end };
                if first.is_empty() {
                    self.forward(id, forwarding);
                } else {
                    let metrics = self.proxy.metrics.clone();
                    self.wait(id, first_steps(first, forwarding, metrics).boxed());
                }
            }
            answered => {
                // What is forwarded is counted on its way.
                stream.observation.request_bytes(frame.into_bytes().len());
                match answered {
                    Plan::Reply(raw) => self.answer(id, &raw),
                    Plan::Refuse(error) => self.fail(id, &error),
                    Plan::Delegate(task) => self.wait(id, task.map(Brought::Reply).boxed()),
                    Plan::Forward(_) => {}
                }
            }
        }
    }

    /// Waits for something that ends with the call.
    fn wait(&mut self, id: u32, task: BoxFuture<'static, Brought>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (abort, registration) = AbortHandle::new_pair();
        stream.state = State::Waiting { _until_dropped: Waiting(abort) };
        let task = AssertUnwindSafe(task).catch_unwind();
        let task = task.map(move |brought| (id, brought.unwrap_or_else(|_| Brought::Refusal(panicked()))));
        self.waits.push(Abortable::new(task.boxed(), registration));
    }

    /// What was waited for is there.
    pub(super) fn brought(&mut self, id: u32, brought: Brought) {
        match brought {
            Brought::Reply(raw) => self.answer(id, &raw),
            Brought::Refusal(error) => self.fail(id, &error),
            Brought::Forward(forwarding) => self.forward(id, *forwarding),
        }
    }

    /// Sends a call on as it was planned. What came of the request meanwhile follows it.
    fn forward(&mut self, id: u32, forwarding: Forwarding) {
        let Forwarding { mut head, frame, message, changes, reply, end } = forwarding;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.observation.tell(end);
        let length = PREFIX + message.len();
        let frame = match patched(frame, message, changes, &self.proxy.metrics) {
            Ok(frame) => frame.into_bytes(),
            Err(refusal) => return self.fail(id, &refusal),
        };
        if frame.len() != length {
            head = without_length(head);
        }
        stream.observation.request_bytes(frame.len());
        stream.replies = Replies::new(reply);
        stream.request.push_first(frame);
        let fields = self.ask(id, head);
        self.down.recycle(fields);
    }
}

/// Asks each feature in turn. One that answers the call ends the planning.
fn plan(call: &Call, features: &[Arc<dyn Feature>], metrics: &Metrics) -> Plan {
    let mut forward = Forward::default();
    for feature in features {
        match guarded(|| feature.plan(call, &mut forward)) {
            Ok(None) => {}
            Ok(Some(plan)) => return plan,
            Err(error) => match failure(error, feature.name(), feature.policy(), "plan", metrics) {
                Some(refusal) => return Plan::Refuse(refusal),
                None => continue,
            },
        }
    }
    Plan::Forward(forward)
}

/// Waits for what has to come to its end before a call goes on.
async fn first_steps(first: Vec<Step<First>>, mut forwarding: Forwarding, metrics: Arc<Metrics>) -> Brought {
    for Step { feature, policy, action } in first {
        // A panic is a failure of this feature alone, and means what its policy says.
        match AssertUnwindSafe(action.0).catch_unwind().await.unwrap_or_else(|_| Err(panicked())) {
            Ok(patch) => forwarding.changes.push(Step { feature, policy, action: patch }),
            // To refuse is what it was waited for, and no failure of the feature.
            Err(refusal) if policy == Policy::Closed => return Brought::Refusal(refusal),
            Err(error) => {
                failure(error, feature, policy, "first", &metrics);
            }
        }
    }
    Brought::Forward(Box::new(forwarding))
}
