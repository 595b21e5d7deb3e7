//! The embedded runtime: a CRI v1 server inside this process, so that crisp can be tried and tested with nothing
//! installed. It is not made for production.
//!
//! Its image service is real: it pulls from OCI registries, checks every digest, keeps an OCI layout on disk and gives
//! the space back when images are removed. Its sandboxes and containers are records in memory that go through the
//! states of a runtime's; no process is ever started, and calls that need one answer UNIMPLEMENTED.
//!
//! It listens on a private unix socket, so the proxy reaches it by the same code path as containerd or CRI-O.
//!
//! A pull goes through `image_service` → `pull` → `registry` → `layout` → `store`; a container call through
//! `runtime_service` → `records` → `state` → `views`.

mod credentials;
mod digest;
mod image;
mod image_service;
mod layout;
mod manifest;
mod name;
mod pull;
mod records;
mod registry;
mod runtime_service;
mod state;
mod stats;
mod store;
mod views;

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use k8s_cri::v1::image_service_server::ImageServiceServer;
use k8s_cri::v1::runtime_service_server::RuntimeServiceServer;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::config::EMBEDDED_SOCKET;
use image_service::Images;
use layout::Layout;
use pull::Puller;
use records::Records;
use runtime_service::Runtime;
use store::Store;

/// Largest message taken or sent; the kubelet's own limit is 16 MiB.
const MAX_MESSAGE: usize = 64 << 20;

/// A running embedded runtime. Dropped, it stops in the background; [`Embedded::shutdown`] waits until it did.
#[derive(Debug)]
pub struct Embedded {
    endpoint: PathBuf,
    stop: CancellationToken,
    server: Option<JoinHandle<Result<(), tonic::transport::Error>>>,
}

/// Why the embedded runtime could not start, in all words: it has no source that would repeat them.
#[derive(Debug, thiserror::Error)]
#[error("embedded runtime: {0}")]
pub struct Error(Problem);

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    #[error(transparent)]
    Layout(#[from] layout::LayoutError),
    #[error("HTTP client: {0}")]
    Http(#[from] reqwest::Error),
    #[error("interrupted")]
    Interrupted,
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

/// Starts the runtime on the tokio runtime it is called in, with its socket and images under `dir`.
///
/// The images of an earlier run are found again; what it left half-written is removed.
pub async fn start(dir: &Path) -> Result<Embedded, Error> {
    let opening = dir.to_owned();
    let opened = tokio::task::spawn_blocking(move || open(&opening)).await;
    let (lock, store) = opened.map_err(|_| Problem::Interrupted)??;
    let store = Arc::new(store);
    let endpoint = dir.join(EMBEDDED_SOCKET);
    let listener = listen(&endpoint)?;

    let stop = CancellationToken::new();
    let puller = Puller::new(Arc::clone(&store)).map_err(Problem::from)?;
    let images = Images { store: Arc::clone(&store), puller, stop: stop.clone() };
    let runtime = Runtime { records: Arc::new(Records::new()), images: store, stop: stop.clone() };
    let images = ImageServiceServer::new(images)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let runtime = RuntimeServiceServer::new(runtime)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let stopped = stop.clone().cancelled_owned();
    let socket = endpoint.clone();
    let server = tokio::spawn(async move {
        // A burst of cancelled calls is not an attack here: the proxy passes on what the kubelet cancels.
        let router = Server::builder()
            .http2_max_pending_accept_reset_streams(Some(10_000))
            .add_service(runtime)
            .add_service(images);
        let connections = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(connection, _)| connection);
            if accepted.is_err() {
                // Mostly a lack of descriptors, which trying at once would not end.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Some((accepted, listener))
        });
        let served = router.serve_with_incoming_shutdown(connections, stopped).await;
        // Nobody else may open the directory before the last call is done and the socket is gone.
        let _ = std::fs::remove_file(socket);
        drop(lock);
        served
    });
    Ok(Embedded { endpoint, stop, server: Some(server) })
}

// === impl Embedded ===

impl Embedded {
    /// The socket to connect to.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// Refuses new calls, ends pulls and event streams, and returns when the last call is answered.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take()
            && let Ok(Err(error)) = server.await
        {
            tracing::warn!(%error, "embedded runtime ended badly");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Takes the directory for this process alone and opens the images in it.
fn open(dir: &Path) -> Result<(File, Store), Problem> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Problem::Io { path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed(dir))?;
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(failed(&path))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|error| {
        match error {
            rustix::io::Errno::WOULDBLOCK => Problem::InUse(dir.to_owned()),
            error => failed(&path)(error.into()),
        }
    })?;
    let store = Store::open(Layout::open(&dir.join("images"))?)?;
    Ok((lock, store))
}

/// Listens on a socket that only this user may open. The lock is ours, so a file there is a dead process's.
fn listen(path: &Path) -> Result<UnixListener, Problem> {
    let failed = |source| Problem::Io { path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Between these two lines the directory's mode alone keeps others out.
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
