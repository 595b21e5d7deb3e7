//! The containerd leases of pulls.
//!
//! A pull under a lease of ours keeps what it has downloaded when it is stopped, and its progress can be told. A lease
//! belongs to a *line* (an image and how it is unpacked): one that is left over, because its pull failed, was given up
//! or lost its crisp, is kept for a while, and the next pull on that line takes it and resumes. Nothing is revealed by
//! that: a registry lets nobody fetch on who was not let fetch from the start, and the image itself is not there
//! before a pull has succeeded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::OnceCell;

use crate::containerd::{Containerd, Error};
use crate::pull::key::Line;

/// The label that says to which line a lease belongs, and the one that says it to people.
const LINE_LABEL: &str = "crisp.dev/line";
const IMAGE_LABEL: &str = "crisp.dev/image";

/// How many letters of an image's name a label holds; containerd takes 4096 bytes for key and value.
const MAX_IMAGE_LABEL: usize = 1000;

/// More left-over leases than this are not kept; the oldest go first.
const MAX_KEPT: usize = 64;

/// A lease lives for a day. One that is resumed when it is older than this moves on to a new one.
const OLD: Duration = Duration::from_secs(60 * 60);

/// How long the answer is believed that the runtime has no leases.
const NO_LEASES_FOR: Duration = Duration::from_secs(60);

/// How long a pull waits for the leases of a crisp before this one to be found.
const ADOPTION_LIMIT: Duration = Duration::from_secs(2);

/// The leases of one runtime.
#[derive(Debug)]
pub(super) struct Leases {
    containerd: Containerd,
    /// Makes this process's leases different from those of the one before it.
    instance: String,
    keep: Duration,
    kept: Mutex<Vec<Kept>>,
    /// Whether the runtime has leases, and when that was found out.
    supported: Mutex<Option<(bool, Instant)>>,
    /// Done when the leases of a crisp before this one have been found.
    adopted: OnceCell<()>,
}

/// A lease in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// Its name at containerd.
    pub(super) id: String,
    /// When it was made.
    created: SystemTime,
}

#[derive(Debug)]
struct Kept {
    line: String,
    held: Held,
    /// `None`: for longer than time can be told.
    until: Option<Instant>,
}

// === impl Leases ===

impl Leases {
    pub(super) fn new(containerd: Containerd, instance: String, keep: Duration) -> Self {
        Self {
            containerd,
            instance,
            keep,
            kept: Mutex::default(),
            supported: Mutex::default(),
            adopted: OnceCell::new(),
        }
    }

    /// Whether the runtime has leases, if that is known.
    pub(super) fn known_support(&self) -> Option<bool> {
        match *self.supported.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((false, since)) if since.elapsed() >= NO_LEASES_FOR => None,
            known => known.map(|(supported, _)| supported),
        }
    }

    /// Whether the runtime has leases. `false` also while it does not answer.
    pub(super) async fn supported(&self) -> bool {
        if let Some(known) = self.known_support() {
            return known;
        }
        let supported = match self.containerd.supported().await {
            Ok(supported) => supported,
            Err(error) => {
                tracing::debug!(%error, "cannot tell whether the runtime has leases");
                return false;
            }
        };
        let before = {
            let mut known = self.supported.lock().unwrap_or_else(PoisonError::into_inner);
            known.replace((supported, Instant::now()))
        };
        if !supported && before.is_none() {
            tracing::info!(
                "the runtime has no containerd leases: background pulls are queued, but one that is under way does \
                 not give way to a kubelet's, and its progress is not known"
            );
        }
        supported
    }

    /// Finds the leases that a crisp before this one has left, once. They are kept as any that is left over.
    pub(super) async fn adopt(&self) -> Result<(), Error> {
        self.adopted
            .get_or_try_init(|| async {
                let found = self.containerd.list_leases().await?;
                let count = found.len();
                for mut lease in found {
                    let line = lease.labels.remove(LINE_LABEL).unwrap_or_default();
                    let created = lease.created_at.unwrap_or(SystemTime::UNIX_EPOCH);
                    self.keep_as(line, Held { id: lease.id, created });
                }
                if count > 0 {
                    tracing::info!(leases = count, kept_for = ?self.keep, "adopted what unfinished pulls left");
                }
                Ok(())
            })
            .await
            .copied()
    }

    /// The same for a pull, which does not queue for it: only one asks at a time, and each that fails takes its time.
    async fn adopt_in_time(&self) -> Result<(), Error> {
        let slow = |_| Error::Slow {
            socket: self.containerd.socket().to_owned(),
            call: "Leases.List",
            limit: ADOPTION_LIMIT,
        };
        tokio::time::timeout(ADOPTION_LIMIT, self.adopt()).await.map_err(slow)?
    }

    /// A lease for a pull on this line: one that was left over, or a new one. Tells whether there is something in it
    /// to resume.
    pub(super) async fn take(&self, line: &Line, flight: u64, image: &str) -> Result<(Held, bool), Error> {
        self.adopt_in_time().await?;
        let left_over = {
            let mut kept = self.kept();
            let line = line.to_hex();
            let at = kept.iter().position(|kept| kept.line == line);
            at.map(|at| kept.swap_remove(at).held)
        };
        let labels = || {
            // An image that is no reference may be of any length and any letters.
            let name = image.chars().take(MAX_IMAGE_LABEL).collect();
            BTreeMap::from([(LINE_LABEL.to_owned(), line.to_hex()), (IMAGE_LABEL.to_owned(), name)])
        };
        let id = format!("crisp-{}-{flight}", self.instance);
        match left_over {
            Some(held) if held.created.elapsed().is_ok_and(|age| age < OLD) => Ok((held, true)),
            // One that cannot be renewed is gone, or goes by itself; a new one serves as well.
            Some(held) if self.containerd.renew_lease(&held.id, &id).await.is_ok() => {
                Ok((Held { id, created: SystemTime::now() }, true))
            }
            _ => {
                self.containerd.create_lease(&id, &labels()).await?;
                Ok((Held { id, created: SystemTime::now() }, false))
            }
        }
    }

    /// Keeps a lease whose pull did not come to a good end.
    pub(super) fn keep(&self, line: &Line, held: Held) {
        self.keep_as(line.to_hex(), held);
    }

    /// Gives back a lease that is kept in vain, and what is too much.
    pub(super) async fn tidy(&self, held: &Held) {
        if matches!(self.containerd.kept(&held.id).await, Ok(0)) {
            let empty = {
                let mut kept = self.kept();
                let at = kept.iter().position(|kept| kept.held == *held);
                at.map(|at| kept.remove(at))
            };
            // Unless a pull has taken it meanwhile.
            if let Some(empty) = empty {
                self.release(&empty.held).await;
            }
        }
        self.sweep().await;
    }

    fn keep_as(&self, line: String, held: Held) {
        let until = Instant::now().checked_add(self.keep);
        self.kept().push(Kept { line, held, until });
    }

    /// Gives a lease back.
    pub(super) async fn release(&self, held: &Held) {
        if let Err(error) = self.containerd.delete_lease(&held.id, false).await {
            // It expires by itself.
            tracing::debug!(%error, lease = held.id, "cannot delete a lease");
        }
    }

    /// Deletes what was kept long enough.
    pub(super) async fn sweep(&self) {
        let now = Instant::now();
        let gone: Vec<Kept> = {
            let mut kept = self.kept();
            let surplus = kept.len().saturating_sub(MAX_KEPT);
            let mut gone: Vec<Kept> = kept.drain(..surplus).collect();
            gone.extend(kept.extract_if(.., |kept| kept.until.is_some_and(|until| until <= now)));
            gone
        };
        for kept in gone {
            self.release(&kept.held).await;
        }
    }

    /// How often [`Leases::sweep`] has something to do.
    pub(super) fn sweep_every(&self) -> Duration {
        (self.keep / 4).clamp(Duration::from_millis(250), Duration::from_secs(30))
    }

    /// The runtime's own API.
    pub(super) fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_for_ever_is_kept() {
        let leases = Leases::new(Containerd::new("/nowhere"), "i".into(), Duration::MAX);
        leases.keep_as("line".into(), Held { id: "a".into(), created: SystemTime::now() });
        leases.sweep().await;
        assert_eq!(leases.kept().len(), 1);
    }
}
