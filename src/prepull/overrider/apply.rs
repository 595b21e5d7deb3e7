//! What the rules do to the name of an image, and of a secret.

use std::fmt;

use super::{
    ImageComponent, ImageOverrider, ImagePrePullOverrider, Labels, MAX_VALUE, NOT_A_NAME, Operator,
    OverriderError, SecretComponent, is_object_name,
};
use crate::image::Reference;
use crate::image::reference::DOCKER_HUB;
use crate::prepull::shown;

/// Where an image is pulled from on a node with these labels: the image itself if no rule is for this node. `image` is
/// the name as it is written; `path` is that of [`super::validate`]. No tag is added where there is none.
pub fn apply(
    image: &str,
    overriders: &[ImagePrePullOverrider],
    labels: &Labels,
    path: &str,
) -> Result<Reference, OverriderError> {
    let asked = Reference::parse(image)
        .map_err(|error| OverriderError { path: "image".into(), reason: error.to_string() })?;
    let mut parts = Parts::of(image, &asked);
    let mut result = asked;
    for (at, overrider) in matching(overriders, labels) {
        for (rule, overrider) in overrider.overriders.image_overriders.iter().enumerate() {
            let wrong = |(field, reason)| OverriderError {
                path: format!("{path}[{at}].overriders.imageOverriders[{rule}].{field}"),
                reason,
            };
            overrider.check().map_err(wrong)?;
            // Each rule must leave a name, so that the mistake is told of the rule that makes it.
            result = parts.change(overrider).map_err(|reason| wrong(("value", reason)))?;
        }
    }
    Ok(result)
}

/// Which secret is used on a node with these labels, as namespace and name. `None`: no secret, anonymous.
pub fn apply_secret(
    namespace: &str,
    name: &str,
    overriders: &[ImagePrePullOverrider],
    labels: &Labels,
    path: &str,
) -> Result<Option<(String, String)>, OverriderError> {
    let (mut namespace, mut name) = (namespace.to_owned(), name.to_owned());
    for (at, overrider) in matching(overriders, labels) {
        for (rule, overrider) in overrider.overriders.secret_overriders.iter().enumerate() {
            let wrong = |(field, reason)| OverriderError {
                path: format!("{path}[{at}].overriders.secretOverriders[{rule}].{field}"),
                reason,
            };
            overrider.check().map_err(wrong)?;
            let part = match overrider.component {
                SecretComponent::Namespace => &mut namespace,
                SecretComponent::SecretName => &mut name,
            };
            let changed = overrider.operator.change(part, &overrider.value);
            if overrider.operator != Operator::Remove && !is_object_name(&changed) {
                return Err(wrong(("value", format!("makes the name {:?}, {NOT_A_NAME}", shown(&changed)))));
            }
            *part = changed;
        }
    }
    Ok(if name.is_empty() { None } else { Some((namespace, name)) })
}

/// Those for nodes with these labels, with their places.
fn matching<'a>(
    overriders: &'a [ImagePrePullOverrider],
    labels: &Labels,
) -> impl Iterator<Item = (usize, &'a ImagePrePullOverrider)> {
    overriders
        .iter()
        .enumerate()
        .filter(|(_, found)| Selector::of(&found.node_label).is_ok_and(|selector| selector.matches(labels)))
}

/// An image's name in the parts that overriders know, as it is written.
#[derive(Debug)]
pub(super) struct Parts {
    registry: String,
    repository: String,
    tag: String,
    digest: String,
}

/// What a `nodeLabel` asks for.
#[derive(Debug)]
pub(super) struct Selector<'a> {
    key: &'a str,
    value: Option<&'a str>,
}

// === impl Operator ===

impl Operator {
    fn change(self, part: &str, value: &str) -> String {
        match self {
            Self::Add => format!("{part}{value}"),
            Self::Remove => String::new(),
            Self::Replace => value.to_owned(),
        }
    }
}

// === impl Parts ===

impl Parts {
    pub(super) fn of(image: &str, reference: &Reference) -> Self {
        let version = format!("{reference}").len() - reference.name().len();
        // What is written before the version, whether normalisation has put something in front of it or not.
        let name = image.get(..image.len().saturating_sub(version)).unwrap_or(image);
        // A first part that is not the registry is a part of a repository on Docker Hub, or its old name.
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first == reference.registry() || first == "index.docker.io" => {
                (first, rest)
            }
            _ => ("", name),
        };
        Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: reference.tag().unwrap_or_default().to_owned(),
            digest: reference.digest().unwrap_or_default().to_owned(),
        }
    }

    /// Changes one part. The reason says why the result is no image.
    pub(super) fn change(&mut self, overrider: &ImageOverrider) -> Result<Reference, String> {
        let ImageOverrider { component, operator, value } = overrider;
        match component {
            ImageComponent::Registry => {
                self.registry = operator.change(&self.registry, value.trim_end_matches('/'));
            }
            ImageComponent::Repository => self.repository = operator.change(&self.repository, value),
            ImageComponent::Tag => {
                if *operator == Operator::Add && self.tag.is_empty() && !self.digest.is_empty() {
                    return Err(format!(
                        "there is no tag to put {:?} behind: the image is chosen by its digest; use `replace`",
                        shown(value)
                    ));
                }
                if *operator != Operator::Remove && value.ends_with('@') {
                    return Err("has no digest behind its `@`".into());
                }
                (self.tag, self.digest) = version(&operator.change(&self.tag, value));
            }
        }
        let text = self.to_string();
        let changed = Reference::parse(&text)
            .map_err(|error| format!("makes the image {:?}: {}", shown(&text), error.reason()))?;
        if changed.tag().unwrap_or_default() != self.tag
            || changed.digest().unwrap_or_default() != self.digest
        {
            return Err("has a tag or a digest in it; give that as the component Tag".into());
        }
        if self.registry.is_empty() && changed.registry() != DOCKER_HUB {
            return Err(format!(
                "makes the image {:?}, whose repository would be read as a registry; give that as the component Registry",
                shown(&text)
            ));
        }
        let host = self.registry.split('/').next().unwrap_or_default();
        if !host.is_empty() && host != changed.registry() && host != "index.docker.io" {
            return Err(format!(
                "{:?} would be read as a part of the repository; a registry has a dot or a port, or is localhost",
                shown(host)
            ));
        }
        Ok(changed)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, tag, digest } = self;
        let (slash, colon, at) = (
            if registry.is_empty() { "" } else { "/" },
            if tag.is_empty() { "" } else { ":" },
            if digest.is_empty() { "" } else { "@" },
        );
        write!(f, "{registry}{slash}{repository}{colon}{tag}{at}{digest}")
    }
}

/// `tag`, `@digest`, `digest` or `tag@digest`, in two.
fn version(text: &str) -> (String, String) {
    let (tag, digest) = match text.split_once('@') {
        Some(parts) => parts,
        // No tag has a colon.
        None if text.contains(':') => ("", text),
        None => (text, ""),
    };
    (tag.to_owned(), digest.to_owned())
}

// === impl Selector ===

impl<'a> Selector<'a> {
    pub(super) fn of(text: &'a str) -> Result<Self, &'static str> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, None),
        };
        let fine = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'))
        };
        let nothing = key.is_empty() && value.is_some();
        if text.len() > MAX_VALUE || nothing || !fine(key) || !fine(value.unwrap_or_default()) {
            return Err("must be `key` or `key=value` of a label of the node, or empty for every node");
        }
        Ok(Self { key, value })
    }

    fn matches(&self, labels: &Labels) -> bool {
        self.key.is_empty()
            || labels.get(self.key).is_some_and(|found| self.value.is_none_or(|value| value == found))
    }
}
