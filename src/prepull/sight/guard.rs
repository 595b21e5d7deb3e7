//! What keeps names hidden, pulls noted and removals undisturbed as long as it is held.

use super::hiding::Ticket;
use super::{Sight, bare_id};

/// Hides names, and remembers what others bring, until it is dropped.
#[derive(Debug)]
pub struct HideGuard {
    sight: Sight,
    ticket: Ticket,
}

/// A pull of somebody else, until it is dropped.
#[derive(Debug)]
#[must_use = "the pull counts as ended when this is dropped"]
pub struct Pulling {
    sight: Sight,
    repository: Option<String>,
}

/// The right to remove what a pull made. Pulls of others wait until it is dropped.
#[derive(Debug)]
#[must_use = "others may pull again when this is dropped"]
pub struct Claim {
    sight: Sight,
    repositories: Vec<String>,
}

// === impl HideGuard ===

impl HideGuard {
    pub(super) fn new(sight: &Sight, ticket: Ticket) -> Self {
        Self { sight: sight.clone(), ticket }
    }

    /// Hides what has only the names of this guard, wherever it came from.
    pub(super) fn hide_names(&self) {
        self.sight.change(|state| state.hiding.hide(self.ticket, None));
    }

    /// Hides from now on what has only the names of this guard, or no name at all, unless it was there before. A runtime
    /// gives an image its ID before its names and takes them away in some order too, so that one without a name may be
    /// the one to be hidden.
    pub fn hide_new<I: AsRef<str>>(&self, there_before: impl IntoIterator<Item = I>) {
        let there_before = there_before.into_iter().map(|id| bare_id(id.as_ref()).to_owned()).collect();
        self.sight.change(|state| state.hiding.hide(self.ticket, Some(there_before)));
    }

    /// Whether somebody else has brought one of the names, or the image with this ID, since the guard was taken. If so,
    /// nothing must be removed.
    pub fn was_brought(&self, image_id: Option<&str>) -> bool {
        self.sight.state().hiding.was_brought(self.ticket, image_id)
    }

    /// The right to remove what was pulled, as soon as nobody else pulls from the same repositories. `None`: somebody
    /// else has brought it, as [`HideGuard::was_brought`] says.
    pub async fn claim(&self, image_id: Option<&str>) -> Option<Claim> {
        let mut ended = self.sight.inner.ended.subscribe();
        loop {
            {
                let mut state = self.sight.state();
                if state.hiding.was_brought(self.ticket, image_id) {
                    return None;
                }
                if let Some(repositories) = state.hiding.claim(self.ticket) {
                    return Some(Claim { sight: self.sight.clone(), repositories });
                }
            }
            let _ = ended.changed().await;
        }
    }
}

impl Drop for HideGuard {
    fn drop(&mut self) {
        drop(self.sight.change(|state| state.hiding.end(self.ticket)));
    }
}

// === impl Pulling, Claim ===

impl Pulling {
    pub(super) fn new(sight: &Sight, repository: Option<String>) -> Self {
        Self { sight: sight.clone(), repository }
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if let Some(repository) = &self.repository {
            self.sight.state().hiding.pull_ended(repository);
            self.sight.inner.ended.send_replace(());
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sight.state().hiding.claim_ended(&self.repositories);
        self.sight.inner.ended.send_replace(());
    }
}
