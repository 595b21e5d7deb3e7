//! Overriders: on nodes with a label, an image is pulled from another place than its name says.
//!
//! ```json
//! [{"nodeLabel": "region=hangzhou", "overriders": {
//!     "imageOverriders": [{"component": "Registry", "operator": "replace", "value": "hangzhou.registry.io"}],
//!     "secretOverriders": [{"component": "SecretName", "operator": "replace", "value": "hangzhou-secret"}]}}]
//! ```
//!
//! The form is that of KubeEdge's proposal for ImagePrePullJob, and the meaning that of Karmada's image overrider, from
//! which the proposal took it. An image is `[registry/]repository[:tag][@digest]` **as it is written**: `nginx` has no
//! registry, `docker.io/library/nginx` has one and its repository is `library/nginx`.
//!
//! | component | add | replace | remove |
//! |---|---|---|---|
//! | Registry | behind the registry: `gcr.io` and `.cn` give `gcr.io.cn`; the registry itself where there is none | instead of it, or where there is none | none: Docker Hub |
//! | Repository | behind the repository: `app` and `-arm64` give `app-arm64` | instead of it | a mistake: nothing is left |
//! | Tag | behind the tag: `v1` and `-alpine` give `v1-alpine`; the tag itself where there is none | instead of tag and digest; a tag or `@sha256:…` | no tag and no digest: `latest` |
//! | Namespace | behind the namespace | instead of it | a mistake: a secret is in a namespace |
//! | SecretName | behind the name | instead of it | no secret: anonymous |
//!
//! A registry may have a path behind it (`harbor.example.com/hub`), for mirrors that are a part of a registry.
//! Where Karmada leaves an image as it is without a word, crisp reports a mistake: a tag added to an image that is chosen
//! by digest alone, a tag that is none, a registry that Docker would read as a part of the repository (`mirror`, without
//! a dot or a port). Karmada forgets the digest of `name:tag@digest`; crisp keeps it, unless the tag is changed.
//!
//! `nodeLabel` is `key`, `key=value`, or empty for every node. All that match are applied, in their order.

mod apply;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::apply::{Parts, Selector};
use super::shown;
use crate::image::Reference;

pub use self::apply::{apply, apply_secret};

/// How many overriders, and how many rules of a kind in each, are read.
const MAX_RULES: usize = 64;
/// Longest value, and label, that is read. No name may be longer.
const MAX_VALUE: usize = 512;

/// Labels of the node.
pub type Labels = BTreeMap<String, String>;

/// The rules for nodes with a label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImagePrePullOverrider {
    /// `key` or `key=value`; empty: every node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_label: String,
    /// What changes there.
    pub overriders: Overriders,
}

/// What changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Overriders {
    /// In the image's name, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_overriders: Vec<ImageOverrider>,
    /// In the secret's name, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secret_overriders: Vec<SecretOverrider>,
}

/// One change of an image's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageOverrider {
    /// What is changed.
    pub component: ImageComponent,
    /// How.
    pub operator: Operator,
    /// By what; not looked at for `remove`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// One change of a secret's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretOverrider {
    /// What is changed.
    pub component: SecretComponent,
    /// How.
    pub operator: Operator,
    /// By what; not looked at for `remove`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// A part of an image's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageComponent {
    /// `gcr.io`, `localhost:5000`.
    Registry,
    /// `library/nginx`.
    Repository,
    /// `v1`, `@sha256:…`.
    Tag,
}

/// A part of a secret's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecretComponent {
    /// The namespace it is in.
    Namespace,
    /// Its name there.
    SecretName,
}

/// How a part is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operator {
    /// The value is put behind it.
    Add,
    /// It goes.
    Remove,
    /// The value takes its place.
    Replace,
}

/// What is wrong with a rule, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct OverriderError {
    /// Path of the field, for example `overriders[0].overriders.imageOverriders[1].value`.
    pub path: String,
    /// What is wrong with it and what is allowed.
    pub reason: String,
}

/// All that can be known to be wrong before there is an image. `path` is where the overriders are, for example
/// `overriders`.
pub fn validate(overriders: &[ImagePrePullOverrider], path: &str) -> Result<(), Vec<OverriderError>> {
    let mut mistakes = Vec::new();
    let mut wrong = |path: String, reason: String| mistakes.push(OverriderError { path, reason });
    if overriders.len() > MAX_RULES {
        wrong(path.to_owned(), format!("has {} entries; at most {MAX_RULES} are read", overriders.len()));
    }
    for (at, overrider) in overriders.iter().enumerate().take(MAX_RULES) {
        if let Err(reason) = Selector::of(&overrider.node_label) {
            wrong(format!("{path}[{at}].nodeLabel"), reason.to_owned());
        }
        let Overriders { image_overriders, secret_overriders } = &overrider.overriders;
        for (field, length) in
            [("imageOverriders", image_overriders.len()), ("secretOverriders", secret_overriders.len())]
        {
            if length > MAX_RULES {
                let reason = format!("has {length} entries; at most {MAX_RULES} are read");
                wrong(format!("{path}[{at}].overriders.{field}"), reason);
            }
        }
        for (rule, found) in image_overriders.iter().enumerate().take(MAX_RULES) {
            if let Err((field, reason)) = found.check() {
                wrong(format!("{path}[{at}].overriders.imageOverriders[{rule}].{field}"), reason);
            }
        }
        for (rule, found) in secret_overriders.iter().enumerate().take(MAX_RULES) {
            if let Err((field, reason)) = found.check() {
                wrong(format!("{path}[{at}].overriders.secretOverriders[{rule}].{field}"), reason);
            }
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

const NOT_A_NAME: &str = "but Kubernetes' names are lower-case letters, digits, `-` and `.`, at most 253, letters or digits at both ends";

/// A name of an object as the API server takes it.
fn is_object_name(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    text.len() <= 253
        && ends(text.bytes().next())
        && ends(text.bytes().last())
        && text.bytes().all(|byte| ends(Some(byte)) || byte == b'-' || byte == b'.')
}

// === impl ImageOverrider ===

impl ImageOverrider {
    /// What is wrong with it whatever the image is: the field and the reason.
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_value(self.operator, &self.value)?;
        if (self.component, self.operator) == (ImageComponent::Repository, Operator::Remove) {
            let reason = "an image without a repository is none; use `replace` with another one";
            return Err(("operator", reason.to_owned()));
        }
        if self.operator == Operator::Replace {
            // It does not depend on the image, so any will do.
            let image = "registry.invalid/image";
            let parts = Reference::parse(image).map(|reference| Parts::of(image, &reference));
            let changed = parts.map_err(|error| error.to_string()).and_then(|mut parts| parts.change(self));
            changed.map_err(|reason| ("value", reason))?;
        }
        Ok(())
    }
}

// === impl SecretOverrider ===

impl SecretOverrider {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_value(self.operator, &self.value)?;
        match (self.component, self.operator) {
            (SecretComponent::Namespace, Operator::Remove) => {
                let reason =
                    "a secret is always in a namespace; use `replace`, or remove SecretName to use none";
                Err(("operator", reason.to_owned()))
            }
            (_, Operator::Replace) if !is_object_name(&self.value) => {
                Err(("value", format!("{:?} is no name; {NOT_A_NAME}", shown(&self.value))))
            }
            _ => Ok(()),
        }
    }
}

fn check_value(operator: Operator, value: &str) -> Result<(), (&'static str, String)> {
    match operator {
        Operator::Remove => Ok(()),
        _ if value.is_empty() => Err(("value", "must not be empty for `add` and `replace`".into())),
        _ if value.len() > MAX_VALUE => Err(("value", format!("has more than {MAX_VALUE} bytes"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
