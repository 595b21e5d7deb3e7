//! What can go wrong, and what to do then.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::store::batch::{MAX_BATCH, MAX_VALUE};

/// Why a store could not be opened. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else has the file open.
    #[error(
        "{}: another crisp uses it; stop that one first, or give this one a state directory of its own",
        .path.display()
    )]
    Busy {
        /// The file, or the directory in which it is being made.
        path: PathBuf,
    },
    /// A newer crisp has written the file.
    #[error(
        "{path}: it has store format {found}, made by crisp {made_by}, and this is crisp {ours} which knows formats up \
         to {known}; install crisp {made_by} or newer again, or move the file away to begin with an empty store: \
         mv {path} {path}.format-{found}",
        path = .path.display(), ours = env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
        /// The newest format that this crisp knows.
        known: u32,
        /// The version of the crisp that made or migrated the file.
        made_by: String,
    },
    /// The file is damaged, or is no store of crisp at all.
    #[error(
        "{path}: it is damaged, or not a store of crisp: {cause}; crisp leaves it alone. Restore it from a backup, or \
         move it away to begin with an empty store: mv {path} {path}.damaged",
        path = .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The file is of an older format and could not be migrated.
    #[error(
        "{path}: cannot migrate it from store format {from} to {to}: {cause}; its content is as it was, and the crisp \
         that used it before still reads it",
        path = .path.display()
    )]
    Migration {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        from: u32,
        /// The format that this crisp uses.
        to: u32,
        /// What went wrong.
        cause: String,
    },
    /// The file system refused something.
    #[error("{}: cannot open or make the store there: {source}; {}", .path.display(), advice(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a batch was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// A value is larger than [`MAX_VALUE`]. Nothing was written.
    #[error("{key} has {len} bytes; at most {MAX_VALUE} can be stored")]
    ValueTooLarge {
        /// Table and key.
        key: String,
        /// The size of the value.
        len: usize,
    },
    /// All together is larger than [`MAX_BATCH`]. Nothing was written.
    #[error("the batch has {len} bytes; at most {MAX_BATCH} can be written at once")]
    BatchTooLarge {
        /// The size of the batch.
        len: usize,
    },
    /// A table or key is the store's own. Nothing was written.
    #[error("{0} belongs to the store itself; use another name")]
    Key(String),
    /// The disk refused, nothing was written, and the store goes on: the same commit may succeed later.
    #[error("not written: {0}; {advice}", advice = advice(.0))]
    NotWritten(Arc<io::Error>),
    /// The disk failed in a way that leaves open whether the batch was written; reading after the next successful
    /// commit or start tells. It is there wholly or not at all.
    #[error("it is not known whether it was written: {0}")]
    Unknown(Arc<str>),
    /// The store was closed before.
    #[error("the store is closed: crisp is shutting down")]
    Closed,
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store was closed before.
    #[error("the store is closed: crisp is shutting down")]
    Closed,
    /// The disk refused.
    #[error("cannot read the store: {0}")]
    Failed(String),
}

/// What to do about a refusal of the system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space there",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "it must be writable for the user that crisp runs as"
        }
        _ => "see the kernel's log if the disk is failing",
    }
}

// === impl OpenError ===

impl OpenError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, cause: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), cause: cause.to_string() }
    }

    /// What redb's errors mean for who opens a file.
    pub(super) fn of(path: &Path, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::Busy { path: path.to_owned() },
            // So redb says that a file is too short, or none of its own.
            redb::Error::Io(error) if is_content(error.kind()) => Self::damaged(path, error),
            redb::Error::Io(source) => Self::Io { path: path.to_owned(), source },
            other => Self::damaged(path, other),
        }
    }
}

fn is_content(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

// === impl CommitError ===

impl CommitError {
    /// The file could not be opened again for this commit, which was not tried.
    pub(super) fn not_opened(error: OpenError) -> Self {
        Self::NotWritten(Arc::new(match error {
            OpenError::Io { source, .. } => source,
            other => io::Error::other(other),
        }))
    }

    pub(super) fn not_written(error: redb::Error) -> Self {
        Self::NotWritten(Arc::new(match error {
            redb::Error::Io(error) => error,
            other => io::Error::other(other),
        }))
    }
}
