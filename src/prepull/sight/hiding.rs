//! Names that are hidden, what others brought meanwhile, and who is pulling or removing now.

use std::collections::{HashMap, HashSet};

use super::{Name, bare_id};
use crate::cri::view;

/// So many names and IDs that others brought are remembered while anything is being watched; then the oldest go.
pub const MAX_BROUGHT: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Hiding {
    watched: Vec<Watched>,
    /// Numbers what happens, so that a guard knows what came after it.
    now: u64,
    /// Names and bare IDs that others brought, and when. Empty when nothing is watched.
    pub(super) brought: HashMap<String, u64>,
    /// Repositories from which others pull now, and how many do.
    pub(super) pulls: HashMap<String, usize>,
    /// Repositories in which something is being removed now, and by how many.
    pub(super) claims: HashMap<String, usize>,
}

/// A guard, by the moment when it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// What one guard watches.
#[derive(Debug)]
pub(super) struct Watched {
    ticket: Ticket,
    names: HashSet<String>,
    /// Their repositories, and whether every digest in one may belong to a name, because that name is a tag.
    repositories: HashMap<String, bool>,
    hides: Hides,
}

#[derive(Debug)]
enum Hides {
    Nothing,
    Names,
    /// Also images without a name, but none of those that were there before.
    New(HashSet<String>),
}

// === impl Hiding ===

impl Hiding {
    pub(super) fn hides_anything(&self) -> bool {
        self.watched.iter().any(Watched::hides)
    }

    pub(super) fn watch(&mut self, names: Vec<Name>) -> Ticket {
        self.now += 1;
        let ticket = Ticket(self.now);
        let mut repositories = HashMap::new();
        for name in &names {
            if let Some(repository) = &name.repository {
                *repositories.entry(repository.clone()).or_default() |= !name.is_digest();
            }
        }
        let names = names.into_iter().map(|name| name.key).collect();
        self.watched.push(Watched { ticket, names, repositories, hides: Hides::Nothing });
        ticket
    }

    pub(super) fn hide(&mut self, ticket: Ticket, there_before: Option<HashSet<String>>) {
        if let Some(watched) = self.watched.iter_mut().find(|watched| watched.ticket == ticket) {
            watched.hides = there_before.map_or(Hides::Names, Hides::New);
        }
    }

    /// Ends a guard, and gives back what is not needed any more.
    pub(super) fn end(&mut self, ticket: Ticket) -> (Vec<Watched>, HashMap<String, u64>) {
        let ended = self.watched.extract_if(.., |watched| watched.ticket == ticket).collect();
        let forgotten =
            if self.watched.is_empty() { std::mem::take(&mut self.brought) } else { HashMap::new() };
        (ended, forgotten)
    }

    pub(super) fn brought(&mut self, reference: &str, image_id: Option<&str>) {
        if self.watched.is_empty() {
            return;
        }
        self.now += 1;
        // What a runtime gives back as ID may be a name with a digest.
        let id = image_id.map(|id| if id.contains('@') { Name::of(id).key } else { bare_id(id).to_owned() });
        for what in id.into_iter().filter(|id| !id.is_empty()).chain([Name::of(reference).key]) {
            if self.brought.len() >= MAX_BROUGHT && !self.brought.contains_key(&what) {
                let oldest = self.brought.iter().min_by_key(|(_, when)| **when).map(|(what, _)| what.clone());
                oldest.and_then(|oldest| self.brought.remove(&oldest));
            }
            self.brought.insert(what, self.now);
        }
    }

    pub(super) fn was_brought(&self, ticket: Ticket, image_id: Option<&str>) -> bool {
        let Some(watched) = self.watched.iter().find(|watched| watched.ticket == ticket) else {
            return false;
        };
        image_id.is_some_and(|id| self.brought_since(ticket, bare_id(id)))
            || watched.names.iter().any(|name| self.brought_since(ticket, name))
    }

    /// Whether every name of the image is hidden by some guard, and none of them has a reason to show it.
    pub(super) fn hides(&self, image: &view::Image) -> bool {
        let id = bare_id(&image.id);
        let named = !image.repo_tags.is_empty() || !image.repo_digests.is_empty();
        let may_hide = |watched: &&Watched| {
            !self.brought_since(watched.ticket, id)
                && match &watched.hides {
                    Hides::Nothing => false,
                    Hides::Names => named,
                    Hides::New(there_before) => !there_before.contains(id),
                }
        };
        let mut guards = self.watched.iter().filter(may_hide).peekable();
        if guards.peek().is_none() {
            return false;
        }
        let hidden = |name: &String, of: fn(&Watched, &str) -> bool| {
            guards.clone().any(|watched| of(watched, name) && !self.brought_since(watched.ticket, name))
        };
        image.repo_tags.iter().all(|tag| hidden(tag, Watched::has_tag))
            && image.repo_digests.iter().all(|digest| hidden(digest, Watched::has_digest))
    }

    /// Somebody else wants to pull from there; `false`: not now.
    pub(super) fn begin(&mut self, repository: Option<&str>) -> bool {
        let Some(repository) = repository else { return true };
        if self.claims.contains_key(repository) {
            return false;
        }
        *self.pulls.entry(repository.to_owned()).or_default() += 1;
        true
    }

    pub(super) fn pull_ended(&mut self, repository: &str) {
        leave(&mut self.pulls, repository);
    }

    /// The repositories of a guard, now claimed. `None`: somebody pulls from one of them.
    pub(super) fn claim(&mut self, ticket: Ticket) -> Option<Vec<String>> {
        let watched = self.watched.iter().find(|watched| watched.ticket == ticket);
        let repositories: Vec<_> =
            watched.into_iter().flat_map(|watched| watched.repositories.keys()).cloned().collect();
        if repositories.iter().any(|repository| self.pulls.contains_key(repository)) {
            return None;
        }
        for repository in &repositories {
            *self.claims.entry(repository.clone()).or_default() += 1;
        }
        Some(repositories)
    }

    pub(super) fn claim_ended(&mut self, repositories: &[String]) {
        repositories.iter().for_each(|repository| leave(&mut self.claims, repository));
    }

    fn brought_since(&self, ticket: Ticket, what: &str) -> bool {
        self.brought.get(what).is_some_and(|when| *when > ticket.0)
    }
}

fn leave(counts: &mut HashMap<String, usize>, repository: &str) {
    if let Some(count) = counts.get_mut(repository) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(repository);
        }
    }
}

// === impl Watched ===

impl Watched {
    fn hides(&self) -> bool {
        !matches!(self.hides, Hides::Nothing)
    }

    fn has_tag(&self, tag: &str) -> bool {
        self.names.contains(tag)
    }

    fn has_digest(&self, digest: &str) -> bool {
        let any = digest.split_once('@').and_then(|(repository, _)| self.repositories.get(repository));
        any == Some(&true) || self.names.contains(digest)
    }
}
