//! How registries fail, and their own words for it.

use http::StatusCode;
use reqwest::Response;
use serde::Deserialize;

use super::{MAX_ANSWER, read};
use crate::runtime::digest::Sha256;

/// Why a registry did not give what was asked.
#[derive(Debug, thiserror::Error)]
pub(in crate::runtime) enum RegistryError {
    /// It has no such manifest or blob.
    #[error("{what}: not found")]
    NotFound {
        /// Its path.
        what: String,
    },
    /// It does not let us.
    #[error("{what}: pull access denied, repository does not exist or may require authorization: {message}")]
    Denied {
        /// The path asked for.
        what: String,
        /// The server's words.
        message: String,
    },
    /// It answered with another error.
    #[error("{what}: unexpected status {status}: {message}")]
    Status {
        /// The path asked for.
        what: String,
        /// HTTP status.
        status: StatusCode,
        /// The server's words.
        message: String,
    },
    /// It sent more than is reasonable.
    #[error("{what}: more than {max} bytes")]
    TooLarge {
        /// The path asked for.
        what: String,
        /// The limit.
        max: u64,
    },
    /// A manifest's digest is not the one asked for or promised.
    #[error("{what}: content has digest {found}, not {promised}")]
    Digest {
        /// The path asked for.
        what: String,
        /// The digest of what came.
        found: Sha256,
        /// The digest that it should have.
        promised: String,
    },
    /// It asks for authentication in a way we do not understand.
    #[error("{what}: cannot authenticate: {reason}")]
    Authentication {
        /// The path asked for.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The connection failed.
    #[error("{what}: {reason}")]
    Transport {
        /// The path asked for.
        what: String,
        /// The chain of causes, without URLs: a redirect's URL may hold a signature.
        reason: String,
    },
}

#[derive(Deserialize)]
struct ErrorAnswer {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The server's own words, short and printable.
pub(super) async fn message(response: Response, what: &str) -> String {
    let status = response.status();
    let Ok(body) = read(response, MAX_ANSWER, what).await else { return status.to_string() };
    let text = match serde_json::from_slice::<ErrorAnswer>(&body).map(|answer| answer.errors) {
        Ok(errors) if !errors.is_empty() => {
            let words = errors.iter().map(|error| format!("{}: {}", error.code, error.message));
            words.collect::<Vec<_>>().join("; ")
        }
        _ => String::from_utf8_lossy(&body).into_owned(),
    };
    let text: String = text.chars().filter(|c| !c.is_control()).take(512).collect();
    if text.trim().is_empty() { status.to_string() } else { text }
}

/// A failed connection, with the chain of its causes.
pub(super) fn transport(what: &str, error: reqwest::Error) -> RegistryError {
    let error = error.without_url();
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    RegistryError::Transport { what: what.to_owned(), reason }
}
