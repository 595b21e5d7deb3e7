//! Why a call to containerd failed.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Status};

/// Why a call to containerd failed. Whoever asks decides whether that matters: a pull does without a lease or without
/// progress.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nobody answers, or the connection was lost.
    #[error("containerd at unix://{} cannot be reached: {reason}; is it running?", .socket.display())]
    Unavailable {
        /// Where it should be.
        socket: PathBuf,
        /// What came instead.
        reason: String,
    },
    /// No answer in time.
    #[error("containerd at unix://{} did not answer {call} within {limit:?}; is it overloaded?", .socket.display())]
    Slow {
        /// Where it is.
        socket: PathBuf,
        /// What it was asked.
        call: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// What the call is about is not there.
    #[error("{call}: containerd has no {what}")]
    NotFound {
        /// What it was asked.
        call: &'static str,
        /// What is not there.
        what: String,
    },
    /// containerd answered with an error.
    #[error("containerd refused {call}: {code:?}: {message}")]
    Refused {
        /// What it was asked.
        call: &'static str,
        /// Its code.
        code: Code,
        /// Its words.
        message: String,
    },
    /// The call cannot be made as asked.
    #[error("{0}")]
    Invalid(String),
}

// === impl Error ===

impl Error {
    /// Whether what the call was about is not there: a lease that was deleted or has expired.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    pub(super) fn of_status(call: &'static str, socket: PathBuf, status: &Status) -> Self {
        // A status that containerd sent has no source. One that tonic made of a lost connection has, whatever its code.
        if let Some(mut cause) = status.source() {
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            return Self::Unavailable { socket, reason: cause.to_string() };
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::Unavailable => Self::Unavailable { socket, reason: message },
            Code::NotFound => Self::NotFound { call, what: message },
            code => Self::Refused { call, code, message },
        }
    }
}
