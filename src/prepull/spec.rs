//! What can be asked of the queue: a superset of what a Kruise NodeImage and a KubeEdge ImagePrePullJob can ask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::image::{AciNames, ImageSpec, Reference};
use crate::prepull::check::Check;
use crate::prepull::overrider::{self, ImagePrePullOverrider};
use crate::prepull::secret::Credential;
use crate::prepull::time::Time;
use crate::pull::Class;

/// The most that a single item may ask for, as JSON.
pub const MAX_SIZE: usize = 64 * 1024;
const MAX_OWNER: usize = 253;
const MAX_SECRETS: usize = 32;

/// One image wanted. In JSON only `image` (or `imageSpec`) is required.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The image as pods name it.
    #[serde(default)]
    pub image: String,
    /// The same, field by field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_spec: Option<Box<ImageSpec>>,
    /// For whom. One owner has one item for an image.
    #[serde(default = "default_owner")]
    pub owner: String,
    /// Which state of the owner's wish this is: the same wish twice does nothing, a later one starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// How urgent it is: `background`, `normal` or `urgent`.
    #[serde(default = "default_class")]
    pub class: Class,
    /// The higher, the earlier within its class.
    #[serde(default)]
    pub priority: i32,
    /// Whether an image that is there will do.
    #[serde(default)]
    pub policy: Policy,
    /// Seconds that an attempt may take, waiting not counted.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u64,
    /// How often a failed attempt is repeated.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Nothing is done before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// Given up after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Seconds that the item is remembered after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Whether, and for how long, the image is kept from garbage collection.
    #[serde(default)]
    pub pin: Pin,
    /// Namespace, labels and annotations that go with the pull.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// Credentials, tried in order. They are read, and never written.
    #[serde(default, skip_serializing)]
    pub secrets: Vec<Credential>,
    /// Who may see the image. Without a word: private if it needed a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Rules by which the image is pulled from elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overriders: Vec<ImagePrePullOverrider>,
    /// What the node must have to spare.
    #[serde(default = "default_checks")]
    pub checks: Vec<Check>,
}

/// Whether an image that is there will do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// The registry is asked in any case.
    Always,
    /// It will.
    #[default]
    IfNotPresent,
}

/// Whether an image is kept from garbage collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Pin {
    /// It is not.
    #[default]
    None,
    /// As long as the item is there.
    WithOwner,
    /// That many seconds from its arrival.
    Seconds(u64),
}

/// Who may see an image that was pulled with a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Who can pull it.
    Private,
    /// Every pod on the node.
    Shared,
}

/// What goes with a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sandbox {
    /// The namespace of the pods that will use the image. CRI-O's signature policy and credentials depend on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels, as of a pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, as of a pod. Snapshotters and mirrors read them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A spec that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The image under the name that pods use, normalised.
    pub image: String,
    /// The name it is pulled by, normalised.
    pub source: String,
    /// What was asked for.
    pub spec: Spec,
}

/// What is needed to understand specs.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    /// Which names are ACI images.
    pub aci: AciNames,
    /// This node's labels, by which overriders are chosen.
    pub node_labels: BTreeMap<String, String>,
}

fn default_owner() -> String {
    "cli".into()
}

fn default_class() -> Class {
    Class::Background
}

fn default_timeout() -> u64 {
    600
}

fn default_retries() -> u32 {
    3
}

fn default_checks() -> Vec<Check> {
    vec![Check::Disk]
}

// === impl Spec ===

impl Spec {
    /// Asks for an image, with defaults for all else.
    pub fn of(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            image_spec: None,
            owner: default_owner(),
            version: None,
            class: default_class(),
            priority: 0,
            policy: Policy::default(),
            timeout_seconds: default_timeout(),
            retries: default_retries(),
            not_before: None,
            deadline: None,
            ttl_seconds: None,
            pin: Pin::None,
            sandbox: Sandbox::default(),
            secrets: Vec::new(),
            visibility: None,
            overriders: Vec::new(),
            checks: default_checks(),
        }
    }
}

// === impl Reader ===

impl Reader {
    /// Understands a spec. All that is wrong with it is told at once, each with its field.
    pub fn read(&self, mut spec: Spec) -> Result<Wanted, Vec<String>> {
        let mut mistakes = Vec::new();
        let mut wrong = |field: &str, what: &str| mistakes.push(format!("{field}: {what}"));
        if spec.owner.is_empty() || spec.owner.len() > MAX_OWNER || spec.owner.chars().any(char::is_control) {
            wrong("owner", "expected 1 to 253 letters");
        }
        if spec.class == Class::Kubelet {
            wrong("class", "expected background, normal or urgent; kubelet is for kubelets");
        }
        if spec.timeout_seconds == 0 {
            wrong("timeoutSeconds", "expected at least 1");
        }
        if spec.secrets.len() > MAX_SECRETS {
            wrong("secrets", "expected at most 32");
        }
        if let (Some(start), Some(end)) = (spec.not_before, spec.deadline)
            && end <= start
        {
            wrong("deadline", "is not later than notBefore");
        }
        let size = serde_json::to_vec(&spec).map_or(usize::MAX, |json| json.len());
        if size > MAX_SIZE {
            wrong("item", &format!("has {size} bytes; at most {MAX_SIZE} are taken"));
        }
        let names = match self.names(&mut spec) {
            Ok(names) => Some(names),
            Err(more) => {
                mistakes.extend(more);
                None
            }
        };
        match names {
            Some((image, source)) if mistakes.is_empty() => Ok(Wanted { image, source, spec }),
            _ => Err(mistakes),
        }
    }

    fn names(&self, spec: &mut Spec) -> Result<(String, String), Vec<String>> {
        match (spec.image_spec.as_deref(), spec.image.is_empty()) {
            (Some(_), false) => return Err(vec!["imageSpec: give either image or imageSpec".into()]),
            (None, true) => return Err(vec!["image: is missing".into()]),
            (Some(ImageSpec::Aci(_)), true) => {
                return Err(vec![
                    "imageSpec.aci: the runtime does not take ACI images; name a Docker or OCI image".into(),
                ]);
            }
            (Some(described), true) => spec.image = described.image(),
            (None, false) => {}
        }
        let image = Reference::parse(&spec.image)
            .map_err(|error| vec![format!("image: {error}")])?
            .with_default_tag();
        if self.aci.image(&image).is_some() {
            return Err(vec![
                "image: the runtime does not take ACI images; name a Docker or OCI image".into(),
            ]);
        }
        overrider::validate(&spec.overriders, "overriders")
            .map_err(|wrong| wrong.into_iter().map(|wrong| wrong.to_string()).collect::<Vec<_>>())?;
        let source = overrider::apply(&spec.image, &spec.overriders, &self.node_labels, "overriders")
            .map_err(|wrong| vec![wrong.to_string()])?
            .with_default_tag();
        Ok((image.to_string(), source.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Wanted, Vec<String>> {
        Reader::default().read(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn an_image_is_all_that_is_needed() {
        let wanted = read(r#"{"image":"nginx"}"#).unwrap();
        assert_eq!(wanted.image, "docker.io/library/nginx:latest");
        assert_eq!(wanted.source, wanted.image);
        assert_eq!(wanted.spec, Spec::of("nginx"));
        let spec = r#"{"imageSpec":{"dockerImage":{"registry":"gcr.io","name":"a/b","tag":"v1"}}}"#;
        assert_eq!(read(spec).unwrap().image, "gcr.io/a/b:v1");
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let mistakes =
            read(r#"{"image":"Not An Image","owner":"","class":"kubelet","timeoutSeconds":0}"#).unwrap_err();
        for field in ["owner", "class", "timeoutSeconds", "image"] {
            assert!(mistakes.iter().any(|mistake| mistake.starts_with(&format!("{field}:"))), "{mistakes:?}");
        }
        for wrong in [
            r#"{}"#,
            r#"{"image":"a","imageSpec":{"dockerImage":{"registry":"gcr.io","name":"a"}}}"#,
            r#"{"image":"aci.crisp.invalid/coreos.com/etcd:v1"}"#,
            r#"{"image":"a","notBefore":"2027-01-01T00:00:00Z","deadline":"2026-01-01T00:00:00Z"}"#,
        ] {
            assert_eq!(read(wrong).unwrap_err().len(), 1, "{wrong}");
        }
        let large = format!(r#"{{"image":"a","sandbox":{{"labels":{{"a":"{}"}}}}}}"#, "x".repeat(MAX_SIZE));
        assert!(read(&large).unwrap_err().concat().contains("item: has"));
        assert!(serde_json::from_str::<Spec>(r#"{"image":"a","priorty":1}"#).is_err());
    }

    #[test]
    fn a_spec_is_written_without_its_secrets() {
        let json =
            r#"{"image":"a","secrets":[{"registry":"a.example","username":"u","password":"hunter2"}]}"#;
        let spec: Spec = serde_json::from_str(json).unwrap();
        assert_eq!(spec.secrets.len(), 1);
        let written = serde_json::to_string(&spec).unwrap();
        assert!(!written.contains("hunter2") && !format!("{spec:?}").contains("hunter2"), "{written}");
    }
}
