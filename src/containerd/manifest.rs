//! What a manifest in the content store says of an image's size.

use std::collections::HashSet;

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};

/// Largest manifest that is read. containerd's own limit is smaller.
pub(super) const MAX_MANIFEST: usize = 8 << 20;

/// The blobs of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) config: Blob,
    /// Each once, however often the image has it: it is fetched once.
    pub(super) layers: Vec<Blob>,
}

/// A blob as a manifest names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: String,
    pub(super) size: u64,
}

// === impl Manifest ===

impl Manifest {
    /// Reads an image manifest, OCI's or Docker's. `None` for all else: an index, of which the lease holds the one
    /// manifest that containerd has chosen; schema 1, which tells no sizes; what is no manifest at all.
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        // Media types are not compared: artifacts have their own, and containerd pulls them all the same.
        let manifest: ImageManifest = serde_json::from_slice(data).ok()?;
        let mut seen = HashSet::new();
        let layers = manifest.layers().iter().map(Blob::of);
        let layers = layers.filter(|layer| seen.insert(layer.digest.clone())).collect();
        Some(Self { config: Blob::of(manifest.config()), layers })
    }

    /// Config and layers.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.config).chain(&self.layers)
    }
}

/// The manifests that an index names, in its order; none for what is no index.
pub(super) fn children(data: &[u8]) -> Vec<String> {
    let index = serde_json::from_slice::<ImageIndex>(data).ok();
    let manifests = index.iter().flat_map(|index| index.manifests());
    manifests.map(|manifest| manifest.digest().to_string()).collect()
}

// === impl Blob ===

impl Blob {
    fn of(descriptor: &Descriptor) -> Self {
        Self { digest: descriptor.digest().to_string(), size: descriptor.size() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

    fn parse(document: &Value) -> Option<Manifest> {
        Manifest::parse(document.to_string().as_bytes())
    }

    fn descriptor(media_type: &str, digest: &str, size: i64) -> Value {
        json!({ "mediaType": media_type, "digest": digest, "size": size })
    }

    fn blob(digest: &str, size: u64) -> Blob {
        Blob { digest: digest.into(), size }
    }

    #[test]
    fn oci_and_docker_manifests_are_read() {
        for (manifest, config, layer) in [
            (
                "application/vnd.oci.image.manifest.v1+json",
                "application/vnd.oci.image.config.v1+json",
                "application/vnd.oci.image.layer.v1.tar+zstd",
            ),
            (
                "application/vnd.docker.distribution.manifest.v2+json",
                "application/vnd.docker.container.image.v1+json",
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
            ),
        ] {
            let mut document = json!({
                "schemaVersion": 2,
                "mediaType": manifest,
                "config": descriptor(config, C, 7),
                "layers": [descriptor(layer, A, 100), descriptor(layer, B, 20), descriptor(layer, A, 100)],
            });
            let expected = Manifest { config: blob(C, 7), layers: vec![blob(A, 100), blob(B, 20)] };
            assert_eq!(parse(&document), Some(expected.clone()), "a layer that comes twice counts once");
            document.as_object_mut().unwrap().remove("mediaType");
            assert_eq!(parse(&document), Some(expected));
        }
        let empty = json!({ "schemaVersion": 2, "config": descriptor("x/y", C, 7), "layers": [] });
        assert_eq!(parse(&empty), Some(Manifest { config: blob(C, 7), layers: vec![] }));
    }

    #[test]
    fn everything_else_is_not() {
        let manifest = "application/vnd.oci.image.manifest.v1+json";
        let layer = "application/vnd.oci.image.layer.v1.tar";
        for document in [
            json!({ "schemaVersion": 2, "manifests": [descriptor(manifest, A, 1)] }),
            json!({ "schemaVersion": 1, "name": "a", "fsLayers": [{ "blobSum": A }], "history": [] }),
            json!({ "schemaVersion": 2, "config": descriptor("x/y", C, 7), "layers": [descriptor(layer, A, -1)] }),
            json!({ "schemaVersion": 2, "config": descriptor("x/y", "sha256:../..", 7), "layers": [] }),
            json!({ "architecture": "amd64", "rootfs": {} }),
            json!([]),
            json!(null),
        ] {
            assert_eq!(parse(&document), None, "{document}");
        }
        assert_eq!(Manifest::parse(b""), None);
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor(manifest, A, 1), descriptor(manifest, B, 1)] });
        assert_eq!(children(index.to_string().as_bytes()), [A, B]);
        assert_eq!(children(b"{}"), [""; 0]);
        assert_eq!(Manifest::parse(&[0x1f, 0x8b, 8, 0]), None);
    }
}
