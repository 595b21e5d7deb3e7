//! An embedded runtime in a directory of its own, and clients for it.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::path::{Path, PathBuf};

use crisp::runtime::{self, Embedded};
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{AuthConfig, Image, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest};
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// A running embedded runtime with clients.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    embedded: Embedded,
    pub(crate) images: ImageServiceClient<Channel>,
    pub(crate) runtime: RuntimeServiceClient<Channel>,
}

// === impl Node ===

impl Node {
    /// A new one with no images.
    pub(crate) async fn start() -> Self {
        Self::start_in(TempDir::new().unwrap()).await
    }

    /// Ends it and starts another in the same directory.
    pub(crate) async fn restart(self) -> Self {
        Self::start_in(self.stop().await).await
    }

    /// Ends it; what it wrote stays.
    pub(crate) async fn stop(self) -> TempDir {
        self.embedded.shutdown().await;
        self.dir
    }

    /// Starts one in a directory that may hold an earlier one's images.
    pub(crate) async fn start_in(dir: TempDir) -> Self {
        let embedded = runtime::start(dir.path()).await.unwrap();
        let channel = connect(embedded.endpoint()).await;
        Self {
            dir,
            images: ImageServiceClient::new(channel.clone()),
            runtime: RuntimeServiceClient::new(channel),
            embedded,
        }
    }

    /// The socket.
    pub(crate) fn endpoint(&self) -> &Path {
        self.embedded.endpoint()
    }

    /// Pulls without credentials.
    pub(crate) async fn pull(&self, name: &str) -> Result<String, Status> {
        self.pull_with(name, None).await
    }

    /// Pulls with credentials.
    pub(crate) async fn pull_with(&self, name: &str, auth: Option<AuthConfig>) -> Result<String, Status> {
        let request = PullImageRequest { image: Some(spec(name)), auth, sandbox_config: None };
        Ok(self.images.clone().pull_image(request).await?.into_inner().image_ref)
    }

    /// The image of this name, if it is here.
    pub(crate) async fn image(&self, name: &str) -> Option<Image> {
        let request = ImageStatusRequest { image: Some(spec(name)), verbose: false };
        self.images.clone().image_status(request).await.unwrap().into_inner().image
    }

    /// All images.
    pub(crate) async fn list(&self) -> Vec<Image> {
        self.images.clone().list_images(ListImagesRequest::default()).await.unwrap().into_inner().images
    }

    /// Removes an image.
    pub(crate) async fn remove(&self, name: &str) {
        let request = k8s_cri::v1::RemoveImageRequest { image: Some(spec(name)) };
        self.images.clone().remove_image(request).await.unwrap();
    }

    /// The names of the blobs on disk, sorted, each as `sha256:…`.
    pub(crate) fn blobs(&self) -> Vec<String> {
        let mut names = names_in(&self.layout().join("blobs/sha256"));
        names.iter_mut().for_each(|name| name.insert_str(0, "sha256:"));
        names
    }

    /// What is in the directory for half-written files.
    pub(crate) fn half_written(&self) -> Vec<String> {
        names_in(&self.layout().join("ingest"))
    }

    /// The OCI layout.
    pub(crate) fn layout(&self) -> PathBuf {
        self.dir.path().join("images")
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// An image by name alone.
pub(crate) fn spec(name: &str) -> ImageSpec {
    ImageSpec { image: name.to_owned(), ..Default::default() }
}

/// A connection to a CRI server on a unix socket.
pub(crate) async fn connect(path: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    endpoint.connect().await.unwrap()
}
