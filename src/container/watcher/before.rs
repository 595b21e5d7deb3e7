//! The container that was there before, as the runtime tells of it.

use std::collections::HashMap;
use std::time::Duration;

use http::HeaderMap;
use k8s_cri::v1::{
    Container, ContainerFilter, ContainerState, ContainerStatus, ContainerStatusRequest,
    ContainerStatusResponse, ListContainersRequest, ListContainersResponse,
};
use prost::Message;
use tonic::Code;

use super::{LABEL, hash};
use crate::cri::{Method, RuntimeCall};
use crate::error::{Error, Kind, Origin};

/// How long the runtime has for a question.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runtime.
#[derive(Clone)]
pub(super) struct Runtime(pub(super) RuntimeCall);

/// A container that another one takes the place of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) hash: Option<String>,
    /// What the runtime calls its image, and what it was asked for.
    pub(super) image_ids: Vec<String>,
    /// Exit code and the runtime's word for it, if it has ended.
    pub(super) exit: Option<(i32, String)>,
    /// The text of its record's label.
    pub(super) label: Option<String>,
}

impl Runtime {
    /// The newest container of that pod and name that is older than the one with this ID.
    pub(super) async fn before(&self, uid: &str, name: &str, id: &str) -> Result<Option<Before>, Error> {
        let labels = [("io.kubernetes.pod.uid", uid), ("io.kubernetes.container.name", name)];
        let label_selector = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let filter = Some(ContainerFilter { label_selector, ..Default::default() });
        let list: Option<ListContainersResponse> =
            self.ask(Method::LIST_CONTAINERS, &ListContainersRequest { filter }).await?;
        let containers = list.map(|list| list.containers).unwrap_or_default();
        let Some(found) = newest_before(containers, id) else { return Ok(None) };
        let request = ContainerStatusRequest { container_id: found.id.clone(), verbose: false };
        let status: Option<ContainerStatusResponse> = self.ask(Method::CONTAINER_STATUS, &request).await?;
        // It may have gone meanwhile; then the list tells what it can.
        let status = status.and_then(|reply| reply.status);
        let exit = status
            .as_ref()
            .filter(|status| status.state() == ContainerState::ContainerExited)
            .map(|status| (status.exit_code, status.reason.clone()));
        let image_ids = image_ids(&found, status.as_ref());
        let take = |map: &HashMap<String, String>, key: &str| map.get(key).cloned();
        Ok(Some(Before {
            exit,
            image_ids,
            label: take(&found.labels, LABEL),
            hash: take(&found.annotations, hash::ANNOTATION),
            id: found.id,
            sandbox: found.pod_sandbox_id,
        }))
    }

    /// Asks; nothing if it is not found.
    async fn ask<T: Message + Default>(
        &self,
        method: Method,
        request: &impl Message,
    ) -> Result<Option<T>, Error> {
        let failed = |words: String| {
            Error::new(Kind::Internal, Origin::Runtime, format!("{}: {words}", method.name()))
        };
        let asked = (self.0)(method, HeaderMap::new(), request.encode_to_vec().into());
        let reply =
            tokio::time::timeout(PATIENCE, asked).await.map_err(|_| failed("no answer in time".into()))??;
        match reply.code() {
            Code::Ok => {
                T::decode(reply.unary_message()?).map(Some).map_err(|error| failed(error.to_string()))
            }
            Code::NotFound => Ok(None),
            code => Err(failed(format!("{code:?}"))),
        }
    }
}

/// Everything that identifies a container's image. Which of it there is depends on the runtime and its age.
fn image_ids(listed: &Container, status: Option<&ContainerStatus>) -> Vec<String> {
    let of_status = status.into_iter().flat_map(|status| [&status.image_id, &status.image_ref]);
    // The list has the image as the container was made from it; a status may have another name for it.
    let asked_for = listed.image.iter().map(|image| &image.image);
    let all = of_status.chain([&listed.image_id, &listed.image_ref]).chain(asked_for);
    all.filter(|id| !id.is_empty()).cloned().collect()
}

/// Two containers of one name may be created before anybody looks at the first of them.
fn newest_before(containers: Vec<Container>, id: &str) -> Option<Container> {
    let created = containers.iter().find(|container| container.id == id).map(|new| new.created_at);
    let others = containers.into_iter().filter(|container| {
        container.id != id && created.is_none_or(|created| container.created_at <= created)
    });
    let attempt = |container: &Container| container.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    others.max_by_key(|container| (container.created_at, attempt(container)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_all_its_ids() {
        let status = ContainerStatus { image_id: "sha256:1".into(), ..Default::default() };
        let image = Some(k8s_cri::v1::ImageSpec { image: "sha256:1".into(), ..Default::default() });
        let listed = Container { image, image_ref: "web@sha256:2".into(), ..Default::default() };
        assert_eq!(image_ids(&listed, Some(&status)), ["sha256:1", "web@sha256:2", "sha256:1"]);
        assert_eq!(image_ids(&Container::default(), None), [""; 0]);
    }

    #[test]
    fn the_newest_of_the_older_ones_is_meant() {
        let container = |id: &str, created_at| Container { id: id.into(), created_at, ..Default::default() };
        let all = [container("a", 1), container("c", 3), container("b", 2), container("d", 4)];
        let before = |id: &str| newest_before(all.to_vec(), id).map(|container| container.id);
        assert_eq!(before("c").as_deref(), Some("b"));
        assert_eq!(before("a"), None);
        assert_eq!(before("gone").as_deref(), Some("d"));
    }
}
