//! One pull, from a name to an image in the store.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::Semaphore;
use tonic::Status;

use super::credentials::Credentials;
use super::image::{ImageError, Target};
use super::layout::LayoutError;
use super::manifest::{self, Blob, Document, Manifest, ManifestError};
use super::name::{ImageName, Version};
use super::registry::{Fetched, Registry, RegistryError, Repository};
use super::store::{Lease, Store};

/// Layers that one pull fetches at a time, as containerd's default.
const LAYERS_AT_ONCE: usize = 3;
/// Manifests that all pulls together fetch at a time.
const MANIFESTS_AT_ONCE: usize = 16;
/// Blobs that all pulls together fetch at a time.
const BLOBS_AT_ONCE: usize = 16;

/// Pulls images into a store.
#[derive(Debug)]
pub(super) struct Puller {
    store: Arc<Store>,
    registry: Registry,
    /// Apart from the blobs', so that a small question does not wait for a long download.
    manifests: Semaphore,
    downloads: Semaphore,
}

/// Why a pull failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    /// The registry did not give what it should.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A blob is not what was promised, or the disk refused.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The image cannot be used although it was fetched.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A part of this process is gone.
    #[error("interrupted")]
    Interrupted,
}

// === impl Puller ===

impl Puller {
    /// Pulls into `store`.
    pub(super) fn new(store: Arc<Store>) -> Result<Self, reqwest::Error> {
        let (manifests, downloads) = (Semaphore::new(MANIFESTS_AT_ONCE), Semaphore::new(BLOBS_AT_ONCE));
        Ok(Self { store, registry: Registry::new()?, manifests, downloads })
    }

    /// Pulls `name` and returns the image's id. Blobs that are here already are not fetched; the manifest always is,
    /// because that is how the registry decides whether these credentials may have the image.
    pub(super) async fn pull(
        &self,
        name: &ImageName,
        credentials: &Credentials,
    ) -> Result<String, PullError> {
        let repository = self.registry.repository(name, credentials);
        let mut lease = self.store.lease();
        let version = match name.version() {
            Version::Tag(tag) => tag.clone(),
            Version::Digest(digest) => digest.to_string(),
        };
        let top = self.manifest(&repository, &version).await?;
        let document = self.keep_manifest(&top, &mut lease).await?;
        let manifest = match document {
            Document::Image(manifest) => manifest,
            Document::Index(chosen) => {
                let fetched = self.manifest(&repository, &chosen.digest.to_string()).await?;
                if fetched.data.len() as u64 != chosen.size {
                    return Err(
                        ManifestError::Size { promised: chosen.size, found: fetched.data.len() }.into()
                    );
                }
                match self.keep_manifest(&fetched, &mut lease).await? {
                    Document::Image(manifest) => manifest,
                    Document::Index(_) => return Err(ManifestError::Nested.into()),
                }
            }
        };
        self.fetch_blobs(&repository, &manifest, &mut lease).await?;
        let target = Target {
            digest: top.digest,
            size: top.data.len() as u64,
            media_type: manifest::media_type(&top.data, top.content_type.as_deref())?,
        };
        let store = Arc::clone(&self.store);
        let name = name.clone();
        // The lease goes along: cancelled or not, the blobs stay until the image has its names.
        let tagged = tokio::task::spawn_blocking(move || {
            let image = store.tag(&name, &target);
            drop(lease);
            image
        });
        let image = tagged.await.map_err(|_| PullError::Interrupted)??;
        Ok(image.id.to_string())
    }

    async fn manifest(&self, repository: &Repository<'_>, version: &str) -> Result<Fetched, PullError> {
        let _slot = self.manifests.acquire().await.map_err(|_| PullError::Interrupted)?;
        Ok(repository.manifest(version).await?)
    }

    async fn keep_manifest(&self, fetched: &Fetched, lease: &mut Lease) -> Result<Document, PullError> {
        let document = Document::parse(&fetched.data, fetched.content_type.as_deref())?;
        let size = fetched.data.len() as u64;
        let gate = lease.add(fetched.digest);
        let _only_one = gate.lock().await;
        if !self.store.layout().has(&fetched.digest, size) {
            let mut writer = self.store.layout().writer(fetched.digest, size)?;
            writer.write(&fetched.data).await?;
            writer.commit().await?;
        }
        Ok(document)
    }

    async fn fetch_blobs(
        &self,
        repository: &Repository<'_>,
        manifest: &Manifest,
        lease: &mut Lease,
    ) -> Result<(), PullError> {
        // All are leased before the first is fetched, so that none that is here already can go meanwhile.
        let wanted: Vec<_> = manifest.blobs().map(|blob| (blob, lease.add(blob.digest))).collect();
        let fetches = stream::iter(wanted).map(|(blob, gate)| async move {
            let _only_one = gate.lock().await;
            self.fetch_blob(repository, blob).await
        });
        fetches.buffer_unordered(LAYERS_AT_ONCE).try_collect().await
    }

    async fn fetch_blob(&self, repository: &Repository<'_>, blob: Blob) -> Result<(), PullError> {
        if self.store.layout().has(&blob.digest, blob.size) {
            return Ok(());
        }
        let _slot = self.downloads.acquire().await.map_err(|_| PullError::Interrupted)?;
        let mut response = repository.blob(&blob.digest).await?;
        let mut writer = self.store.layout().writer(blob.digest, blob.size)?;
        while let Some(chunk) = repository.chunk(&mut response).await? {
            writer.write(&chunk).await?;
        }
        Ok(writer.commit().await?)
    }
}

// === impl PullError ===

impl PullError {
    /// As containerd answers: NotFound for an absent image, UNKNOWN for the rest (the kubelet reads its text).
    pub(super) fn to_status(&self, image: &str) -> Status {
        let text = format!("failed to pull image {image:?}: {self}");
        match self {
            Self::Registry(RegistryError::NotFound { .. }) => Status::not_found(text),
            Self::Interrupted => Status::unavailable(text),
            _ => Status::unknown(text),
        }
    }
}
