//! Records of containers: a label on each that is created, and never a word of it to whoever asks for containers.
//!
//! | call | what is done |
//! |---|---|
//! | CreateContainer | the label is set; when it has succeeded, the container before it is looked for (in the background) |
//! | StopContainer | remembered unless it is refused, so that the end of the container is not taken for a crash |
//! | ListContainers, StreamContainers | the label is taken out; a list of all tells what labels take on the node |
//! | ContainerStatus, PodSandboxStatus, GetContainerEvents, stats | the label is taken out |
//!
//! A message without any label goes on as it came. Who asks the runtime on its own socket sees the label.
//!
//! # Current limitations
//!
//! A reply that is compressed or larger than 64 MiB goes on as it came, as everywhere. What a runtime says in the `info` of
//! a verbose ContainerStatus is its own text for debugging; containerd repeats the labels there, and it is left alone.

mod strip;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tonic::Code;

use self::strip::{Place, Taken, asks_for_all, may_hold_record, records_in};
use crate::container::record::LABEL;
use crate::container::recorder::Recorder;
use crate::cri::plan::{First, OnEnd, OnReply, Step};
use crate::cri::{Call, Forward, Method, Plan, Policy};
use crate::error::Error;
use crate::intercept::Feature;
use crate::metrics::Metrics;
use crate::wire::{Patch, Value, count, last};

/// Adds records and takes them out.
#[derive(Debug)]
pub(super) struct Records {
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

const NAME: &str = "records";

/// The labels in a CreateContainerRequest: those of the container's config.
const LABELS: [u32; 2] = [2, 9];

// === impl Records ===

impl Records {
    pub(super) fn new(recorder: Recorder, metrics: Arc<Metrics>) -> Self {
        Self { recorder, metrics }
    }

    fn create(&self, call: &Call, forward: &mut Forward) -> Result<(), Error> {
        if last(&call.message, [2])?.is_none() {
            // A container without a config is refused by the runtime, and has no labels.
            return Ok(());
        }
        match self.recorder.label(&call.message) {
            Some(label) => {
                // A label of that name in the request is not ours, so it goes in any case.
                let patch = with_label(label.as_deref().ok());
                forward.request.push(Step { feature: NAME, policy: Policy::Open, action: patch });
                label.map(drop)
            }
            None => {
                let label = self.recorder.label_of_large(&call.message);
                forward.request.push(step(with_label(None)));
                let patch = async move { Ok(with_label(Some(&label.await?))) };
                forward.first.push(step(First(Box::pin(patch))));
                Ok(())
            }
        }
    }

    /// Remembers that a container is being stopped, from now on: it ends before the call does.
    fn stop(&self, id: &str, forward: &mut Forward) {
        if !self.recorder.stopping(id) {
            return;
        }
        let (recorder, id) = (self.recorder.clone(), id.to_owned());
        forward.end.push(step(OnEnd(Box::new(move |code| {
            // A kubelet that has waited long enough may well have got what it wanted.
            if !matches!(code, Code::Ok | Code::Cancelled | Code::DeadlineExceeded) {
                recorder.not_stopped(&id);
            }
        }))));
    }

    /// Looks for the container before, once this one is there.
    fn watch(&self, call: &Call, forward: &mut Forward) {
        let (recorder, metrics, request) =
            (self.recorder.clone(), self.metrics.clone(), call.message.clone());
        let (id, method) = (Arc::new(Mutex::new(String::new())), call.method);
        let seen = id.clone();
        let observe = move |message: &Bytes| {
            if let Some(id) = last(message, [1])?.and_then(Value::as_str) {
                id.clone_into(&mut seen.lock().unwrap_or_else(PoisonError::into_inner));
            }
            metrics.read_reply(method);
            Ok(())
        };
        forward.reply.push(step(OnReply::Observe(Box::new(observe))));
        forward.end.push(step(OnEnd(Box::new(move |code| {
            let id = id.lock().unwrap_or_else(PoisonError::into_inner);
            if code == Code::Ok && !id.is_empty() {
                recorder.created(request, &id);
            }
        }))));
    }

    /// Takes the records out of the messages of a reply.
    fn strip(&self, place: Place, call: &Call, forward: &mut Forward) -> Result<(), Error> {
        let is_list = matches!(call.method, Method::LIST_CONTAINERS | Method::STREAM_CONTAINERS);
        if is_list && self.recorder.knows_of_none() {
            // Lists are long, and need not be collected for nothing.
            let (metrics, method) = (self.metrics.clone(), call.method);
            let then = move |entries| {
                metrics.read_reply(method);
                metrics.listed(method, entries);
            };
            forward.reply.push(step(OnReply::Count(1, Box::new(then))));
            return Ok(());
        }
        let (taken, mut labels) = (Taken::default(), None);
        if is_list && asks_for_all(&call.message)? {
            let wanted = self.recorder.wants_labels().then(|| Arc::new(Mutex::new(Vec::new())));
            labels = wanted.clone();
            let (recorder, mark, taken) = (self.recorder.clone(), self.recorder.mark(), taken.clone());
            forward.end.push(step(OnEnd(Box::new(move |code| {
                if code == Code::Ok {
                    let labels = wanted.map(|labels| {
                        std::mem::take(&mut *labels.lock().unwrap_or_else(PoisonError::into_inner))
                    });
                    recorder.listed(mark, taken.load(Ordering::Relaxed), labels);
                }
            }))));
        }
        let (metrics, method) = (self.metrics.clone(), call.method);
        let map = move |message: &Bytes| {
            metrics.read_reply(method);
            if is_list {
                metrics.listed(method, count(message, [1])?);
            }
            if !may_hold_record(message) {
                return Ok(Patch::new());
            }
            if let Some(labels) = &labels {
                let found = records_in(message)?;
                labels.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
            Ok(place.strip(&taken))
        };
        forward.reply.push(step(OnReply::Map(Box::new(map))));
        Ok(())
    }
}

impl Feature for Records {
    fn name(&self) -> &'static str {
        NAME
    }

    fn policy(&self) -> Policy {
        Policy::Open
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        match call.method {
            Method::CREATE_CONTAINER => {
                // Without a record it is watched all the same.
                self.watch(call, forward);
                self.create(call, forward)?;
            }
            Method::STOP_CONTAINER => {
                let id = last(&call.message, [1])?.and_then(Value::as_str);
                self.stop(id.unwrap_or_default(), forward);
            }
            method => match Place::of(method) {
                Some(place) => self.strip(place, call, forward)?,
                None => return Ok(None),
            },
        }
        self.metrics.read_request(call.method);
        Ok(None)
    }
}

fn with_label(label: Option<&str>) -> Patch {
    match label {
        Some(label) => Patch::new().set_entry(LABELS, LABEL, label),
        None => Patch::new().remove_entry(LABELS, LABEL),
    }
}

fn step<T>(action: T) -> Step<T> {
    Step { feature: NAME, policy: Policy::Open, action }
}
