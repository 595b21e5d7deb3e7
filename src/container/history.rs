//! Which containers were made again, and why: the latest of them, on disk.
//!
//! Nothing is opened or started on a node where nothing restarts. If the store cannot be opened, the history is in memory
//! only; that is said once, and costs nobody anything else.

mod kept;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use self::kept::Kept;
use crate::store::{Batch, OpenError, Store};
use crate::time::Time;

/// The directory of the store in the state directory.
pub const DIRECTORY: &str = "containers";

/// The store's table.
const RESTARTS: &str = "restarts";

/// How many commands may wait.
const COMMANDS: usize = 64;

/// So many entries that cannot be read are removed when the store is opened.
const UNREADABLE: usize = 10_000;

/// How often, and how many times, a store is tried that another process is just giving up.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES: usize = 100;

/// One restart. Its JSON form is part of the admin API, version 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Restart {
    /// When the new container was created.
    pub time: Time,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// The kubelet's number of the new container.
    pub attempt: u32,
    /// The cause, in one word.
    pub cause: String,
    /// The cause, in words.
    pub words: String,
    /// How the previous container ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What differs between the two, as `path: old → new`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// The new container's ID.
    pub id: String,
    /// The previous container's ID, if it was still there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub previous: String,
}

/// Which restarts are wanted: those to which everything applies that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
    /// The container's name.
    pub container: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restarts {
    /// The restarts, the latest last.
    pub restarts: Vec<Restart>,
    /// Why they are not on disk, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_in_memory: Option<String>,
}

/// The history, for those who use it. Clones are the same one.
#[derive(Debug, Clone)]
pub struct History {
    commands: mpsc::Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Add(Box<Restart>),
    List(Wanted, oneshot::Sender<Restarts>),
    Close(oneshot::Sender<()>),
}

/// The task behind the handles.
#[derive(Debug)]
struct Keeper {
    dir: PathBuf,
    keep: usize,
    open: Option<Open>,
}

/// The history while it is in use.
#[derive(Debug)]
struct Open {
    kept: Kept,
    store: Option<Store>,
    problem: Option<String>,
}

/// What is in a store.
struct Found {
    store: Store,
    restarts: Vec<(u64, Restart)>,
    /// The numbers of entries that are no restarts.
    unreadable: Vec<u64>,
}

// === impl History ===

impl History {
    /// The history in a state directory. Must be called within a runtime; nothing is opened yet.
    pub fn start(state_dir: &Path, keep: usize) -> Self {
        let (commands, mut received) = mpsc::channel(COMMANDS);
        let mut keeper = Keeper { dir: state_dir.join(DIRECTORY), keep, open: None };
        tokio::spawn(async move {
            while let Some(command) = received.recv().await {
                match command {
                    Command::Add(restart) => keeper.add(*restart).await,
                    Command::List(wanted, answer) => _ = answer.send(keeper.list(&wanted).await),
                    Command::Close(done) => {
                        keeper.close().await;
                        received.close();
                        let _ = done.send(());
                    }
                }
            }
        });
        Self { commands }
    }

    /// Writes a restart down. Answers when it was taken, not when it is on disk.
    pub async fn add(&self, restart: Restart) {
        // Nobody is there to hear of it when crisp shuts down.
        let _ = self.commands.send(Command::Add(Box::new(restart))).await;
    }

    /// The restarts that are wanted; nothing when crisp shuts down.
    pub async fn list(&self, wanted: Wanted) -> Option<Restarts> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::List(wanted, answer)).await.ok()?;
        answered.await.ok()
    }

    /// Gives the store up, for another process.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

// === impl Wanted ===

impl Wanted {
    /// Whether a restart is wanted.
    pub fn takes(&self, restart: &Restart) -> bool {
        let fits =
            |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        fits(&self.namespace, &restart.namespace)
            && fits(&self.pod, &restart.pod)
            && fits(&self.container, &restart.container)
    }
}

// === impl Keeper ===

impl Keeper {
    async fn add(&mut self, restart: Restart) {
        let open = self.open().await;
        let data = serde_json::to_vec(&restart);
        let (id, dropped) = open.kept.add(restart);
        let (Some(store), Ok(data)) = (&open.store, data) else { return };
        let mut batch = Batch::new();
        batch.put(RESTARTS, id, data);
        for old in dropped {
            batch.remove(RESTARTS, old);
        }
        if let Err(error) = store.commit(batch).await {
            let first = open.problem.replace(error.to_string()).is_none();
            if first {
                tracing::warn!(%error, "a restart is not written down; `crisp restarts` shows it until crisp ends");
            }
        } else {
            open.problem = None;
        }
    }

    async fn list(&mut self, wanted: &Wanted) -> Restarts {
        // Where nothing was ever written down, nothing is made for a question.
        if self.open.is_none() && !self.dir.exists() {
            return Restarts::default();
        }
        let open = self.open().await;
        let restarts = open.kept.iter().filter(|restart| wanted.takes(restart)).cloned().collect();
        Restarts { restarts, only_in_memory: open.problem.clone() }
    }

    async fn open(&mut self) -> &mut Open {
        let open = match self.open.take() {
            Some(open) => open,
            None => match open_store(&self.dir).await {
                Ok(Found { store, restarts, unreadable }) => {
                    let mut kept = Kept::new(self.keep);
                    restarts.into_iter().for_each(|(id, restart)| kept.put(id, restart));
                    forget(&store, unreadable).await;
                    Open { kept, store: Some(store), problem: None }
                }
                Err(error) => {
                    tracing::warn!(%error, "restarts of containers are remembered in memory only");
                    Open { kept: Kept::new(self.keep), store: None, problem: Some(error) }
                }
            },
        };
        self.open.insert(open)
    }

    async fn close(&mut self) {
        if let Some(store) = self.open.as_mut().and_then(|open| open.store.take()) {
            store.close().await;
        }
    }
}

/// Removes entries that nobody can read: none would ever take their place.
async fn forget(store: &Store, unreadable: Vec<u64>) {
    if unreadable.is_empty() {
        return;
    }
    let mut batch = Batch::new();
    for id in &unreadable {
        batch.remove(RESTARTS, *id);
    }
    let count = unreadable.len();
    match store.commit(batch).await {
        Ok(()) => tracing::warn!(count, "restarts that cannot be read are removed from the history"),
        // They are tried again when the store is opened next.
        Err(error) => tracing::debug!(%error, count, "restarts that cannot be read stay in the history"),
    }
}

/// Opens the store and reads all of it. A process that is just giving it up is waited for.
async fn open_store(dir: &Path) -> Result<Found, String> {
    for tries in 0.. {
        let dir = dir.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let store = Store::open(&dir)?;
            let (mut found, mut unreadable) = (Vec::new(), Vec::new());
            let read = store.each(RESTARTS, |id, data| match serde_json::from_slice(data) {
                Ok(restart) => found.push((id, restart)),
                Err(_) if unreadable.len() < UNREADABLE => unreadable.push(id),
                Err(_) => {}
            });
            Ok(read.map(|()| Found { store, restarts: found, unreadable }))
        });
        match opened.await.map_err(|error| error.to_string())? {
            Err(OpenError::Busy { .. }) if tries < RETRIES => tokio::time::sleep(RETRY).await,
            opened => {
                return opened
                    .map_err(|error: OpenError| error.to_string())
                    .and_then(|read| read.map_err(|error| error.to_string()));
            }
        }
    }
    Err("the store stays busy".into())
}

#[cfg(test)]
mod tests;
