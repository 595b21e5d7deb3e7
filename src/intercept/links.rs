//! Pods that name the Services they need: [`crate::container::service_links`].
//!
//! | call | what is done |
//! |---|---|
//! | RunPodSandbox | held until the Services of `crisp.dev/service-dependencies` exist |
//! | CreateContainer | variables of the Services of `crisp.dev/env-from` come, those of other Services go |
//!
//! A call that mentions neither annotation costs a search through its own bytes and no more. The annotations of a
//! CreateContainer are the pod's present ones, not those with which its sandbox was made. A message that cannot be read
//! goes on: the runtime cannot read it either, and says so in its own words.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::FutureExt;

use crate::container::links::{Links, Pod};
use crate::container::service_links::{
    AnnotationError, Change, DEPENDENCIES, Dependencies, ENV_FROM, EnvFrom, Variable,
};
use crate::cri::plan::{First, Step};
use crate::cri::{Call, Forward, Method, Plan, Policy};
use crate::error::{Error, Kind, Origin};
use crate::intercept::Feature;
use crate::wire::{self, Field, Patch, Value, entry, fields, last};

/// Applies the annotations.
#[derive(Debug)]
pub(super) struct ServiceLinks {
    links: Links,
}

const NAME: &str = "links";

/// Where a request has what is read here: the pod's annotations and its metadata.
struct Places {
    annotations: &'static [u32],
    metadata: &'static [u32],
}

const RUN: Places = Places { annotations: &[1, 7], metadata: &[1, 1] };
const CREATE: Places = Places { annotations: &[3, 7], metadata: &[3, 1] };

/// Name of the container to be created, and its environment.
const CONTAINER: [u32; 3] = [2, 1, 1];
const CONFIG: u32 = 2;
const ENVS: u32 = 6;

// === impl ServiceLinks ===

impl ServiceLinks {
    pub(super) fn new(links: Links) -> Self {
        Self { links }
    }

    fn sandbox(&self, call: &Call) -> Result<Option<First>, Error> {
        let message = call.message.as_ref();
        if !mentions(message, DEPENDENCIES) && !mentions(message, ENV_FROM) {
            return Ok(None);
        }
        // Said before the pod has cost anything, though only its containers need it.
        if let Some(value) = RUN.annotation(message, ENV_FROM) {
            EnvFrom::parse(value).map_err(|error| self.malformed(&RUN.pod(message), &error))?;
        }
        let Some(value) = RUN.annotation(message, DEPENDENCIES) else { return Ok(None) };
        let pod = RUN.pod(message);
        let dependencies = Dependencies::parse(value).map_err(|error| self.malformed(&pod, &error))?;
        if dependencies.names().is_empty() {
            return Ok(None);
        }
        let exist = self.links.all_exist(pod, dependencies, call.deadline);
        Ok(Some(First(exist.map(|exist| exist.map(|()| Patch::new())).boxed())))
    }

    fn container(&self, call: &Call) -> Result<Option<First>, Error> {
        let message = &call.message;
        if !mentions(message, ENV_FROM) {
            return Ok(None);
        }
        let Some(value) = CREATE.annotation(message, ENV_FROM) else { return Ok(None) };
        let pod = CREATE.pod(message);
        let wanted = EnvFrom::parse(value).map_err(|error| self.malformed(&pod, &error))?;
        if !wanted.is_used() {
            return Ok(None);
        }
        let container = text(message, &CONTAINER);
        let sources = wanted.of(&container).to_vec();
        // What cannot be read goes on; the runtime says what it thinks of it.
        let Ok(env) = env(message) else { return Ok(None) };
        let change = self.links.environment(pod, container, env, sources);
        Ok(Some(First(change.map(|change| change.map(patch)).boxed())))
    }

    fn malformed(&self, pod: &Pod, error: &AnnotationError) -> Error {
        let message = format!("pod {}/{}: {error}", pod.namespace, pod.name);
        self.links.refuse("invalid", Error::new(Kind::Invalid, Origin::Kubelet, message))
    }
}

impl Feature for ServiceLinks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn policy(&self) -> Policy {
        Policy::Closed
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        let first = match call.method {
            Method::RUN_POD_SANDBOX => self.sandbox(call),
            Method::CREATE_CONTAINER => self.container(call),
            _ => Ok(None),
        };
        match first {
            Ok(Some(action)) => forward.first.push(Step { feature: NAME, policy: Policy::Closed, action }),
            Ok(None) => {}
            // A refusal is what this feature is for, not a failure of it.
            Err(error) => return Ok(Some(Plan::Refuse(error))),
        }
        Ok(None)
    }
}

// === impl Places ===

impl Places {
    /// An annotation of the pod; none if the message cannot be read.
    fn annotation<'a>(&self, message: &'a [u8], key: &str) -> Option<&'a [u8]> {
        entry(message, self.annotations, key).ok().flatten()
    }

    fn pod(&self, message: &[u8]) -> Pod {
        let of = |field: u32| text(message, &[self.metadata, &[field]].concat());
        Pod { name: of(1), uid: of(2), namespace: of(3) }
    }
}

/// Whether an annotation's name occurs anywhere.
fn mentions(message: &[u8], annotation: &str) -> bool {
    memchr::memmem::find(message, annotation.as_bytes()).is_some()
}

/// The text at a path; empty if there is none.
fn text(message: &[u8], path: &[u32]) -> String {
    last(message, path).ok().flatten().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

/// The environment of the container to be created, values as the bytes they are.
fn env(message: &[u8]) -> Result<Vec<Variable>, wire::Error> {
    let mut env = Vec::new();
    for config in fields(message) {
        let Field { number: CONFIG, value: Value::Len(config), .. } = config? else { continue };
        for field in fields(config) {
            if let Field { number: ENVS, value: Value::Len(variable), .. } = field? {
                env.push((part(variable, 1)?.to_owned(), part(variable, 2)?.to_owned()));
            }
        }
    }
    Ok(env)
}

/// Name (1) or value (2) of a variable; empty if it has none.
fn part(variable: &[u8], number: u32) -> Result<&[u8], wire::Error> {
    Ok(match last(variable, [number])? {
        Some(Value::Len(bytes)) => bytes,
        _ => &[],
    })
}

fn patch(Change { remove, add }: Change) -> Patch {
    let mut patch = Patch::new();
    if !remove.is_empty() {
        patch = patch.retain([CONFIG, ENVS], move |variable| !goes(variable, &remove));
    }
    for (name, value) in add {
        let variable = Patch::new().set([1], name.as_str()).set([2], value.as_str()).apply(&Bytes::new());
        // An empty message can always be patched.
        if let Ok(variable) = variable {
            patch = patch.append([CONFIG, ENVS], variable);
        }
    }
    patch
}

fn goes(variable: &[u8], remove: &HashSet<Variable>) -> bool {
    match (part(variable, 1), part(variable, 2)) {
        (Ok(name), Ok(value)) => remove.contains(&(name.to_owned(), value.to_owned())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, values and order of what stays are untouched, and values need not be text.
    #[test]
    fn variables_go_by_name_and_value_and_others_come_last() {
        let variable = |name: &str, value: &[u8]| {
            Patch::new().set([1], name).set([2], Bytes::copy_from_slice(value)).apply(&Bytes::new()).unwrap()
        };
        let mut message = Bytes::new();
        for (name, value) in [("A", &b"1"[..]), ("B", b"\xff\xfe"), ("A", b"2"), ("C", b"")] {
            message = Patch::new().append([CONFIG, ENVS], variable(name, value)).apply(&message).unwrap();
        }
        let change = Change {
            remove: HashSet::from([(b"A".to_vec(), b"1".to_vec()), (b"C".to_vec(), b"x".to_vec())]),
            add: vec![("D".into(), "4".into())],
        };
        let pairs = env(&patch(change).apply(&message).unwrap()).unwrap();
        let pair = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
        assert_eq!(pairs, [pair("B", b"\xff\xfe"), pair("A", b"2"), pair("C", b""), pair("D", b"4")]);
        assert_eq!(patch(Change::default()).apply(&message).unwrap(), message);
    }
}
