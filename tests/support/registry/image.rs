//! Small images for the test registry.

use std::fs::File;
use std::io::{Read as _, Write as _};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const PLAIN_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image, or an index of images, ready to be pushed.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Config and layers, by digest.
    pub(crate) blobs: Vec<(String, Bytes)>,
    /// Media type and bytes; the one that a tag is given to comes last.
    pub(crate) manifests: Vec<(String, Bytes)>,
    /// The digest of the config.
    pub(crate) id: String,
}

/// Builds an [`Image`].
#[derive(Clone, Debug)]
pub(crate) struct ImageBuilder {
    layers: Vec<Layer>,
    user: String,
    architecture: &'static str,
}

#[derive(Clone, Debug)]
struct Layer {
    kind: &'static str,
    /// As it is sent.
    data: Bytes,
    /// Digest of the archive itself: a runtime checks it when it unpacks.
    diff_id: String,
}

// === impl Image ===

impl Image {
    /// The digest of what a tag is given to.
    pub(crate) fn digest(&self) -> String {
        digest_of(&self.manifests.last().unwrap().1)
    }

    /// Digests of the layers, in the order of the first manifest.
    pub(crate) fn layers(&self) -> Vec<String> {
        self.blobs.iter().map(|(digest, _)| digest.clone()).filter(|digest| *digest != self.id).collect()
    }
}

// === impl ImageBuilder ===

impl Default for ImageBuilder {
    fn default() -> Self {
        Self { layers: Vec::new(), user: String::new(), architecture: host_architecture() }
    }
}

impl ImageBuilder {
    /// Adds a layer of these files, as a compressed tar archive.
    pub(crate) fn layer(mut self, files: &[(&str, &[u8])]) -> Self {
        let archive = archive(files, 0o644);
        let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        compressed.write_all(&archive).unwrap();
        let data = compressed.finish().unwrap().into();
        self.layers.push(Layer { kind: LAYER, data, diff_id: digest_of(&archive) });
        self
    }

    /// Adds a layer of one program, so that the image can run.
    pub(crate) fn program(self, path: &str, data: &[u8]) -> Self {
        self.plain(archive(&[(path, data)], 0o755))
    }

    /// Adds a layer of this many random bytes. It is not compressed, so that even a large one is made quickly.
    pub(crate) fn random(self, size: usize) -> Self {
        let mut data = vec![0; size];
        File::open("/dev/urandom").unwrap().read_exact(&mut data).unwrap();
        self.plain(archive(&[("random", &data)], 0o644))
    }

    fn plain(mut self, archive: Vec<u8>) -> Self {
        let diff_id = digest_of(&archive);
        self.layers.push(Layer { kind: PLAIN_LAYER, data: archive.into(), diff_id });
        self
    }

    /// Adds a layer of about this size that does not compress and differs by `seed`.
    pub(crate) fn noise(self, size: usize, seed: u64) -> Self {
        // SplitMix64, because tests make hundreds of megabytes of it.
        let mut state = seed;
        let mut data = Vec::with_capacity(size + 8);
        while data.len() < size {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            data.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
        data.truncate(size);
        self.plain(archive(&[("noise", &data)], 0o644))
    }

    /// Adds a layer that another image has, too.
    pub(crate) fn share(mut self, other: &Self, at: usize) -> Self {
        self.layers.push(other.layers[at].clone());
        self
    }

    /// The user of the config.
    pub(crate) fn user(mut self, user: &str) -> Self {
        self.user = user.to_owned();
        self
    }

    /// The architecture; the host's unless set.
    pub(crate) fn architecture(mut self, architecture: &'static str) -> Self {
        self.architecture = architecture;
        self
    }

    /// The image.
    pub(crate) fn build(self) -> Image {
        let layers: Vec<Value> =
            self.layers.iter().map(|layer| descriptor(layer.kind, &layer.data)).collect();
        let diff_ids: Vec<&str> = self.layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let config = bytes(&json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": { "User": self.user, "Cmd": ["/bin/true"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        }));
        let manifest = bytes(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers,
        }));
        let id = digest_of(&config);
        let layers = self.layers.into_iter().map(|layer| layer.data);
        let mut blobs: Vec<_> = layers.map(|layer| (digest_of(&layer), layer)).collect();
        blobs.push((id.clone(), config));
        Image { blobs, manifests: vec![(MANIFEST.to_owned(), manifest)], id }
    }
}

/// One name for several architectures. Its `id` is that of the host's image, if there is one.
pub(crate) fn index(images: &[(&str, &Image)]) -> Image {
    let entries = images.iter().map(|(architecture, image)| {
        let mut entry = descriptor(MANIFEST, &image.manifests.last().unwrap().1);
        entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
        entry
    });
    let entries: Vec<Value> = entries.collect();
    let document = bytes(&json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }));
    let mut manifests: Vec<_> = images.iter().flat_map(|(_, image)| image.manifests.clone()).collect();
    manifests.push((INDEX.to_owned(), document));
    let blobs = images.iter().flat_map(|(_, image)| image.blobs.clone()).collect();
    let host = images.iter().find(|(architecture, _)| *architecture == host_architecture());
    Image { blobs, manifests, id: host.map(|(_, image)| image.id.clone()).unwrap_or_default() }
}

/// What OCI calls the host's architecture.
pub(crate) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `sha256:…` of `data`.
pub(crate) fn digest_of(data: &[u8]) -> String {
    let hex: String = Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn archive(files: &[(&str, &[u8])], mode: u32) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut head = tar::Header::new_gnu();
        head.set_size(data.len() as u64);
        head.set_mode(mode);
        archive.append_data(&mut head, path, *data).unwrap();
    }
    archive.into_inner().unwrap()
}

fn descriptor(media_type: &str, data: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest_of(data), "size": data.len() })
}

fn bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).unwrap().into()
}
