//! Collects a message, lets the features plan, and carries the plan out: read → plan → forward → observe.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::request;

use crate::cri::call::grpc_timeout;
use crate::cri::frame::{Frame, Splitter};
use crate::cri::plan::{OnReply, Step};
use crate::cri::{Call, Forward, Method, Plan, Policy};
use crate::error::Error;
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::proxy::counting::{Counting, count};
use crate::proxy::downstream::Downstream;
use crate::proxy::head;
use crate::proxy::observation::Observation;
use crate::proxy::passthrough::{self, Outgoing};
use crate::proxy::pump::{self, Ended, Event};
use crate::proxy::upstream::Link;
use crate::wire::Patch;

/// What is done with the reply on its way back. Nothing, for a call that passes through.
#[derive(Debug, Default)]
pub(super) struct Replies {
    steps: Vec<Step<OnReply>>,
}

/// Runs an intercepted call.
pub(super) async fn run(
    connection: u64,
    method: Method,
    mut parts: request::Parts,
    mut body: RecvStream,
    features: &[Arc<dyn Feature>],
    link: &Link,
    downstream: &mut Downstream,
) {
    let Ok((frame, rest)) = collect(&mut body).await else { return };
    let message = frame.as_ref().and_then(Frame::message);
    let (Some(frame), Some(message)) = (frame.clone(), message) else {
        // Compressed, too large or not a gRPC message: nothing that crisp could read, so it goes on as it is.
        let first = join(frame.map(Frame::into_bytes), rest);
        let outgoing = Outgoing { head: head::forwarded(parts), first, body };
        return passthrough::forward(outgoing, link, downstream, Replies::default()).await;
    };
    let call = Call {
        connection,
        authority: parts.uri.authority().cloned(),
        method,
        deadline: grpc_timeout(&parts.headers).and_then(|timeout| Instant::now().checked_add(timeout)),
        // They come back for the way to the runtime.
        metadata: std::mem::take(&mut parts.headers),
        message,
    };
    let plan = plan(&call, features, downstream.observation.metrics());
    if !matches!(plan, Plan::Forward(_)) {
        // What is forwarded is counted on its way.
        downstream.observation.request_bytes(frame.clone().into_bytes().len());
    }
    match plan {
        Plan::Forward(forward) => {
            let mut changes = forward.request;
            for Step { feature, policy, action } in forward.first {
                let brought = tokio::select! {
                    biased;
                    brought = action.0 => brought,
                    () = downstream.gone() => return,
                };
                match brought {
                    Ok(patch) => changes.push(Step { feature, policy, action: patch }),
                    // To refuse is what it was waited for, and no failure of the feature.
                    Err(refusal) if policy == Policy::Closed => return downstream.fail(&refusal),
                    Err(error) => {
                        let metrics = downstream.observation.metrics();
                        failure(error, feature, policy, "first", metrics);
                    }
                }
            }
            parts.headers = call.metadata;
            downstream.observation.tell(forward.end);
            let frame = match patched(frame, call.message, changes, downstream.observation.metrics()) {
                Ok(frame) => frame,
                Err(refusal) => return downstream.fail(&refusal),
            };
            let first = join(Some(frame.into_bytes()), rest);
            let outgoing = Outgoing { head: head::forwarded(parts), first, body };
            let replies = Replies { steps: forward.reply };
            passthrough::forward(outgoing, link, downstream, replies).await;
        }
        Plan::Reply(raw) => downstream.reply(&raw).await,
        Plan::Refuse(error) => downstream.fail(&error),
        Plan::Delegate(task) => {
            let raw = tokio::select! {
                biased;
                raw = task => raw,
                () = downstream.gone() => return,
            };
            downstream.reply(&raw).await;
        }
    }
}

/// Reads the first message. Gives it, if there is one that can be collected, and what was read beyond it.
async fn collect(body: &mut RecvStream) -> Result<(Option<Frame>, Bytes), h2::Error> {
    let mut splitter = Splitter::default();
    loop {
        match splitter.next_frame() {
            Ok(Some(frame)) => return Ok((Some(frame), splitter.into_rest())),
            Ok(None) => {}
            Err(_too_large) => return Ok((None, splitter.into_rest())),
        }
        match body.data().await {
            Some(chunk) => {
                let chunk = chunk?;
                body.flow_control().release_capacity(chunk.len())?;
                splitter.push(chunk);
            }
            None => return Ok((None, splitter.into_rest())),
        }
    }
}

/// Asks each feature in turn. One that answers the call ends the planning.
fn plan(call: &Call, features: &[Arc<dyn Feature>], metrics: &Metrics) -> Plan {
    let mut forward = Forward::default();
    for feature in features {
        match feature.plan(call, &mut forward) {
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

/// Applies the features' changes to the request. Without a change the very same bytes go on.
fn patched(frame: Frame, message: Bytes, steps: Vec<Step<Patch>>, metrics: &Metrics) -> Result<Frame, Error> {
    let mut current = message.clone();
    for Step { feature, policy, action } in steps {
        match apply(&action, &current) {
            Ok(changed) => current = changed,
            Err(error) => match failure(error, feature, policy, "request", metrics) {
                Some(refusal) => return Err(refusal),
                None => continue,
            },
        }
    }
    Ok(if same(&current, &message) { frame } else { Frame::of_message(&current) })
}

fn apply(patch: &Patch, message: &Bytes) -> Result<Bytes, Error> {
    use crate::error::{Kind, Origin};
    patch.apply(message).map_err(|error| {
        Error::new(Kind::Internal, Origin::Crisp, format!("cannot change the message: {error}"))
    })
}

/// Counts a feature's failure. Gives the refusal if the call must not go on without it.
fn failure(
    error: Error,
    feature: &'static str,
    policy: Policy,
    step: &'static str,
    metrics: &Metrics,
) -> Option<Error> {
    metrics.intercept_failed(feature, step);
    tracing::debug!(feature, step, %error, ?policy, "a feature could not do its part");
    (policy == Policy::Closed).then_some(error)
}

fn join(first: Option<Bytes>, rest: Bytes) -> Bytes {
    match first {
        None => rest,
        Some(first) if rest.is_empty() => first,
        Some(first) => [first, rest].concat().into(),
    }
}

fn same(a: &Bytes, b: &Bytes) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}

// === impl Replies ===

impl Replies {
    /// Carries the reply's body. An error is a refusal by a feature that fails closed.
    pub(super) async fn carry(
        &mut self,
        from: &mut RecvStream,
        to: &mut SendStream<Bytes>,
        observation: &mut Observation,
    ) -> Result<Ended, Error> {
        let mut bytes = 0;
        let ended = if self.steps.is_empty() {
            Ok(pump::carry(from, to, |chunk| bytes += chunk.len()).await)
        } else if self.steps.iter().any(|step| matches!(step.action, OnReply::Map(_))) {
            self.carry_mapped(from, to, &mut bytes, observation.metrics()).await
        } else if let Some(mut counting) = Counting::by(&self.steps) {
            let metrics = observation.metrics();
            let failed = |step: &Step<OnReply>, error| {
                failure(error, step.feature, step.policy, "reply", metrics);
            };
            let carried = pump::carry(from, to, |chunk| {
                bytes += chunk.len();
                counting.push(chunk, &mut self.steps, failed);
            });
            Ok(carried.await)
        } else {
            Ok(self.carry_observed(from, to, &mut bytes, observation.metrics()).await)
        };
        observation.reply_bytes(bytes);
        ended
    }

    /// Observers see a message after it has gone on, so they cost the caller nothing.
    async fn carry_observed(
        &mut self,
        from: &mut RecvStream,
        to: &mut SendStream<Bytes>,
        bytes: &mut usize,
        metrics: &Metrics,
    ) -> Ended {
        let mut splitter = Some(Splitter::default());
        pump::carry(from, to, |chunk| {
            *bytes += chunk.len();
            let Some(collecting) = &mut splitter else { return };
            collecting.push(chunk.clone());
            loop {
                match collecting.next_frame() {
                    Ok(Some(frame)) => self.observe(&frame, metrics),
                    Ok(None) => return,
                    Err(_too_large) => {
                        splitter = None;
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Each message is held until it is whole, changed, and sent on.
    async fn carry_mapped(
        &mut self,
        from: &mut RecvStream,
        to: &mut SendStream<Bytes>,
        bytes: &mut usize,
        metrics: &Metrics,
    ) -> Result<Ended, Error> {
        let mut splitter = Splitter::default();
        loop {
            let trailers = match poll_fn(|cx| pump::poll_event(from, to, cx)).await {
                Event::Data(chunk) => {
                    *bytes += chunk.len();
                    if let Err(error) = from.flow_control().release_capacity(chunk.len()) {
                        return Ok(Ended::Source(error));
                    }
                    splitter.push(chunk);
                    loop {
                        match splitter.next_frame() {
                            Ok(None) => break,
                            Ok(Some(frame)) => {
                                let frame = self.map(frame, metrics)?;
                                if pump::send(to, frame.into_bytes(), false).await.is_err() {
                                    return Ok(Ended::Sink);
                                }
                            }
                            Err(_too_large) => {
                                if pump::send(to, splitter.into_rest(), false).await.is_err() {
                                    return Ok(Ended::Sink);
                                }
                                return Ok(pump::carry(from, to, |chunk| *bytes += chunk.len()).await);
                            }
                        }
                    }
                    continue;
                }
                Event::Trailers(trailers) => Some(trailers),
                Event::Ended(Ended::Whole(_)) => None,
                Event::Ended(ended) => return Ok(ended),
            };
            // What is left is no whole message; it goes on as it came.
            if pump::send(to, splitter.into_rest(), false).await.is_err() {
                return Ok(Ended::Sink);
            }
            return Ok(pump::finish(to, trailers));
        }
    }

    fn observe(&mut self, frame: &Frame, metrics: &Metrics) {
        let Some(message) = frame.message() else { return };
        for Step { feature, policy, action } in &mut self.steps {
            let result = match action {
                OnReply::Observe(observe) => observe(&message),
                OnReply::Count(field, then) => count(&message, *field, then),
                OnReply::Map(_) => continue,
            };
            if let Err(error) = result {
                failure(error, feature, *policy, "reply", metrics);
            }
        }
    }

    fn map(&mut self, frame: Frame, metrics: &Metrics) -> Result<Frame, Error> {
        let Some(message) = frame.message() else { return Ok(frame) };
        let mut current = message.clone();
        for Step { feature, policy, action } in &mut self.steps {
            let result = match action {
                OnReply::Observe(observe) => observe(&current).map(|()| None),
                OnReply::Count(field, then) => count(&current, *field, then).map(|()| None),
                OnReply::Map(map) => map(&current).and_then(|patch| apply(&patch, &current)).map(Some),
            };
            match result {
                Ok(Some(changed)) => current = changed,
                Ok(None) => {}
                Err(error) => {
                    if let Some(refusal) = failure(error, feature, *policy, "reply", metrics) {
                        return Err(refusal);
                    }
                }
            }
        }
        Ok(if same(&current, &message) { frame } else { Frame::of_message(&current) })
    }
}
