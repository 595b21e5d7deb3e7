//! The CRI's ImageService over the store and the puller.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_cri::v1::image_service_server::ImageService;
use k8s_cri::v1::{
    FilesystemIdentifier, FilesystemUsage, ImageFsInfoRequest, ImageFsInfoResponse, ImageStatusRequest,
    ImageStatusResponse, ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse,
    RemoveImageRequest, RemoveImageResponse, UInt64Value,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};

use super::credentials::Credentials;
use super::digest::Sha256;
use super::layout::LayoutError;
use super::manifest::MAX_CONFIG;
use super::name::ImageName;
use super::pull::Puller;
use super::records::now;
use super::store::Store;

/// Answers the image calls.
#[derive(Debug)]
pub(super) struct Images {
    pub(super) store: Arc<Store>,
    pub(super) puller: Puller,
    /// Ends pulls, so that shutting down does not wait for a slow registry.
    pub(super) stop: CancellationToken,
}

// === impl Images ===

#[async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let wanted = request.into_inner().filter.and_then(|filter| filter.image).map(|image| image.image);
        let images = match wanted.as_deref() {
            None | Some("") => self.store.list(),
            Some(name) => self.store.get(name).into_iter().collect(),
        };
        Ok(Response::new(ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let request = request.into_inner();
        let image = self.store.get(&request.image.unwrap_or_default().image);
        let mut info = HashMap::new();
        if let Some(id) =
            image.as_ref().filter(|_| request.verbose).and_then(|image| Sha256::parse(&image.id))
        {
            let config = self.blocking(move |store| store.layout().read(&id, MAX_CONFIG)).await?;
            let config = String::from_utf8_lossy(&config);
            info.insert("info".to_owned(), format!(r#"{{"imageSpec":{config}}}"#));
        }
        Ok(Response::new(ImageStatusResponse { image, info }))
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let request = request.into_inner();
        let image = request.image.unwrap_or_default().image;
        let name = ImageName::parse(&image).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let credentials = Credentials::of(request.auth.as_ref())
            .map_err(|error| Status::invalid_argument(format!("failed to pull image {image:?}: {error}")))?;
        let pulled = self.stop.run_until_cancelled(self.puller.pull(&name, &credentials)).await;
        let pulled = pulled.ok_or_else(|| Status::unavailable("the embedded runtime is shutting down"))?;
        let image_ref = pulled.map_err(|error| error.to_status(&image))?;
        Ok(Response::new(PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        self.blocking(move |store| store.remove(&name)).await?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _request: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let usage = self.blocking(|store| store.layout().usage()).await?;
        let mountpoint = self.store.layout().root().to_string_lossy().into_owned();
        let filesystem = |used_bytes, inodes_used| FilesystemUsage {
            timestamp: now(),
            fs_id: Some(FilesystemIdentifier { mountpoint: mountpoint.clone() }),
            used_bytes: Some(UInt64Value { value: used_bytes }),
            inodes_used: Some(UInt64Value { value: inodes_used }),
        };
        Ok(Response::new(ImageFsInfoResponse {
            image_filesystems: vec![filesystem(usage.bytes, usage.inodes)],
            // Containers are records in memory: they write nothing.
            container_filesystems: vec![filesystem(0, 0)],
        }))
    }
}

impl Images {
    /// Runs what touches the disk where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, LayoutError> + Send + 'static,
    ) -> Result<T, Status> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        let done = done.map_err(|_| Status::unavailable("the embedded runtime is shutting down"))?;
        done.map_err(|error| Status::unknown(error.to_string()))
    }
}
