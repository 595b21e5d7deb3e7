//! The images of the embedded runtime: names, what they refer to, and which blobs may go.
//!
//! Two locks, neither of which is ever held across an `.await`. `state` is held for moments only. `commit` orders the
//! writers of `index.json` and is taken on blocking threads, so that nobody who only reads waits for a disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_cri::v1;
use tracing::warn;

use super::digest::Sha256;
use super::image::{Image, ImageError, Target};
use super::layout::{Layout, LayoutError};
use super::name::{ImageName, Version};

/// The images, shared by all calls.
#[derive(Debug)]
pub(super) struct Store {
    layout: Layout,
    state: Mutex<State>,
    commit: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Normalised names, as in `index.json`: one per tag and one per digest, like containerd's.
    names: BTreeMap<String, Arc<Image>>,
    /// Blobs that pulls in progress need, referred to or not.
    leases: HashMap<Sha256, Leased>,
}

#[derive(Debug, Default)]
struct Leased {
    holders: usize,
    /// Held by the one pull that fetches the blob; the others wait and then find it here.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// Keeps blobs from being collected while a pull needs them. Blobs that no image refers to when it ends are removed:
/// a pull that failed or was cancelled leaves nothing behind.
#[derive(Debug)]
pub(super) struct Lease {
    store: Arc<Store>,
    digests: Vec<Sha256>,
}

// === impl Store ===

impl Store {
    /// Opens the layout, reads back the images in it and removes blobs that belong to none.
    pub(super) fn open(layout: Layout) -> Result<Self, LayoutError> {
        let mut state = State::default();
        for entry in layout.read_index()? {
            let Some((name, target)) = Target::of_entry(&entry) else {
                warn!(digest = %entry.digest(), "image without a usable name in index.json, dropped");
                continue;
            };
            // Names of one image share it.
            let known = state.names.values().find(|image| image.target == target).cloned();
            match known.map_or_else(|| Image::load(&layout, &target).map(Arc::new), Ok) {
                Ok(image) => _ = state.names.insert(name, image),
                Err(error) => warn!(name, %error, "incomplete image, dropped"),
            }
        }
        let store = Self { layout, state: Mutex::new(state), commit: Mutex::new(()) };
        let all = store.layout.blob_digests()?;
        remove_files(store.lock().discard_unused(&store.layout, &all));
        Ok(store)
    }

    /// Where the blobs are.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A lease with nothing in it yet.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        Lease { store: Arc::clone(self), digests: Vec::new() }
    }

    /// Gives the fetched `target` its names; returns the image. Blocks on the disk.
    pub(super) fn tag(&self, name: &ImageName, target: &Target) -> Result<Arc<Image>, ImageError> {
        let image = Arc::new(Image::load(&self.layout, target)?);
        let mut added = vec![name.with_digest(target.digest).to_string()];
        if let Version::Tag(_) = name.version() {
            added.push(name.to_string());
        }
        self.change(|names| {
            for name in added {
                names.insert(name, Arc::clone(&image));
            }
        })?;
        Ok(image)
    }

    /// Removes the image that `name` refers to, under all its names; an absent one is no error. Blocks on the disk.
    pub(super) fn remove(&self, name: &str) -> Result<(), LayoutError> {
        let Some(id) = self.lock().resolve(name).map(|image| image.id) else { return Ok(()) };
        self.change(|names| names.retain(|_, image| image.id != id))?;
        let all = self.layout.blob_digests()?;
        let gone = self.lock().discard_unused(&self.layout, &all);
        remove_files(gone);
        Ok(())
    }

    /// The image that `name` refers to: a name, a digest reference, an id, or the beginning of exactly one id.
    pub(super) fn get(&self, name: &str) -> Option<v1::Image> {
        let state = self.lock();
        let image = state.resolve(name)?;
        Some(state.to_cri(image))
    }

    /// All images.
    pub(super) fn list(&self) -> Vec<v1::Image> {
        let state = self.lock();
        let mut seen = HashSet::new();
        state.names.values().filter(|image| seen.insert(image.id)).map(|image| state.to_cri(image)).collect()
    }

    /// Changes the names: on disk first, so that what memory says survives a restart.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Arc<Image>>)) -> Result<(), LayoutError> {
        let _writer = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.lock().names.clone();
        let mut names = before.clone();
        change(&mut names);
        let targets = |names: &BTreeMap<String, Arc<Image>>| {
            names.iter().map(|(name, image)| (name.clone(), image.target.clone())).collect::<Vec<_>>()
        };
        // Most pulls of an image that is here change nothing.
        if targets(&before) == targets(&names) {
            return Ok(());
        }
        self.layout
            .write_index(names.iter().filter_map(|(name, image)| image.target.named(name)).collect())?;
        self.lock().names = names;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave the state half-changed: every change is one insertion or replacement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn resolve(&self, name: &str) -> Option<&Arc<Image>> {
        let by_id = |id: Sha256| self.names.values().find(|image| image.id == id);
        if let Some(id) = Sha256::parse(name).or_else(|| Sha256::from_hex(name)) {
            return by_id(id);
        }
        let by_name = ImageName::parse(name).ok().and_then(|name| self.names.get(&name.to_string()));
        by_name.or_else(|| {
            let start = name.strip_prefix("sha256:").unwrap_or(name);
            let mut ids: Vec<Sha256> = self.names.values().map(|image| image.id).collect();
            ids.retain(|id| !start.is_empty() && id.hex().starts_with(start));
            ids.dedup();
            let first = *ids.first()?;
            ids.iter().all(|id| *id == first).then(|| by_id(first))?
        })
    }

    fn to_cri(&self, image: &Image) -> v1::Image {
        let named = self.names.iter().filter(|(_, named)| named.id == image.id);
        image.to_cri(named.map(|(name, _)| name.as_str()))
    }

    /// Moves those of `candidates` that neither an image nor a pull needs out of the layout.
    fn discard_unused(&self, layout: &Layout, candidates: &[Sha256]) -> Vec<PathBuf> {
        let used: HashSet<_> = self.names.values().flat_map(|image| &image.blobs).collect();
        let unused =
            candidates.iter().filter(|digest| !used.contains(digest) && !self.leases.contains_key(digest));
        unused.filter_map(|digest| layout.discard(digest)).collect()
    }
}

// === impl Lease ===

impl Lease {
    /// Protects a blob from now on; whether it is here must be looked up only after that.
    /// The returned gate is to be held while the blob is fetched.
    pub(super) fn add(&mut self, digest: Sha256) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.store.lock();
        let leased = state.leases.entry(digest).or_default();
        leased.holders += 1;
        self.digests.push(digest);
        Arc::clone(&leased.gate)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.store.lock();
            for digest in &self.digests {
                if let Some(leased) = state.leases.get_mut(digest) {
                    leased.holders = leased.holders.saturating_sub(1);
                    if leased.holders == 0 {
                        state.leases.remove(digest);
                    }
                }
            }
            state.discard_unused(&self.store.layout, &self.digests)
        };
        // Removing a large file takes a while: not on a thread that serves calls, if there is another.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !gone.is_empty() => _ = runtime.spawn_blocking(move || remove_files(gone)),
            _ => remove_files(gone),
        }
    }
}

/// Removes files that were moved out of the layout. What cannot be removed now goes at the next start.
fn remove_files(files: Vec<PathBuf>) {
    for file in files {
        if let Err(error) = std::fs::remove_file(&file) {
            warn!(file = %file.display(), %error, "unused blob not removed");
        }
    }
}
