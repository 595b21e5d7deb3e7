//! Pods that name their images by [`crate::image::ImageSpec`], and images that no runtime behind crisp can take.
//!
//! The annotation's value is found in the message without decoding the maps around it, so a request without one costs a
//! scan of its own bytes and no more. Nothing is remembered from one call for another.
//!
//! | call | what is refused |
//! |---|---|
//! | PullImage | a malformed or contradictory annotation; an ACI image, which the runtime cannot take |
//! | ImageStatus | the same for a pod's annotation, but not ACI names by themselves |
//! | CreateContainer | a container whose spec names another image than the container has |
//!
//! ImageStatus comes before a pull unless the pull policy is `Always`, and an image that is there is not pulled. Were it to
//! pass, a pod that asks for the ACI image `coreos.com/etcd` would get the Docker image of that name if the node has one.
//! Under the reserved host (or a configured prefix) there is no such mistake: an image with such a name is one that
//! somebody imported there, and without it the runtime says so and the pull is refused.
//!
//! A message that cannot be read goes on: the runtime cannot read it either, and says so in its own words.

use crate::cri::{Call, Forward, Method, Plan, Policy};
use crate::error::{Error, Kind, Origin};
use crate::image::annotation::ANNOTATION;
use crate::image::{AciNames, Format, Reference, Said, check, decide};
use crate::intercept::Feature;
use crate::wire::{entry, last};

/// Applies the specs of pods.
#[derive(Debug)]
pub(super) struct ImageSpecs {
    names: AciNames,
}

/// Where a request has what is read here.
struct Places {
    image: &'static [u32],
    image_annotations: &'static [u32],
    sandbox_annotations: Option<&'static [u32]>,
    /// Namespace and name.
    pod: Option<[&'static [u32]; 2]>,
}

const PULL: Places = Places {
    image: &[1, 1],
    image_annotations: &[1, 2],
    sandbox_annotations: Some(&[3, 7]),
    pod: Some([&[3, 1, 3], &[3, 1, 1]]),
};
const STATUS: Places =
    Places { image: &[1, 1], image_annotations: &[1, 2], sandbox_annotations: None, pod: None };
/// The name that the user gave: the image itself is an id by then. Kubelets have sent it since 1.28.
const CREATE: Places = Places {
    image: &[2, 2, 18],
    image_annotations: &[2, 2, 2],
    sandbox_annotations: Some(&[3, 7]),
    pod: Some([&[3, 1, 3], &[3, 1, 1]]),
};
/// The name of the container to be created.
const CONTAINER: &[u32] = &[2, 1, 1];

// === impl ImageSpecs ===

impl ImageSpecs {
    pub(super) fn new(names: AciNames) -> Self {
        Self { names }
    }

    fn pull(&self, message: &[u8]) -> Result<(), Error> {
        let Some((image, said)) = PULL.read(message) else { return Ok(()) };
        if !said.anything() && self.names.image(&image).is_none() {
            return Ok(());
        }
        self.supported(image, &PULL.of_pod(said, message))
    }

    fn status(&self, message: &[u8]) -> Result<(), Error> {
        if !mentions_specs(message) {
            return Ok(());
        }
        match STATUS.read(message) {
            Some((image, said)) if said.anything() && self.names.image(&image).is_none() => {
                self.supported(image, &said)
            }
            _ => Ok(()),
        }
    }

    fn create(&self, message: &[u8]) -> Result<(), Error> {
        if !mentions_specs(message) {
            return Ok(());
        }
        match (CREATE.read(message), text(message, CONTAINER)) {
            (Some((image, said)), Some(container)) if said.anything() => {
                check(container, image, &CREATE.of_pod(said, message))
            }
            _ => Ok(()),
        }
    }

    fn supported(&self, image: Reference, said: &Said<'_>) -> Result<(), Error> {
        let requested = decide(image, said, &self.names)?;
        let Format::Aci(image) = &requested.format else { return Ok(()) };
        let place = said.place(requested.container.as_deref());
        let of = if place.is_empty() { String::new() } else { format!(" of {place}") };
        let message = format!(
            "the runtime does not support the image format ACI of {:?}{of}; use a Docker or OCI image, or run the pod on \
             a node whose runtime takes ACI",
            image.image()
        );
        Err(Error::new(Kind::Unsupported, Origin::Runtime, message))
    }
}

impl Feature for ImageSpecs {
    fn name(&self) -> &'static str {
        "image-spec"
    }

    fn policy(&self) -> Policy {
        Policy::Closed
    }

    fn plan(&self, call: &Call, _: &mut Forward) -> Result<Option<Plan>, Error> {
        let verdict = match call.method {
            Method::PULL_IMAGE => self.pull(&call.message),
            Method::IMAGE_STATUS => self.status(&call.message),
            Method::CREATE_CONTAINER => self.create(&call.message),
            _ => Ok(()),
        };
        // A refusal is what this feature is for, not a failure of it.
        Ok(verdict.err().map(Plan::Refuse))
    }
}

// === impl Places ===

impl Places {
    /// The image's name and what is said of it; `None` without a name, or with one that only the runtime can explain.
    fn read<'a>(&self, message: &'a [u8]) -> Option<(Reference, Said<'a>)> {
        let image = Reference::parse(text(message, self.image)?).ok()?;
        let on_image = entry(message, self.image_annotations, ANNOTATION).ok()?;
        let on_sandbox = match self.sandbox_annotations {
            Some(path) => entry(message, path, ANNOTATION).ok()?,
            None => None,
        };
        Some((image, Said { on_image, on_sandbox, pod: None }))
    }

    /// Adds the pod, which only errors name.
    fn of_pod<'a>(&self, said: Said<'a>, message: &'a [u8]) -> Said<'a> {
        let pod = self.pod.and_then(|[namespace, name]| {
            Some((text(message, namespace).unwrap_or_default(), text(message, name)?))
        });
        Said { pod, ..said }
    }
}

/// Whether the annotation's name occurs anywhere. Where it does not, there is nothing to read, as in nearly all calls.
fn mentions_specs(message: &[u8]) -> bool {
    memchr::memmem::find(message, ANNOTATION.as_bytes()).is_some()
}

/// The text at a path; `None` if it is absent, empty or no text, or the message cannot be read.
fn text<'a>(message: &'a [u8], path: &[u32]) -> Option<&'a str> {
    last(message, path).ok()?.and_then(|value| value.as_str()).filter(|text| !text.is_empty())
}
