//! How far a pull is, told by its lease: which blobs the image has, which are there, how much of the others is.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use super::lease::Held;
use super::manifest::{MAX_MANIFEST, Manifest};
use super::{Containerd, Error};

/// How far a pull is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What it does.
    pub phase: Phase,
    /// Bytes of layers, as they come from the registry, that are there.
    pub bytes_done: u64,
    /// Bytes of all layers. `None` until the manifest is known, and for one that does not tell.
    pub bytes_total: Option<u64>,
    /// The layers in the image's order, each once. Empty while there is no total.
    pub layers: Vec<LayerProgress>,
    /// How many layers are there as a whole.
    pub layers_done: usize,
}

/// What a pull does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It asks the registry for the manifest.
    Resolving,
    /// Some of the image is not there yet. Layers that are there may be unpacked already.
    Downloading,
    /// All of the image is there.
    Unpacking,
}

/// How far one layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerProgress {
    /// Its digest.
    pub digest: String,
    /// Its size as it comes from the registry.
    pub size: u64,
    /// How much of it is there.
    pub done: u64,
}

/// Follows one attempt at a pull. It remembers what it has learnt, so that asking again costs little: each manifest
/// is read once, and a blob that is there is not asked for again.
#[derive(Debug)]
pub struct Tracker {
    containerd: Containerd,
    lease: String,
    documents: Documents,
    blobs: Blobs,
}

/// The documents that a lease holds, as far as they have been read.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// By digest: the image it describes, if it is a manifest that tells, and when it came.
    read: HashMap<String, Option<(Manifest, Option<SystemTime>)>>,
    /// Config and layers of all manifests so far, which need not be looked at.
    members: HashSet<String>,
}

/// What is known of blobs.
#[derive(Debug, Default)]
struct Blobs {
    whole: HashSet<String>,
    /// How much of a blob was there when its ingest was last seen.
    part: HashMap<String, u64>,
}

/// How many blobs are asked for with each poll. Images have fewer layers; what a hostile manifest adds comes into
/// view as those before it finish.
const MAX_ASKED: usize = 512;
/// How many blobs of a lease are looked at to find the manifest among them.
const MAX_SEARCHED: usize = 4096;

// === impl Containerd ===

impl Containerd {
    /// Follows the pull that runs under a lease.
    pub fn track(&self, lease: impl Into<String>) -> Tracker {
        Tracker {
            containerd: self.clone(),
            lease: lease.into(),
            documents: Documents::default(),
            blobs: Blobs::default(),
        }
    }
}

// === impl Tracker ===

impl Tracker {
    /// How far the pull is now. It costs containerd a few reads of its database: ask once a second at most, and only
    /// while somebody looks. After an error it can be asked again.
    pub async fn poll(&mut self) -> Result<Progress, Error> {
        // Ingests first: one that ends now is then found as a whole, while the other way round it would be missed.
        let ingests = self.containerd.ingests().await?;
        let held = self.containerd.held(&self.lease).await?;
        self.documents.learn(&self.containerd, &held).await?;
        let Some(manifest) = self.documents.current(&held) else {
            return Ok(Progress::without_manifest(&held));
        };
        self.blobs.note(manifest, &ingests, &held.content);
        let missing = self.blobs.missing(manifest).take(MAX_ASKED).map(str::to_owned).collect();
        let found = self.containerd.infos(missing).await?;
        self.blobs.note(manifest, &HashMap::new(), found.keys());
        Ok(measure(manifest, &self.blobs))
    }
}

// === impl Documents ===

impl Documents {
    /// Reads the manifests among what a lease holds, those known already apart.
    pub(super) async fn learn(&mut self, containerd: &Containerd, held: &Held) -> Result<(), Error> {
        let unknown = held.content.iter().filter(|digest| !self.knows(digest));
        let unknown = unknown.take(MAX_SEARCHED).cloned().collect();
        for (digest, info) in containerd.infos(unknown).await? {
            // One that refers to nothing yet is looked at again: containerd notes that after it has read it.
            if info.refers.is_empty() {
                continue;
            }
            let data = match usize::try_from(info.size) {
                Ok(size) if size <= MAX_MANIFEST => containerd.read(&digest, MAX_MANIFEST).await?,
                _ => None,
            };
            let manifest = data.and_then(|data| Manifest::parse(&data));
            self.add(digest, manifest, info.created_at);
        }
        Ok(())
    }

    /// The manifest of the image. The lease of a pull whose tag has moved on since the last attempt has two: the one
    /// that came last counts.
    pub(super) fn current(&self, held: &Held) -> Option<&Manifest> {
        let manifests = held.content.iter().filter_map(|digest| self.read.get(digest)?.as_ref());
        manifests.max_by_key(|(_, created_at)| *created_at).map(|(manifest, _)| manifest)
    }

    fn knows(&self, digest: &str) -> bool {
        self.read.contains_key(digest) || self.members.contains(digest)
    }

    fn add(&mut self, digest: String, manifest: Option<Manifest>, created_at: Option<SystemTime>) {
        if let Some(manifest) = &manifest {
            self.members.extend(manifest.blobs().map(|blob| blob.digest.clone()));
        }
        self.read.insert(digest, manifest.map(|manifest| (manifest, created_at)));
    }
}

// === impl Blobs ===

impl Blobs {
    /// Notes what was seen of a manifest's blobs. A blob that was whole stays so, and an ingest that is not seen counts
    /// as before: while containerd commits it, it is neither here nor there.
    fn note<'a>(
        &mut self,
        manifest: &Manifest,
        ingests: &HashMap<String, u64>,
        whole: impl IntoIterator<Item = &'a String>,
    ) {
        let whole: HashSet<&String> = whole.into_iter().collect();
        for blob in manifest.blobs() {
            if whole.contains(&blob.digest) {
                self.part.remove(&blob.digest);
                self.whole.insert(blob.digest.clone());
            } else if let Some(offset) = ingests.get(&blob.digest) {
                self.part.insert(blob.digest.clone(), *offset);
            }
        }
    }

    /// The blobs that are not whole as far as is known.
    fn missing<'a>(&self, manifest: &'a Manifest) -> impl Iterator<Item = &'a str> {
        let digests = manifest.blobs().map(|blob| blob.digest.as_str());
        digests.filter(|digest| !self.whole.contains(*digest))
    }
}

// === impl Progress ===

impl Progress {
    /// What can be told without a manifest.
    fn without_manifest(held: &Held) -> Self {
        let document = |ingest: &String| ingest.starts_with("manifest-") || ingest.starts_with("index-");
        let phase = if held.ingests.iter().any(|ingest| !document(ingest)) {
            Phase::Downloading
        } else if held.snapshots {
            Phase::Unpacking
        } else {
            Phase::Resolving
        };
        Self { phase, bytes_done: 0, bytes_total: None, layers: Vec::new(), layers_done: 0 }
    }
}

/// How far a pull of an image is.
fn measure(manifest: &Manifest, blobs: &Blobs) -> Progress {
    let done = |digest: &str, size: u64| match blobs.whole.contains(digest) {
        true => size,
        false => blobs.part.get(digest).map_or(0, |part| size.min(*part)),
    };
    let layers: Vec<_> = manifest
        .layers
        .iter()
        .map(|layer| LayerProgress {
            done: done(&layer.digest, layer.size),
            digest: layer.digest.clone(),
            size: layer.size,
        })
        .collect();
    // Sizes are the registry's word, and may add up to more than there is.
    let sum = |of: fn(&LayerProgress) -> u64| layers.iter().map(of).fold(0, u64::saturating_add);
    let complete = blobs.missing(manifest).next().is_none();
    Progress {
        phase: if complete { Phase::Unpacking } else { Phase::Downloading },
        bytes_done: sum(|layer| layer.done),
        bytes_total: Some(sum(|layer| layer.size)),
        layers_done: layers.iter().filter(|layer| blobs.whole.contains(&layer.digest)).count(),
        layers,
    }
}

#[cfg(test)]
#[path = "progress/tests.rs"]
mod tests;
