//! Asks a running crisp over its admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// How long crisp has to answer a question; it gives the runtime one second itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it has to do something: what it says it has done is on disk, and disks can be busy.
pub const PATIENCE_TO_DO: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or this user may not ask.
    #[error("no crisp answers at unix://{}: {error}; is `crisp serve` running, and are you root?", path.display())]
    Unreachable {
        /// The admin socket.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something answered that is not what was asked for.
    #[error("the answer of unix://{} is of no use: {reason}", path.display())]
    Answer {
        /// The admin socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// crisp says why it does not do what it was asked.
    #[error("{}", refused.error)]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its words.
        refused: Refused,
    },
}

/// The JSON form of every error of the admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// What is wrong, and what to do.
    pub error: String,
    /// Everything that is wrong with what was sent, each with the path of its field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<String>,
}

/// Gets a document.
pub async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    send(socket, Method::GET, path, Bytes::new(), PATIENCE).await
}

/// Has something done, and gets what came of it.
pub async fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    body: impl Into<Bytes>,
    patience: Duration,
) -> Result<T, ClientError> {
    send(socket, Method::POST, path, body.into(), patience).await
}

/// Has something removed, and gets what came of it.
pub async fn delete<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    send(socket, Method::DELETE, path, Bytes::new(), PATIENCE_TO_DO).await
}

/// A value as a query may have it.
pub fn escaped(value: &str) -> String {
    form_urlencoded::byte_serialize(value.as_bytes()).collect()
}

async fn send<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
    patience: Duration,
) -> Result<T, ClientError> {
    let answer =
        tokio::time::timeout(patience, ask(socket, method, path, body)).await.unwrap_or_else(|_| {
            let words = format!("no answer within {} s", patience.as_secs());
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, words);
            Err(ClientError::Unreachable { path: socket.to_owned(), error })
        })?;
    serde_json::from_slice(&answer)
        .map_err(|e| ClientError::Answer { path: socket.to_owned(), reason: e.to_string() })
}

async fn ask(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
    let answer = |reason: String| ClientError::Answer { path: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| ClientError::Unreachable { path: socket.to_owned(), error })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| answer(e.to_string()))?;
    tokio::spawn(connection);
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "crisp")
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(|e| answer(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(|e| answer(e.to_string()))?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| answer(e.to_string()))?;
    let body = body.to_bytes();
    if !status.is_success() {
        return Err(match serde_json::from_slice(&body) {
            Ok(refused) => ClientError::Refused { status, refused },
            Err(_) => answer(format!("HTTP {status}")),
        });
    }
    Ok(body)
}
