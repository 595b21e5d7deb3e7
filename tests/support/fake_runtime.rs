//! A container runtime made of a script. It speaks raw HTTP/2, so that a test sees every byte and can break off
//! at every point; it knows nothing of the CRI.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response, request};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::bytes_on_the_wire::{Reply, receive, send_all};

/// The runtime. Dropping it closes its socket and every connection.
#[derive(Debug)]
pub(crate) struct FakeRuntime {
    state: Arc<State>,
    accepting: tokio::task::JoinHandle<()>,
}

/// One call, in the hands of the script.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) head: request::Parts,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse<Bytes>,
    /// The connection it came on.
    pub(crate) connection: Arc<Connection>,
}

/// A request as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) head: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// A connection to break.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: usize,
    faults: mpsc::UnboundedSender<Fault>,
}

#[derive(Debug)]
enum Fault {
    Cut,
    GoAway,
    Abrupt(Reason),
}

type Script = Box<dyn Fn(Incoming) -> BoxFuture<'static, ()> + Send + Sync>;

struct State {
    script: Script,
    /// How many calls a connection may have at once.
    limit: Option<u32>,
    connections: Mutex<HashMap<usize, Arc<Connection>>>,
    accepted: AtomicUsize,
    calls: AtomicUsize,
    /// Calls whose script has not ended.
    running: AtomicUsize,
}

// === impl FakeRuntime ===

impl FakeRuntime {
    /// Listens, and runs `script` for each call.
    pub(crate) fn start<F>(socket: &Path, script: impl Fn(Incoming) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::limited(socket, None, script)
    }

    /// The same, with a limit to the calls that a connection may have at once.
    pub(crate) fn limited<F>(
        socket: &Path,
        limit: Option<u32>,
        script: impl Fn(Incoming) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let state = Arc::new(State {
            script: Box::new(move |incoming| script(incoming).boxed()),
            limit,
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn({
            let state = state.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let id = state.accepted.fetch_add(1, Ordering::SeqCst);
                    let (faults, from_test) = mpsc::unbounded_channel();
                    let connection = Arc::new(Connection { id, faults });
                    state.connections.lock().unwrap().insert(id, connection.clone());
                    let state = state.clone();
                    tokio::spawn(async move {
                        serve(stream, &connection, from_test, &state).await;
                        state.connections.lock().unwrap().remove(&connection.id);
                    });
                }
            }
        });
        Self { state, accepting }
    }

    /// Answers every call with the same reply.
    pub(crate) fn answering(socket: &Path, reply: Reply) -> Self {
        Self::start(socket, move |incoming| {
            let reply = reply.clone();
            async move {
                incoming.answer(&reply).await;
            }
        })
    }

    /// Connections open now.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.state.connections.lock().unwrap().values().cloned().collect()
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Calls that came so far.
    pub(crate) fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// Calls whose script still runs.
    pub(crate) fn running(&self) -> usize {
        self.state.running.load(Ordering::SeqCst)
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        self.accepting.abort();
        self.connections().iter().for_each(|connection| connection.cut());
    }
}

async fn serve(
    stream: UnixStream,
    connection: &Arc<Connection>,
    mut faults: mpsc::UnboundedReceiver<Fault>,
    state: &Arc<State>,
) {
    // The generosity of grpc-go's server: no limits that a test did not ask for.
    let mut settings = h2::server::Builder::new();
    settings
        .initial_connection_window_size(1 << 30)
        .max_header_list_size(16 << 20)
        .max_concurrent_reset_streams(1 << 20)
        .max_pending_accept_reset_streams(1 << 20)
        .max_local_error_reset_streams(None)
        .data_frame_budget(1 << 30);
    if let Some(limit) = state.limit {
        settings.max_concurrent_streams(limit);
    }
    let Ok(mut h2) = settings.handshake(stream).await else { return };
    loop {
        tokio::select! {
            biased; // what the script has sent goes out before the connection breaks
            accepted = h2.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let (head, body) = request.into_parts();
                state.calls.fetch_add(1, Ordering::SeqCst);
                state.running.fetch_add(1, Ordering::SeqCst);
                let script =
                    (state.script)(Incoming { head, body, respond, connection: connection.clone() });
                let state = state.clone();
                tokio::spawn(async move {
                    let _running = Running(state);
                    script.await;
                });
            }
            fault = faults.recv() => match fault {
                Some(Fault::Cut) | None => return,
                Some(Fault::GoAway) => h2.graceful_shutdown(),
                Some(Fault::Abrupt(reason)) => h2.abrupt_shutdown(reason),
            },
        }
    }
}

/// Counts a script out, however it ends.
struct Running(Arc<State>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl Connection ===

impl Connection {
    /// Closes the socket without a word, after what has been sent so far.
    pub(crate) fn cut(&self) {
        let _ = self.faults.send(Fault::Cut);
    }

    /// Tells the peer to open no more streams here; those open go on.
    pub(crate) fn go_away(&self) {
        let _ = self.faults.send(Fault::GoAway);
    }

    /// Ends the connection with an error.
    pub(crate) fn abort(&self, reason: Reason) {
        let _ = self.faults.send(Fault::Abrupt(reason));
    }
}

// === impl Incoming ===

impl Incoming {
    pub(crate) fn path(&self) -> &str {
        self.head.uri.path()
    }

    /// Reads the whole request.
    pub(crate) async fn read(&mut self) -> Result<Seen, h2::Error> {
        let (body, trailers) = receive(&mut self.body).await?;
        Ok(Seen { head: self.head.clone(), body, trailers })
    }

    /// Sends the head of a reply, and gives the stream for the rest of it.
    pub(crate) fn head(&mut self, reply: &Reply, end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        let mut response = Response::new(());
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.head.clone();
        self.respond.send_response(response, end)
    }

    /// Sends a whole reply.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> Result<(), h2::Error> {
        let only_head = reply.body.is_empty() && reply.trailers.is_none();
        let mut stream = self.head(reply, only_head)?;
        if only_head {
            return Ok(());
        }
        send_all(&mut stream, &reply.body, reply.trailers.as_ref()).await
    }

    /// Reads the whole request and answers it. Gives nothing if the caller went away.
    pub(crate) async fn answer(mut self, reply: &Reply) -> Option<Seen> {
        let seen = self.read().await.ok()?;
        self.reply(reply).await.ok()?;
        Some(seen)
    }

    /// Waits until the caller resets a call that has no head yet. An error: its connection went.
    pub(crate) async fn reset(&mut self) -> Result<Reason, h2::Error> {
        std::future::poll_fn(|cx| self.respond.poll_reset(cx)).await
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}
