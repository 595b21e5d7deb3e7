//! The few CRI calls that the queue makes itself, beside pulls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use k8s_cri::v1::{
    ContainerStatusRequest, ContainerStatusResponse, Image, ImageFsInfoRequest, ImageFsInfoResponse,
    ImageSpec, ImageStatusRequest, ImageStatusResponse, ListContainersRequest, ListContainersResponse,
    ListImagesRequest, ListImagesResponse, RemoveImageRequest, RemoveImageResponse,
};
use prost::Message;
use tonic::Code;

use crate::cri::{Method, Raw, RuntimeCall, ask};
use crate::error::{Error, Kind, Origin};

/// How long the runtime may take to remove an image, which is as long as the kubelet gives it.
const REMOVED_WITHIN: Duration = Duration::from_secs(120);

/// The runtime's image service.
#[derive(Clone)]
pub(super) struct Images(pub(super) RuntimeCall);

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Images")
    }
}

impl Images {
    /// The image of that name, if the runtime has it.
    pub(super) async fn status(&self, image: &str) -> Result<Option<Image>, Error> {
        let spec = ImageSpec { image: image.to_owned(), ..Default::default() };
        let request = ImageStatusRequest { image: Some(spec), verbose: false };
        let reply: ImageStatusResponse = self.ask(Method::IMAGE_STATUS, &request).await?;
        Ok(reply.image.filter(|image| !image.id.is_empty()))
    }

    /// Where images are kept; nothing if the runtime does not tell.
    pub(super) async fn mountpoint(&self) -> Result<String, Error> {
        let reply: ImageFsInfoResponse = self.ask(Method::IMAGE_FS_INFO, &ImageFsInfoRequest {}).await?;
        let usage = reply.image_filesystems.into_iter().next();
        Ok(usage.and_then(|usage| usage.fs_id).map(|id| id.mountpoint).unwrap_or_default())
    }

    /// The images that could go, by their IDs: no container uses them, and the runtime itself does not need them.
    pub(super) async fn unused(&self) -> Result<BTreeMap<String, Image>, Error> {
        let images: ListImagesResponse = self.ask(Method::LIST_IMAGES, &ListImagesRequest::default()).await?;
        let used = self.used().await?;
        let is_free = |image: &Image| {
            let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
            !image.pinned && names.into_iter().all(|name| !used.contains(name))
        };
        Ok(images.images.into_iter().filter(is_free).map(|image| (image.id.clone(), image)).collect())
    }

    /// What containers say of their images, also of those that are mounted as volumes: IDs, digests and names.
    async fn used(&self) -> Result<BTreeSet<String>, Error> {
        let all: ListContainersResponse =
            self.ask(Method::LIST_CONTAINERS, &ListContainersRequest::default()).await?;
        let mut used = BTreeSet::new();
        for container in all.containers {
            used.extend([container.image_id, container.image_ref]);
            used.extend(container.image.map(|image| image.image));
            let request = ContainerStatusRequest { container_id: container.id, verbose: false };
            let reply = self.call(Method::CONTAINER_STATUS, &request).await?;
            if reply.code() == Code::NotFound {
                // It has gone meanwhile.
                continue;
            }
            let reply: ContainerStatusResponse = ask::read(Method::CONTAINER_STATUS, &reply)?;
            let mounts = reply.status.into_iter().flat_map(|status| status.mounts);
            used.extend(mounts.filter_map(|mount| mount.image).map(|image| image.image));
        }
        Ok(used)
    }

    /// Removes an image with all its names.
    pub(super) async fn remove(&self, id: &str) -> Result<(), Error> {
        let spec = ImageSpec { image: id.to_owned(), ..Default::default() };
        let request = RemoveImageRequest { image: Some(spec) };
        let removed = self.ask::<RemoveImageResponse>(Method::REMOVE_IMAGE, &request);
        let late = |_| Error::new(Kind::Unavailable, Origin::Runtime, "RemoveImage takes too long");
        tokio::time::timeout(REMOVED_WITHIN, removed).await.map_err(late)?.map(drop)
    }

    async fn call(&self, method: Method, request: &impl Message) -> Result<Raw, Error> {
        ask::call(&self.0, method, request).await
    }

    async fn ask<T: Message + Default>(&self, method: Method, request: &impl Message) -> Result<T, Error> {
        ask::ask(&self.0, method, request).await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use k8s_cri::v1::{Container, ContainerStatus, Mount};

    use std::sync::Arc;

    use super::*;

    fn spec(image: &str) -> Option<ImageSpec> {
        Some(ImageSpec { image: image.into(), ..Default::default() })
    }

    /// A runtime with these images and containers.
    fn runtime(images: Vec<Image>, containers: Vec<Container>, mounts: Vec<Mount>) -> Images {
        Images(Arc::new(move |method, _, message| {
            let reply = match method {
                Method::LIST_IMAGES => ListImagesResponse { images: images.clone() }.encode_to_vec(),
                Method::LIST_CONTAINERS => {
                    ListContainersResponse { containers: containers.clone() }.encode_to_vec()
                }
                _ => {
                    let asked = ContainerStatusRequest::decode(message).unwrap();
                    let mounts = if asked.container_id == "mounts" { mounts.clone() } else { Vec::new() };
                    let status = Some(ContainerStatus { mounts, ..Default::default() });
                    ContainerStatusResponse { status, ..Default::default() }.encode_to_vec()
                }
            };
            async move { Ok(Raw::message(&reply)) }.boxed()
        }))
    }

    #[tokio::test]
    async fn what_any_container_names_in_any_way_is_used() {
        let image = |id: &str, tag: &str, digest: &str| Image {
            id: id.into(),
            repo_tags: vec![tag.into()],
            repo_digests: vec![digest.into()],
            ..Default::default()
        };
        let images = vec![
            image("1", "by-id:1", "by-id@1"),
            image("2", "by-ref:1", "by-ref@2"),
            image("3", "by-name:1", "by-name@3"),
            image("4", "mounted:1", "mounted@4"),
            image("5", "free:1", "free@5"),
            Image { pinned: true, ..image("6", "pause:1", "pause@6") },
        ];
        let containers = vec![
            Container { image_id: "1".into(), ..Default::default() },
            Container { image_ref: "by-ref@2".into(), ..Default::default() },
            Container { id: "mounts".into(), image: spec("by-name:1"), ..Default::default() },
        ];
        let mounts = vec![Mount { image: spec("4"), ..Default::default() }];
        let unused = runtime(images, containers, mounts).unused().await.unwrap();
        assert_eq!(unused.into_keys().collect::<Vec<_>>(), ["5"]);
    }
}
