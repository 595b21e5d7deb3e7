//! A pull as it was asked for.

use std::fmt;

use bytes::Bytes;
use http::HeaderMap;

use crate::cri::{CONTAINERD_METADATA, Call, read, view};
use crate::error::Error;
use crate::image::Reference;
use crate::pull::Class;

/// The sandbox annotation from which containerd picks the snapshotter when the request's own field is empty.
pub(super) const HANDLER_ANNOTATION: &str = "io.containerd.cri.runtime-handler";

/// One pull. Its message and metadata hold credentials, so neither is ever shown.
#[derive(Clone)]
pub struct Request {
    /// The image in its normalised form, or as asked for where it has none: the runtime then says what is wrong.
    pub reference: String,
    /// How urgent it is.
    pub class: Class,
    /// Namespace and name of the pod, where there is one.
    pub pod: Option<(String, String)>,
    /// What the sandbox's annotation says of the runtime handler.
    pub handler_annotation: String,
    /// What goes to the runtime beside the message.
    pub metadata: HeaderMap,
    /// The request message, as it came.
    pub message: Bytes,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, class, pod, .. } = self;
        f.debug_struct("Request")
            .field("reference", reference)
            .field("class", class)
            .field("pod", pod)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// Reads a call. `None`: it names no image, so there is nothing to coordinate.
    pub fn read(call: &Call, bare_is_background: bool) -> Result<Option<Self>, Error> {
        let mut asked: view::PullImageRequest = read(&call.message)?;
        let image = asked.image.take().map(|spec| spec.image).unwrap_or_default();
        if image.is_empty() {
            return Ok(None);
        }
        let class = Class::of(asked.sandbox_config.as_ref(), bare_is_background);
        let mut sandbox = asked.sandbox_config.unwrap_or_default();
        let handler_annotation = sandbox.annotations.remove(HANDLER_ANNOTATION).unwrap_or_default();
        let pod = sandbox.metadata.map(|pod| (pod.namespace, pod.name));
        let mut metadata = call.metadata();
        // A caller's own deadline must not bind a pull that others wait for too.
        metadata.remove("grpc-timeout");
        for name in CONTAINERD_METADATA {
            metadata.remove(name);
        }
        let reference = Reference::parse(&image)
            .map_or_else(|_| image.clone(), |name| name.with_default_tag().to_string());
        let message = call.message.clone();
        Ok(Some(Self { reference, class, pod, handler_annotation, metadata, message }))
    }

    /// The pod as people name it. crisp's own pulls are for a namespace, but for no pod of it.
    pub(super) fn pod_name(&self) -> Option<String> {
        let (namespace, name) = self.pod.as_ref().filter(|(_, name)| !name.is_empty())?;
        Some(format!("{namespace}/{name}"))
    }
}
