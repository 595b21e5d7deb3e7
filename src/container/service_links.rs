//! Which Services a pod names, and the variables it gets for them. Pure: texts and values in, decisions out.
//!
//! Two annotations of a pod say what it wants of Services of its own namespace:
//!
//! ```text
//! crisp.dev/service-dependencies: ["redis-master", "queue"]
//! crisp.dev/env-from: {"web": [{"prefix": "PREFIX_", "service": {"name": "redis-master"}}]}
//! ```
//!
//! Whoever may create a pod writes them, so their size is bounded before they are read, and an error names the place.

mod env;
mod json;

use std::collections::BTreeMap;
use std::fmt;

pub use self::env::{Change, Port, Service, Unlinkable, Variable, change, variables};

/// The annotation that names the Services without which the pod does not start.
pub const DEPENDENCIES: &str = "crisp.dev/service-dependencies";
/// The annotation that says which containers get variables of which Services.
pub const ENV_FROM: &str = "crisp.dev/env-from";
/// The longest value that is read.
pub const MAX_BYTES: usize = 64 << 10;
/// The most Services that one annotation may name, duplicates included.
pub const MAX_NAMES: usize = 100;

/// The Services without which a pod does not start, each once, in the order of the alphabet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dependencies(Vec<String>);

/// Where the containers of a pod get variables from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvFrom(BTreeMap<String, Vec<Source>>);

/// One Service whose variables a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What the names of the variables begin with.
    pub prefix: String,
    /// The Service.
    pub service: String,
}

/// What is wrong with an annotation, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationError {
    annotation: &'static str,
    /// Such as `web[0].service.name`; empty for the whole.
    field: String,
    reason: String,
}

// === impl Dependencies ===

impl Dependencies {
    /// Reads the annotation's value.
    pub fn parse(value: &[u8]) -> Result<Self, AnnotationError> {
        let mut names: Vec<String> = json::read(DEPENDENCIES, value)?;
        if names.len() > MAX_NAMES {
            return Err(too_many(DEPENDENCIES, names.len()));
        }
        for (position, name) in names.iter().enumerate() {
            if !is_label(name) {
                return Err(not_a_service(DEPENDENCIES, format!("[{position}]"), name));
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(Self(names))
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

// === impl EnvFrom ===

impl EnvFrom {
    /// Reads the annotation's value.
    pub fn parse(value: &[u8]) -> Result<Self, AnnotationError> {
        let written: json::Containers = json::read(ENV_FROM, value)?;
        let count = written.0.values().map(Vec::len).sum();
        if count > MAX_NAMES {
            return Err(too_many(ENV_FROM, count));
        }
        let mut containers = BTreeMap::new();
        for (container, sources) in written.0 {
            if !is_label(&container) {
                let reason = "is not the name of a container: lower-case letters, digits and `-`, at most 63";
                return Err(AnnotationError::new(ENV_FROM, shown(&container), reason));
            }
            let mut all = Vec::new();
            for (position, json::Source { prefix, service }) in sources.into_iter().enumerate() {
                let at = |field: &str| format!("{container}[{position}].{field}");
                let prefix = prefix.unwrap_or_default();
                if !is_prefix(&prefix) {
                    let reason = format!(
                        "{:?} cannot begin the name of a variable: letters, digits, `_`, `-` and `.`, not a digit first, \
                         at most 253",
                        shown(&prefix)
                    );
                    return Err(AnnotationError::new(ENV_FROM, at("prefix"), reason));
                }
                if !is_label(&service.name) {
                    return Err(not_a_service(ENV_FROM, at("service.name"), &service.name));
                }
                all.push(Source { prefix, service: service.name });
            }
            containers.insert(container, all);
        }
        Ok(Self(containers))
    }

    /// Whether any container asks for anything. Then no container of the pod gets variables that it did not ask for.
    pub fn is_used(&self) -> bool {
        self.0.values().any(|sources| !sources.is_empty())
    }

    /// What one container asks for, in its order.
    pub fn of(&self, container: &str) -> &[Source] {
        self.0.get(container).map(Vec::as_slice).unwrap_or_default()
    }

    /// Every container with what it asks for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Source])> {
        self.0.iter().map(|(container, sources)| (container.as_str(), sources.as_slice()))
    }
}

// === impl AnnotationError ===

impl AnnotationError {
    fn new(annotation: &'static str, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { annotation, field: field.into(), reason: reason.into() }
    }
}

impl fmt::Display for AnnotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "annotation {}: ", self.annotation)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for AnnotationError {}

fn too_many(annotation: &'static str, count: usize) -> AnnotationError {
    AnnotationError::new(annotation, "", format!("names {count} Services; at most {MAX_NAMES} are read"))
}

fn not_a_service(annotation: &'static str, field: String, name: &str) -> AnnotationError {
    let reason = format!(
        "{:?} is not the name of a Service: lower-case letters, digits and `-`, at most 63",
        shown(name)
    );
    AnnotationError::new(annotation, field, reason)
}

/// A DNS label, as containers and Services are named. Services that begin with a digit exist since Kubernetes 1.34.
fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// As Kubernetes wants the `prefix` of an `envFrom`; none is fine.
fn is_prefix(text: &str) -> bool {
    text.len() <= 253
        && !text.starts_with(|letter: char| letter.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Somebody's text as an error shows it.
fn shown(text: &str) -> String {
    let cut = if text.chars().nth(80).is_some() { "..." } else { "" };
    text.chars()
        .take(80)
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .chain(cut.chars())
        .collect()
}

#[cfg(test)]
mod tests;
