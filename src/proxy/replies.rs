//! What the features do with the reply on its way back: look at it, count in it, or change it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::cri::Policy;
use crate::cri::frame::{Frame, Splitter};
use crate::cri::plan::{OnReply, Step};
use crate::error::{Error, Kind, Origin};
use crate::metrics::Metrics;
use crate::proxy::counting::{Counting, count};
use crate::wire::Patch;

/// The steps of one call.
#[derive(Debug)]
pub(super) struct Replies {
    steps: Vec<Step<OnReply>>,
    way: Way,
}

/// How the reply goes by.
#[derive(Debug)]
enum Way {
    /// Untouched, while somebody counts.
    Counted(Counting),
    /// Untouched; messages are looked at when they are whole.
    Seen(Splitter),
    /// Each message is held until it is whole, and changed.
    Mapped(Splitter),
    /// As it comes, because it is too large to be collected.
    Given,
}

impl Replies {
    /// Nothing, if nobody wants to see the reply.
    pub(super) fn new(steps: Vec<Step<OnReply>>) -> Option<Self> {
        let maps = |step: &Step<OnReply>| matches!(step.action, OnReply::Map(_));
        let way = if steps.is_empty() {
            return None;
        } else if steps.iter().any(maps) {
            Way::Mapped(Splitter::default())
        } else if let Some(counting) = Counting::by(&steps) {
            Way::Counted(counting)
        } else {
            Way::Seen(Splitter::default())
        };
        Some(Self { steps, way })
    }

    /// Whether what comes must be given to [`Replies::map`], and only what that gives may go on.
    pub(super) fn maps(&self) -> bool {
        matches!(self.way, Way::Mapped(_))
    }

    /// Sees what has gone on to the caller, so that it costs the caller nothing.
    pub(super) fn see(&mut self, chunk: &[u8], metrics: &Metrics) {
        match &mut self.way {
            Way::Counted(counting) => counting.push(chunk, &mut self.steps, |step, error| {
                failure(error, step.feature, step.policy, "reply", metrics);
            }),
            Way::Seen(splitter) => {
                splitter.push_slice(chunk);
                loop {
                    match splitter.next_frame() {
                        Ok(Some(frame)) => observe(&mut self.steps, &frame, metrics),
                        Ok(None) => return,
                        Err(_too_large) => break,
                    }
                }
                self.way = Way::Given;
            }
            Way::Mapped(_) | Way::Given => {}
        }
    }

    /// Takes what came; gives what goes on now. An error is a refusal by a feature that fails closed.
    pub(super) fn map(&mut self, chunk: &[u8], metrics: &Metrics) -> Result<Vec<Bytes>, Error> {
        let Way::Mapped(splitter) = &mut self.way else { return Ok(vec![Bytes::copy_from_slice(chunk)]) };
        splitter.push_slice(chunk);
        let mut on = Vec::new();
        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => on.push(map(&mut self.steps, frame, metrics)?.into_bytes()),
                Ok(None) => return Ok(on),
                Err(_too_large) => break,
            }
        }
        on.push(std::mem::take(splitter).into_rest());
        self.way = Way::Given;
        Ok(on)
    }

    /// What is left at the end: no whole message, so it goes on as it came.
    pub(super) fn rest(&mut self) -> Bytes {
        match &mut self.way {
            Way::Mapped(splitter) => std::mem::take(splitter).into_rest(),
            Way::Counted(_) | Way::Seen(_) | Way::Given => Bytes::new(),
        }
    }
}

fn observe(steps: &mut [Step<OnReply>], frame: &Frame, metrics: &Metrics) {
    let Some(message) = frame.message() else { return };
    for Step { feature, policy, action } in steps {
        let result = guarded(|| match action {
            OnReply::Observe(observe) => observe(&message),
            OnReply::Count(field, then) => count(&message, *field, then),
            OnReply::Map(_) => Ok(()),
        });
        if let Err(error) = result {
            failure(error, feature, *policy, "reply", metrics);
        }
    }
}

fn map(steps: &mut [Step<OnReply>], frame: Frame, metrics: &Metrics) -> Result<Frame, Error> {
    let Some(message) = frame.message() else { return Ok(frame) };
    let mut current = message.clone();
    for Step { feature, policy, action } in steps {
        let result = guarded(|| match action {
            OnReply::Observe(observe) => observe(&current).map(|()| None),
            OnReply::Count(field, then) => count(&current, *field, then).map(|()| None),
            OnReply::Map(map) => map(&current).and_then(|patch| apply(&patch, &current)).map(Some),
        });
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

/// Applies the features' changes to the request. Without a change the very same bytes go on.
pub(super) fn patched(
    frame: Frame,
    message: Bytes,
    steps: Vec<Step<Patch>>,
    metrics: &Metrics,
) -> Result<Frame, Error> {
    let mut current = message.clone();
    for Step { feature, policy, action } in steps {
        match guarded(|| apply(&action, &current)) {
            Ok(changed) => current = changed,
            Err(error) => {
                if let Some(refusal) = failure(error, feature, policy, "request", metrics) {
                    return Err(refusal);
                }
            }
        }
    }
    Ok(if same(&current, &message) { frame } else { Frame::of_message(&current) })
}

/// Counts a feature's failure. Gives the refusal if the call must not go on without it.
pub(super) fn failure(
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

/// A panic in a feature is a failure of that feature, and not the end of a connection with all its calls.
pub(super) fn guarded<T>(act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(panicked()))
}

pub(super) fn panicked() -> Error {
    Error::new(
        Kind::Internal,
        Origin::Crisp,
        "a part of crisp failed; please report this with the log around it",
    )
}

fn apply(patch: &Patch, message: &Bytes) -> Result<Bytes, Error> {
    patch.apply(message).map_err(|error| {
        Error::new(Kind::Internal, Origin::Crisp, format!("cannot change the message: {error}"))
    })
}

fn same(a: &Bytes, b: &Bytes) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}
