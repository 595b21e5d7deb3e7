//! What the kubelet is told of images: the table that the queue writes and [`crate::intercept`] reads.
//!
//! | in the table | what the caller of crisp's socket sees |
//! |---|---|
//! | a pin | the image is `pinned`, and RemoveImage of it is refused |
//! | a hidden name | no image that has only hidden names, by whatever name, digest or ID it is asked for |
//! | a mapped name | ImageStatus of the one name is answered with the other's image, if there is none of that name |
//!
//! Names are compared in their normalised form, which is the one that containerd, CRI-O and the embedded runtime list. A
//! name with a digest is its repository and the digest, with or without a tag beside it, as the runtimes have it.
//!
//! # Hiding, and pulls of others
//!
//! While a private image is being pulled only to be put away, nobody may find it. But the same image may be brought by
//! somebody else meanwhile, and what others bring is neither hidden nor put away. So:
//!
//! 1. [`Sight::watch`] before looking whether the image is there. From now on pulls of others are noted.
//! 2. [`HideGuard::hide_new`] with the images that are there, before the pull begins.
//! 3. [`HideGuard::claim`] before removing anything: it waits for pulls of others in the same repository, and
//!    tells whether one of them brought the image. While the claim is held, such pulls wait. It is held for moments.
//!
//! Only pulls that come over crisp's socket are known here. Guards are few and live as long as a pull, so all that is
//! remembered for them is bounded by [`MAX_BROUGHT`], and is gone with the last of them.

mod guard;
mod hiding;
mod pins;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cri::view;
use crate::image::Reference;

pub use guard::{Claim, HideGuard, Pulling};
use hiding::Hiding;
pub use hiding::MAX_BROUGHT;
use pins::Pins;

/// How long a list of images waits for what is kept to give way. The kubelet gives it two minutes.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// The table. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    inner: Arc<Inner>,
}

/// An image that is to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The image's name.
    pub name: String,
    /// Its ID, where it is known.
    pub image_id: Option<String>,
    /// Who wants it to stay, in words that fit behind "pinned by".
    pub owner: String,
    /// How long, in words that fit behind "until"; may be empty.
    pub until: String,
    /// What `crisp queue cancel` takes to end it.
    pub item: String,
}

/// What becomes of an image in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It goes on as it is.
    AsItIs,
    /// It is pinned.
    Pinned,
    /// It is not there.
    Hidden,
}

#[derive(Debug, Default)]
struct Inner {
    /// Which parts of the table hold anything; all that most calls ever look at. Written under the lock.
    filled: AtomicU8,
    /// Never held across an await.
    state: Mutex<State>,
    /// Tells when a pull or a claim has ended.
    ended: watch::Sender<()>,
    /// Who sees to it that what is kept gives way.
    keeper: OnceLock<mpsc::Sender<Asked>>,
}

/// Told when what is kept has given way as far as it has to.
pub type Asked = oneshot::Sender<()>;

#[derive(Debug, Default)]
struct State {
    pins: Pins,
    hiding: Hiding,
    /// Names that the runtime may not have, to those that it has.
    maps: HashMap<String, String>,
    /// Whether anything is kept, pinned or parked.
    keeps: bool,
}

const PINS: u8 = 1;
const HIDDEN: u8 = 2;
const MAPS: u8 = 4;
const KEEPS: u8 = 8;

// === impl Sight: what the queue writes ===

impl Sight {
    /// Replaces all pins.
    pub fn set_pins(&self, pins: impl IntoIterator<Item = Pin>) {
        let pins = Pins::new(pins);
        // What was there before is dropped when the lock is free again.
        drop(self.change(|state| state.pins.replace(pins)));
    }

    /// Says whether anything is kept that may have to give way.
    pub fn set_keeps(&self, keeps: bool) {
        self.change(|state| state.keeps = keeps);
    }

    /// Names who is asked before images are listed. Only the first one is.
    pub fn kept_by(&self, keeper: mpsc::Sender<Asked>) {
        // A second queue on the same table would be a mistake of ours, and a harmless one.
        let _ = self.inner.keeper.set(keeper);
    }

    /// Notes from now on what others bring, and hides nothing yet.
    pub fn watch<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> HideGuard {
        let names = names.into_iter().map(|name| Name::of(name.as_ref())).collect();
        HideGuard::new(self, self.change(|state| state.hiding.watch(names)))
    }

    /// Hides images that have no other names than these, and at least one of them, until the guard is dropped. As the
    /// digest that a tag will have is not known beforehand, every digest in the repository of a tag counts as its own;
    /// [`Sight::watch`] with [`HideGuard::hide_new`] spares images that were there before.
    pub fn hide<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> HideGuard {
        let guard = self.watch(names);
        guard.hide_names();
        guard
    }

    /// A pull that is not crisp's own has succeeded: from now on the image is there for all to see. `image_id` is the
    /// `image_ref` of the reply.
    pub fn brought(&self, reference: &str, image_id: Option<&str>) {
        self.change(|state| state.hiding.brought(reference, image_id));
    }

    /// Whether somebody else is known to have brought this name, or the image of this ID, lately. Only what came while
    /// something was being watched is known.
    pub fn was_brought(&self, name: &str) -> bool {
        let id = bare_id(name);
        let state = self.state();
        state.hiding.brought.contains_key(id) || state.hiding.brought.contains_key(&Name::of(name).key)
    }

    /// Says that somebody else begins to pull. Waits while what crisp pulled from the same repository is being removed.
    pub async fn pulling(&self, reference: &str) -> Pulling {
        let repository = Name::of(reference).repository;
        let mut ended = self.inner.ended.subscribe();
        loop {
            if self.change(|state| state.hiding.begin(repository.as_deref())) {
                return Pulling::new(self, repository);
            }
            // The sender lives as long as this table.
            let _ = ended.changed().await;
        }
    }

    /// From now on ImageStatus of `from` is answered with the image `to`, if the runtime has no image `from`.
    pub fn map_name(&self, from: &str, to: &str) {
        let (from, to) = (Name::of(from).key, to.to_owned());
        self.change(|state| state.maps.insert(from, to));
    }

    /// Ends what [`Sight::map_name`] began.
    pub fn unmap(&self, from: &str) {
        let from = Name::of(from).key;
        self.change(|state| state.maps.remove(&from));
    }

    /// Changes the table, and notes what is in it then.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let filled = [
            (!state.pins.is_empty(), PINS),
            (state.hiding.hides_anything(), HIDDEN),
            (!state.maps.is_empty(), MAPS),
            (state.keeps, KEEPS),
        ];
        let filled = filled.iter().filter(|(filled, _)| *filled).fold(0, |all, (_, part)| all | part);
        self.inner.filled.store(filled, Ordering::Release);
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the state whole, so a panic elsewhere does not spoil it.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Sight: what calls are answered by ===

impl Sight {
    /// Whether no call needs a look.
    pub fn is_empty(&self) -> bool {
        self.filled() == 0
    }

    /// Whether an image in a reply may have to be changed.
    pub fn changes_images(&self) -> bool {
        self.filled() & (PINS | HIDDEN) != 0
    }

    /// To be waited for before images are listed, if anything is kept: when the kubelet lists images to free space, what
    /// has to give way has done so. Otherwise it would see it pinned, and evict a pod.
    pub fn settled(&self) -> Option<BoxFuture<'static, ()>> {
        if self.filled() & KEEPS == 0 {
            return None;
        }
        let (asked, answer) = oneshot::channel();
        // So many wait already that one more does not matter.
        self.inner.keeper.get()?.try_send(asked).ok()?;
        // A list that comes too late is worse than one that shows a pin too many.
        Some(tokio::time::timeout(SETTLED_WITHIN, answer).map(drop).boxed())
    }

    /// What becomes of these images. The pinned ones are remembered, so that RemoveImage knows them by all their names.
    pub fn show<'a>(&self, images: impl IntoIterator<Item = &'a view::Image>) -> Vec<Shown> {
        let mut state = self.state();
        let State { pins, hiding, .. } = &mut *state;
        let show = |image: &view::Image| {
            if hiding.hides(image) {
                Shown::Hidden
            } else if pins.see(image) {
                Shown::Pinned
            } else {
                Shown::AsItIs
            }
        };
        images.into_iter().map(show).collect()
    }

    /// Forgets the pinned images that were seen, except those with these IDs: a full list had no others.
    pub fn forget_others(&self, listed: &HashSet<String>) {
        self.state().pins.forget_others(listed);
    }

    /// The pins of the image that a caller names: by ID, also the beginning of one, by tag or by digest.
    pub fn pins_of(&self, image: &str) -> Vec<Arc<Pin>> {
        if self.filled() & PINS == 0 { Vec::new() } else { self.state().pins.of(image) }
    }

    /// The name to ask for in place of this one, if the runtime does not have it.
    pub fn mapped(&self, name: &str) -> Option<String> {
        if self.filled() & MAPS == 0 {
            return None;
        }
        let key = Name::of(name).key;
        self.state().maps.get(&key).cloned()
    }

    fn filled(&self) -> u8 {
        self.inner.filled.load(Ordering::Acquire)
    }
}

/// A name as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    /// `repository:tag` or `repository@digest`; a text that is no name is itself.
    key: String,
    /// Registry and repository, if it is a name.
    repository: Option<String>,
}

// === impl Name ===

impl Name {
    fn of(text: &str) -> Self {
        let Ok(reference) = Reference::parse(text) else {
            return Self { key: text.to_owned(), repository: None };
        };
        let reference = reference.with_default_tag();
        let repository = reference.name();
        let key = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => format!("{repository}@{digest}"),
            (None, Some(tag)) => format!("{repository}:{tag}"),
            (None, None) => repository.clone(),
        };
        Self { key, repository: Some(repository) }
    }

    fn is_digest(&self) -> bool {
        self.key.contains('@')
    }
}

/// CRI-O has IDs without the algorithm.
fn bare_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

#[cfg(test)]
mod tests;
