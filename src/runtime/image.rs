//! One image in the layout: what its blobs are and what the kubelet wants to know of it.

use k8s_cri::v1;
use oci_spec::image::{Descriptor, MediaType};

use super::digest::Sha256;
use super::layout::{Layout, LayoutError};
use super::manifest::{Document, ImageConfig, MAX_CONFIG, MAX_MANIFEST, ManifestError};

/// What a name in `index.json` refers to: the document the registry gave for it, manifest or index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) digest: Sha256,
    pub(super) size: u64,
    pub(super) media_type: String,
}

/// An image whose blobs are all here.
#[derive(Debug)]
pub(super) struct Image {
    /// Digest of the config, which is how the CRI names an image.
    pub(super) id: Sha256,
    pub(super) target: Target,
    /// Every blob it needs: index, manifest, config, layers.
    pub(super) blobs: Vec<Sha256>,
    /// Size of all of them.
    pub(super) size: u64,
    uid: Option<i64>,
    username: String,
}

/// Why an image in the layout cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    /// A blob cannot be read or is not what its name says.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The config is not an image's.
    #[error("malformed image config {digest}: {source}")]
    Config {
        /// Which.
        digest: Sha256,
        /// Why.
        source: serde_json::Error,
    },
    /// A blob is not here.
    #[error("blob {0} is missing")]
    Missing(Sha256),
    /// The index leads to another index.
    #[error("{0} is an index where a manifest should be")]
    NotAManifest(Sha256),
}

// === impl Target ===

impl Target {
    /// The entry for `index.json` that gives this target a name.
    pub(super) fn named(&self, name: &str) -> Option<Descriptor> {
        let digest: oci_spec::image::Digest = self.digest.to_string().parse().ok()?;
        let mut entry = Descriptor::new(MediaType::from(self.media_type.as_str()), self.size, digest);
        entry.set_annotations(Some([(NAME_ANNOTATION.to_owned(), name.to_owned())].into()));
        Some(entry)
    }

    /// Reads an entry of `index.json` back: the name and what it refers to.
    pub(super) fn of_entry(entry: &Descriptor) -> Option<(String, Self)> {
        let name = entry.annotations().as_ref()?.get(NAME_ANNOTATION)?.clone();
        let digest = Sha256::parse(entry.digest().as_ref())?;
        Some((name, Self { digest, size: entry.size(), media_type: entry.media_type().to_string() }))
    }
}

const NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";

// === impl Image ===

impl Image {
    /// Reads the image that `target` leads to and makes sure that every blob is here.
    pub(super) fn load(layout: &Layout, target: &Target) -> Result<Self, ImageError> {
        let mut blobs = vec![target.digest];
        let mut size = 0;
        let document = layout.read(&target.digest, MAX_MANIFEST)?;
        size += document.len() as u64;
        let manifest = match Document::parse(&document, Some(&target.media_type))? {
            Document::Image(manifest) => manifest,
            Document::Index(chosen) => {
                let document = layout.read(&chosen.digest, MAX_MANIFEST)?;
                blobs.push(chosen.digest);
                size += document.len() as u64;
                match Document::parse(&document, None)? {
                    Document::Image(manifest) => manifest,
                    Document::Index(_) => return Err(ImageError::NotAManifest(chosen.digest)),
                }
            }
        };
        for blob in manifest.blobs() {
            if !layout.has(&blob.digest, blob.size) {
                return Err(ImageError::Missing(blob.digest));
            }
            blobs.push(blob.digest);
            size = size.saturating_add(blob.size);
        }
        let id = manifest.config.digest;
        let config = layout.read(&id, MAX_CONFIG)?;
        let config: ImageConfig =
            serde_json::from_slice(&config).map_err(|source| ImageError::Config { digest: id, source })?;
        let (uid, username) = config.user();
        Ok(Self { id, target: target.clone(), blobs, size, uid, username })
    }

    /// The image as the CRI shows it, under `names`.
    pub(super) fn to_cri<'a>(&self, names: impl Iterator<Item = &'a str>) -> v1::Image {
        let (repo_digests, repo_tags) = names.map(str::to_owned).partition(|name| name.contains('@'));
        v1::Image {
            id: self.id.to_string(),
            repo_tags,
            repo_digests,
            size: self.size,
            uid: self.uid.map(|value| v1::Int64Value { value }),
            username: self.username.clone(),
            spec: None,
            pinned: false,
        }
    }
}
