//! Asks a running crisp over its admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// How long crisp has to answer; it gives the runtime one second itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or this user may not ask.
    #[error("no crisp answers at unix://{}: {source}; is `crisp serve` running, and are you root?", path.display())]
    Unreachable {
        /// The admin socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something answered that is not what was asked for.
    #[error("the answer of unix://{} is of no use: {reason}", path.display())]
    Answer {
        /// The admin socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Gets a JSON document.
pub async fn get(socket: &Path, path: &str) -> Result<Bytes, ClientError> {
    tokio::time::timeout(PATIENCE, ask(socket, path)).await.unwrap_or_else(|_| {
        let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer within 5 s");
        Err(ClientError::Unreachable { path: socket.to_owned(), source })
    })
}

async fn ask(socket: &Path, path: &str) -> Result<Bytes, ClientError> {
    let answer = |reason: String| ClientError::Answer { path: socket.to_owned(), reason };
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| ClientError::Unreachable { path: socket.to_owned(), source })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| answer(e.to_string()))?;
    tokio::spawn(connection);
    let request = hyper::Request::get(path)
        .header("host", "crisp")
        .body(Empty::<Bytes>::new())
        .map_err(|e| answer(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(|e| answer(e.to_string()))?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| answer(e.to_string()))?;
    if !status.is_success() {
        return Err(answer(format!("HTTP {status}")));
    }
    Ok(body.to_bytes())
}
