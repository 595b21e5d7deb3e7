//! What a registry's manifest says, checked before anything is done with it.

use oci_spec::image::{Arch, Descriptor, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;

use super::digest::Sha256;

/// Largest manifest or index that is read, as containerd's.
pub(super) const MAX_MANIFEST: u64 = 4 << 20;
/// Largest image config that is read, as containerd's.
pub(super) const MAX_CONFIG: u64 = 8 << 20;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// What the registry is asked for.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A blob as a manifest names it: digest and size are all that is needed to fetch and check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: Sha256,
    pub(super) size: u64,
}

/// A manifest or an index.
#[derive(Debug)]
pub(super) enum Document {
    /// One image for one platform.
    Image(Manifest),
    /// The same image for several platforms; holds the manifest for this host.
    Index(Blob),
}

/// The parts of one image.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) config: Blob,
    pub(super) layers: Vec<Blob>,
}

/// What is read of an image's config. Everything else stays in the blob.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ImageConfig {
    #[serde(default)]
    config: Option<Execution>,
}

#[derive(Debug, Default, Deserialize)]
struct Execution {
    #[serde(rename = "User", default)]
    user: Option<String>,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    /// It is not the JSON it should be.
    #[error("malformed manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// It could be read as two things, which is how manifests are confused (CVE-2021-41190).
    #[error("ambiguous manifest: it lists both layers and manifests")]
    Ambiguous,
    /// It is something else.
    #[error("unsupported media type {0:?}")]
    MediaType(String),
    /// A digest that is not sha256, or not a digest.
    #[error("unsupported digest {0:?}")]
    Digest(String),
    /// The config is too large to be one.
    #[error("config of {0} bytes, more than the {MAX_CONFIG} allowed")]
    ConfigSize(u64),
    /// The index promised a manifest of another size.
    #[error("manifest of {found} bytes where the index promises {promised}")]
    Size {
        /// By the index.
        promised: u64,
        /// What came.
        found: usize,
    },
    /// No image in the index runs here.
    #[error("no match for platform linux/{0} in the index")]
    Platform(Arch),
    /// An index within an index.
    #[error("the index names another index for this platform")]
    Nested,
}

/// The fields by which a document is told apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    media_type: Option<String>,
    #[serde(default)]
    layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
}

// === impl Document ===

impl Document {
    /// Reads a manifest or an index; `content_type` is the registry's word for it, used if the document has none.
    pub(super) fn parse(data: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        match media_type(data, content_type)?.as_str() {
            OCI_INDEX | DOCKER_LIST => {
                let index: ImageIndex = serde_json::from_slice(data)?;
                select(index.manifests(), &Arch::default()).map(Self::Index)
            }
            OCI_MANIFEST | DOCKER_MANIFEST => Manifest::parse(data).map(Self::Image),
            other => Err(ManifestError::MediaType(other.chars().take(256).collect())),
        }
    }
}

/// What kind of document `data` is: by its own word, else by the registry's, else by its shape.
pub(super) fn media_type(data: &[u8], content_type: Option<&str>) -> Result<String, ManifestError> {
    let shape: Shape = serde_json::from_slice(data)?;
    if shape.layers.is_some() && shape.manifests.is_some() {
        return Err(ManifestError::Ambiguous);
    }
    // Some registries call everything application/json or text/plain, which says nothing.
    let content_type = content_type.filter(|kind| kind.starts_with("application/vnd."));
    Ok(match (shape.media_type.as_deref(), content_type) {
        (Some(kind), _) | (None, Some(kind)) => kind,
        (None, None) if shape.manifests.is_some() => OCI_INDEX,
        (None, None) => OCI_MANIFEST,
    }
    .to_owned())
}

// === impl Manifest ===

impl Manifest {
    fn parse(data: &[u8]) -> Result<Self, ManifestError> {
        let manifest: ImageManifest = serde_json::from_slice(data)?;
        let config = Blob::of(manifest.config())?;
        if config.size > MAX_CONFIG {
            return Err(ManifestError::ConfigSize(config.size));
        }
        let layers = manifest.layers().iter().map(Blob::of).collect::<Result<_, _>>()?;
        Ok(Self { config, layers })
    }

    /// Config and layers.
    pub(super) fn blobs(&self) -> impl Iterator<Item = Blob> {
        std::iter::once(self.config).chain(self.layers.iter().copied())
    }
}

// === impl Blob ===

impl Blob {
    fn of(descriptor: &Descriptor) -> Result<Self, ManifestError> {
        let digest: &str = descriptor.digest().as_ref();
        match Sha256::parse(digest) {
            Some(digest) => Ok(Self { digest, size: descriptor.size() }),
            None => Err(ManifestError::Digest(digest.chars().take(256).collect())),
        }
    }
}

// === impl ImageConfig ===

impl ImageConfig {
    /// The numeric user, or the user's name; neither means root, as the kubelet reads it.
    pub(super) fn user(&self) -> (Option<i64>, String) {
        let user = self.config.as_ref().and_then(|config| config.user.as_deref()).unwrap_or_default();
        let user = user.split(':').next().unwrap_or_default();
        match user.parse() {
            Ok(uid) => (Some(uid), String::new()),
            Err(_) => (None, user.to_owned()),
        }
    }
}

/// Picks the manifest for Linux on `arch`. Of several, one without a variant or with the basic one wins, else the first.
fn select(manifests: &[Descriptor], arch: &Arch) -> Result<Blob, ManifestError> {
    let here = |descriptor: &&Descriptor| match descriptor.platform() {
        Some(platform) => *platform.os() == Os::Linux && platform.architecture() == arch,
        None => false,
    };
    let basic = |descriptor: &&Descriptor| {
        let variant = descriptor.platform().as_ref().and_then(|platform| platform.variant().as_deref());
        matches!((arch, variant), (_, None | Some("")) | (Arch::ARM64, Some("v8")) | (Arch::ARM, Some("v7")))
    };
    let mut matching = manifests.iter().filter(here);
    let chosen = matching.clone().find(basic).or_else(|| matching.next());
    let chosen = chosen.ok_or_else(|| ManifestError::Platform(arch.clone()))?;
    match chosen.media_type() {
        MediaType::ImageIndex => Err(ManifestError::Nested),
        _ => Blob::of(chosen),
    }
}
