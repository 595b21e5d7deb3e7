//! Which image a request means, by that request alone.
//!
//! # The rule for a pull
//!
//! PullImage names an image and carries all annotations of its pod, but it does not say for which container it is. So
//! each spec of the pod is rendered and compared with the requested name, both normalised. An ACI spec is compared twice,
//! as `name[:tag]` and under the reserved host. Then:
//!
//! | specs that render to the requested name | and the name by itself | the image is |
//! |---|---|---|
//! | none | Docker's | Docker |
//! | none | ACI: under the reserved host or a configured prefix | ACI |
//! | Docker only | Docker's | Docker |
//! | Docker only | ACI | **refused**: the pod contradicts the node's configuration |
//! | ACI only | either | ACI, with the id that the specs give |
//! | ACI with two ids | either | **refused**: a runtime has one image under one name |
//! | Docker and ACI | either | **refused**: the same |
//!
//! A spec that renders to another name proves nothing in a pull, not even if only the tag differs: it may well be that of
//! another container, an init container or an image volume of the same pod, whose own pull comes later or has been. Such a
//! spec contradicts its image only where the container is known, and that is CreateContainer, see [`check`].
//!
//! A malformed annotation refuses every pull of its pod, since nobody can tell which container's image it was to name.

use super::annotation::ANNOTATION;
use super::spec::{AciImage, ImageSpec, SpecError};
use super::{AciNames, Reference, Specs, shown};
use crate::error::{Error, Kind, Origin};

/// What is wrong with the registry of a Docker spec whose name is an ACI image's by itself.
pub const UNDER_PREFIX: &str = "lies under a prefix that is configured for ACI images on this node \
                                (image.aciPrefixes); use `aci`, or another registry";

/// What one request says besides the name of the image.
#[derive(Debug, Clone, Copy, Default)]
pub struct Said<'a> {
    /// The annotation in the request's image, where the kubelet puts all annotations of the pod.
    pub on_image: Option<&'a [u8]>,
    /// The annotation in the request's sandbox, where it puts them again.
    pub on_sandbox: Option<&'a [u8]>,
    /// Namespace and name of the pod, if the request has them.
    pub pod: Option<(&'a str, &'a str)>,
}

/// The image that a request means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// The requested name, normalised, with its default tag.
    pub reference: Reference,
    /// The format.
    pub format: Format,
    /// A container whose spec says so; `None` if it follows from the name.
    pub container: Option<String>,
}

/// An image format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Docker's or OCI's.
    Docker,
    /// appc's.
    Aci(AciImage),
}

/// Decides which image a pull of `image` means.
pub fn decide(image: Reference, said: &Said<'_>, names: &AciNames) -> Result<Requested, Error> {
    let reference = image.with_default_tag();
    let specs = said.specs()?.unwrap_or_default();
    let by_name = names.image(&reference).transpose().map_err(|error| said.of_image(&reference, &error))?;
    let mut docker = None;
    let mut aci: Option<(&str, AciImage)> = None;
    for (container, spec) in specs.iter().filter(|(_, spec)| spec.differs(&reference).is_none()) {
        match spec {
            ImageSpec::Docker(_) => docker = docker.or(Some(container)),
            ImageSpec::Aci(image) => {
                let known = aci.get_or_insert_with(|| (container, image.clone()));
                match (known.1.id(), image.id()) {
                    (Some(one), Some(other)) if one != other => {
                        let reason = format!(
                            "is another id than container {:?} has for the same image {}; \
                             a runtime has one image under one name",
                            known.0,
                            image.image()
                        );
                        return Err(said.error(Some(container), "aci.id", &reason));
                    }
                    (None, Some(id)) => *known = (container, known.1.clone().with_id(Some(id))),
                    _ => {}
                }
            }
        }
    }
    let (format, container) = match (docker, aci, by_name) {
        (Some(docker), Some((container, image)), _) => {
            let reason = format!(
                "names {}, which container {docker:?} of the same pod names as a Docker image; \
                 give one of them another tag or a pod of its own",
                image.image()
            );
            return Err(said.error(Some(container), "aci.name", &reason));
        }
        (Some(container), None, Some(_)) => {
            return Err(said.error(Some(container), "dockerImage.registry", UNDER_PREFIX));
        }
        (Some(container), None, None) => (Format::Docker, Some(container)),
        (None, Some((container, image)), _) => (Format::Aci(image), Some(container)),
        (None, None, Some(image)) => (Format::Aci(image), None),
        (None, None, None) => (Format::Docker, None),
    };
    Ok(Requested { reference, format, container: container.map(str::to_owned) })
}

/// Checks that the spec of `container`, if it has one, names the `image` that the container is made of.
pub fn check(container: &str, image: Reference, said: &Said<'_>) -> Result<(), Error> {
    let image = image.with_default_tag();
    let Some(specs) = said.specs()? else { return Ok(()) };
    let Some(spec) = specs.get(container) else { return Ok(()) };
    match spec.differs(&image) {
        None => Ok(()),
        Some(field) => {
            let reason = format!(
                "contradicts the container's image {:?}: the spec names {:?}; make them the same, or drop the spec",
                shown(&image.to_string()),
                shown(&spec.image())
            );
            Err(said.error(Some(container), field, &reason))
        }
    }
}

// === impl Said ===

impl Said<'_> {
    /// Whether there is an annotation at all.
    pub fn anything(&self) -> bool {
        self.on_image.is_some() || self.on_sandbox.is_some()
    }

    /// The specs of the pod, read once; the kubelet says everything twice.
    fn specs(&self) -> Result<Option<Specs>, Error> {
        let bytes = match (self.on_image, self.on_sandbox) {
            (Some(image), Some(sandbox)) if image != sandbox => {
                let reason = "is not the same in the image and in the sandbox of the request";
                return Err(self.error(None, "", reason));
            }
            (Some(bytes), _) | (None, Some(bytes)) => bytes,
            (None, None) => return Ok(None),
        };
        let text = std::str::from_utf8(bytes).map_err(|_| self.error(None, "", "is not UTF-8"))?;
        let specs = Specs::parse(text);
        specs
            .map(Some)
            .map_err(|wrong| self.error(wrong.container.as_deref(), &wrong.error.field, &wrong.error.reason))
    }

    /// The pod, and the container if it is known, as errors name them.
    pub fn place(&self, container: Option<&str>) -> String {
        let mut place = String::new();
        if let Some((namespace, name)) = self.pod {
            place = format!("pod {}/{}", shown(namespace), shown(name));
        }
        if let Some(container) = container {
            let comma = if place.is_empty() { "" } else { ", " };
            place = format!("{place}{comma}container {:?}", shown(container));
        }
        place
    }

    fn of_image(&self, image: &Reference, wrong: &SpecError) -> Error {
        let of = match self.place(None) {
            place if place.is_empty() => place,
            place => format!(" of {place}"),
        };
        let image = shown(&image.to_string());
        Error::new(Kind::Invalid, Origin::Kubelet, format!("image {image:?}{of} is no ACI image: {wrong}"))
    }

    fn error(&self, container: Option<&str>, field: &str, reason: &str) -> Error {
        let place = self.place(container);
        let of = if place.is_empty() { String::new() } else { format!(" of {place}") };
        let field = if field.is_empty() { String::new() } else { format!(", field {field}") };
        Error::new(Kind::Invalid, Origin::Kubelet, format!("annotation {ANNOTATION}{of}{field}: {reason}"))
    }
}

#[cfg(test)]
mod tests;
