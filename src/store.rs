//! What must outlive crisp: a durable store of small values, on redb.
//!
//! ```text
//! commit(Batch).await ─▶ bounded channel ─▶ writer thread ─▶ one transaction for all that wait ─▶ fsync ─▶ answers
//! load, meta ────────────────────────────────────────────▶ read, blocking: for start-up
//! ```
//!
//! # What holds
//!
//! - A batch that was answered with `Ok` survives `kill -9` and the loss of power. A batch is there wholly or not at
//!   all, and batches come to be in the order in which their commits were begun.
//! - [`CommitError::NotWritten`] is definite: nothing of the batch is there, nor will be. The store goes on, and the
//!   same commit may succeed later. Only [`CommitError::Unknown`] leaves open which of the two it was.
//! - A file that is damaged, or that a newer crisp made, is refused with instructions. Nothing deletes or replaces a
//!   file; what to do with it is the operator's choice.
//! - Opening verifies every checksum of the file, so what [`Store::load`] gives is what was put. One thing cannot be
//!   told apart: after a crash, damage to the last transaction looks like one that was not finished, and is undone.
//!
//! # Limits
//!
//! A value has at most [`MAX_VALUE`] bytes and a batch [`MAX_BATCH`]. A file has one user at a time. All of a table is
//! read at once: this is for thousands of values of a kilobyte, not for a database.

mod batch;
mod engine;
mod error;
mod file;
mod format;
pub mod private;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::backends::InMemoryBackend;
use tokio::sync::{mpsc, oneshot};

pub use self::batch::{Batch, MAX_BATCH, MAX_VALUE};
use self::engine::{Engine, Options};
pub use self::error::{CommitError, OpenError, ReadError};
pub use self::file::FILE_NAME;
use self::writer::{Request, Writer};

/// A handle to an open store, cheap to clone.
///
/// The file is let go when the store is [closed](Store::close) or the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Store(Arc<Handle>);

/// What all handles share. The order of the fields matters: the writer ends when the channel does, and dropping
/// `writer` waits for that.
#[derive(Debug)]
struct Handle {
    requests: mpsc::Sender<Request>,
    /// Who is about to send. A full channel lets those who wait in by no particular order; this keeps theirs.
    turn: tokio::sync::Mutex<()>,
    engine: Arc<Mutex<Engine>>,
    #[expect(dead_code, reason = "held for what its drop does")]
    writer: Writer,
}

// === impl Store ===

impl Store {
    /// Opens the store in `directory`, or makes an empty one: file [`FILE_NAME`] with mode 0600, in a directory with
    /// mode 0700 if that has to be made too.
    ///
    /// Blocks while the whole file is verified: milliseconds for what a queue holds.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::start(file::open(directory.as_ref(), Options::default())?)
    }

    /// An empty store that is gone with its last handle, and is otherwise the same.
    pub fn in_memory() -> Result<Self, OpenError> {
        let mut backend = Some(InMemoryBackend::new());
        let opener = move |builder: &redb::Builder| match backend.take() {
            Some(backend) => builder.create_with_backend(backend),
            None => Err(redb::StorageError::DatabaseClosed.into()),
        };
        Self::start(Engine::create(PathBuf::from("memory"), Box::new(opener), Options::default())?)
    }

    /// Starts the writer of an open store.
    fn start(engine: Engine) -> Result<Self, OpenError> {
        let name = engine.name().to_owned();
        let engine = Arc::new(Mutex::new(engine));
        let (requests, writer) =
            Writer::spawn(engine.clone()).map_err(|source| OpenError::Io { path: name, source })?;
        Ok(Self(Arc::new(Handle { requests, turn: tokio::sync::Mutex::new(()), engine, writer })))
    }

    /// Writes a batch, and answers when it is on the disk.
    ///
    /// Commits that wait at the same time share one transaction and its fsync; each has its own answer. Who drops
    /// this future no longer hears whether the batch was written.
    pub async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        batch.check()?;
        if batch.is_empty() {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        self.send(Request::Commit { batch, answer }).await.map_err(|_| CommitError::Closed)?;
        answered.await.unwrap_or_else(|_| Err(CommitError::Unknown("the writer of the store failed".into())))
    }

    /// Everything in a table, by key. Blocks: for start-up. A table that nobody has put anything into is empty.
    pub fn load(&self, table: &'static str) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
        self.engine().load(table)
    }

    /// Shows everything in a table, by key, without holding all of it. Blocks: for start-up.
    pub fn each(&self, table: &'static str, show: impl FnMut(u64, &[u8])) -> Result<(), ReadError> {
        self.engine().each(table, show)
    }

    /// The value of a key of the meta table. Blocks: for start-up.
    pub fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, ReadError> {
        self.engine().meta(key)
    }

    /// Writes what was sent before, and lets the file go: when this returns, another process can open it. All handles
    /// answer [`CommitError::Closed`] and [`ReadError::Closed`] from then on.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        // Either may fail when somebody else has closed the store before; then there is nothing to wait for.
        if self.send(Request::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// Sends a request after all that were begun before it.
    async fn send(&self, request: Request) -> Result<(), mpsc::error::SendError<Request>> {
        let _turn = self.0.turn.lock().await;
        self.0.requests.send(request).await
    }

    /// Never held across an await; the longest that anybody holds it is one transaction.
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.0.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
