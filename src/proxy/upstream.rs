//! The way to the runtime: endpoints, and connections that are dialled when needed and again when lost.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use h2::SendStream;
use h2::client::SendRequest;
use http::HeaderMap;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio_util::io::InspectReader;

use crate::cri::frame::{Frame, MAX_COLLECTED};
use crate::cri::method::Service;
use crate::cri::{Method, Raw};
use crate::error::{Error, Kind, Origin};
use crate::metrics::{Counted, Metrics};
use crate::proxy::head;

/// Where the runtime and the image service are. Often the same place.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// Everything but images.
    pub runtime: Arc<Endpoint>,
    /// The image service.
    pub image: Arc<Endpoint>,
}

/// A unix socket of the runtime.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    /// The last attempt to reach it failed, and that was told.
    is_away: AtomicBool,
}

/// One connection to an endpoint: dialled by the first call that needs it, and anew after it was lost.
#[derive(Debug)]
struct Link {
    endpoint: Arc<Endpoint>,
    name: &'static str,
    metrics: Arc<Metrics>,
    /// Never held across an await.
    slot: Mutex<Slot>,
}

/// The two links that belong to one downstream connection, so that cancellation and back-pressure stay its own.
#[derive(Debug)]
struct Links {
    runtime: Link,
    image: Link,
}

/// Calls that crisp makes itself, on a connection of its own.
#[derive(Debug)]
pub struct Client {
    links: Links,
}

type Dial = Shared<BoxFuture<'static, Result<SendRequest<Bytes>, Error>>>;

/// What a link has. Calls that come while it dials wait for the same dial.
#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    Dialling(Dial),
    Up(SendRequest<Bytes>),
}

/// How long a runtime has to say its first word on a connection: as long as the kubelet's own client gives it.
pub(super) const FIRST_WORD: Duration = Duration::from_secs(5);

/// Windows as measured best for 300 KiB lists; small calls do not care.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// grpc-go's limit. A smaller one loses long error messages, and the connection with them.
const HEADER_LIST: u32 = 16 * 1024 * 1024;
/// How many streams that one side has reset are remembered, so that late frames on them do no harm.
const RESET_STREAMS: usize = 100_000;
/// Framing overhead of small messages that may wait to be read; h2's own default would end a connection on
/// which several slow readers watch small events.
const DATA_FRAME_BUDGET: usize = 32 * 1024 * 1024;

// === impl Endpoint ===

impl Endpoint {
    /// An endpoint at a socket path.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_away: AtomicBool::new(false) }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects, for a client's calls.
    pub(super) fn connect(&self) -> BoxFuture<'static, io::Result<UnixStream>> {
        let path = self.path.clone();
        async move { UnixStream::connect(path).await }.boxed()
    }

    /// It cannot be reached. That is logged once, until it is there again.
    pub(super) fn away(&self, error: &dyn fmt::Display) -> Error {
        let words = format!("the container runtime at {self} cannot be reached: {error}; is it running?");
        if !self.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!("{words} Calls fail until it is there");
        }
        Error::new(Kind::Unavailable, Origin::Runtime, words)
    }

    /// It took a connection and has not said a word on it. A process that hangs does so: the kernel connects in its place.
    pub(super) fn silent(&self) -> Error {
        self.away(&format_args!("it has said nothing for {FIRST_WORD:?}"))
    }

    /// It has said something.
    pub(super) fn reached(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!("the container runtime at {self} is there again");
        }
    }

    /// Whether it cannot be reached, which was told.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// The connection ended under a call.
    pub(super) fn lost(&self, error: &dyn fmt::Display) -> Error {
        Error::new(
            Kind::Unavailable,
            Origin::Runtime,
            format!("lost the connection to the container runtime at {self}: {error}"),
        )
    }

    /// Opens a connection for crisp's own calls and drives it in a task until it ends.
    async fn dial(&self, name: &'static str, metrics: Arc<Metrics>) -> Result<SendRequest<Bytes>, Error> {
        let (word, first_word) = oneshot::channel();
        let connected = async {
            let stream = self.connect().await?;
            let mut word = Some(word);
            let stream = InspectReader::new(stream, move |read: &[u8]| {
                if let Some(word) = word.take_if(|_| !read.is_empty()) {
                    // Nobody may wait for it any more.
                    let _ = word.send(());
                }
            });
            client_settings().handshake(stream).await.map_err(io::Error::other)
        };
        let (sender, connection) = connected.await.map_err(|error| {
            metrics.set_upstream_up(name, false);
            self.away(&error)
        })?;
        let counted = Counted::new(&metrics.upstream_connections);
        let driven = tokio::spawn(async move {
            let _counted = counted;
            if let Err(error) = connection.await {
                tracing::debug!(%error, endpoint = name, "connection to the runtime ended");
            }
        });
        match tokio::time::timeout(FIRST_WORD, first_word).await {
            Ok(Ok(())) => {
                metrics.set_upstream_up(name, true);
                self.reached();
                Ok(sender)
            }
            Ok(Err(_)) => Err(self.lost(&"it was closed")),
            Err(_) => {
                driven.abort();
                metrics.set_upstream_up(name, false);
                Err(self.silent())
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

fn client_settings() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_LIST)
        // A burst of cancelled calls resets that many streams; the runtime's late replies on them must not
        // end the connection.
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(None)
        .data_frame_budget(DATA_FRAME_BUDGET);
    builder
}

// === impl Link ===

impl Link {
    fn new(endpoint: Arc<Endpoint>, name: &'static str, metrics: Arc<Metrics>) -> Self {
        Self { endpoint, name, metrics, slot: Mutex::default() }
    }

    /// A sender that can take a request now.
    pub(super) async fn ready(&self) -> Result<SendRequest<Bytes>, Error> {
        if let Some(sender) = self.up()
            && let Ok(sender) = sender.ready().await
        {
            return Ok(sender);
        }
        // The connection was lost or never made; nothing has been sent, so dialling anew repeats nothing.
        let sender = self.dial().await?;
        sender.ready().await.map_err(|error| {
            self.forget();
            self.lost(&error)
        })
    }

    fn lost(&self, error: &dyn fmt::Display) -> Error {
        self.endpoint.lost(error)
    }

    fn up(&self) -> Option<SendRequest<Bytes>> {
        match &*self.slot() {
            Slot::Up(sender) => Some(sender.clone()),
            Slot::Empty | Slot::Dialling(_) => None,
        }
    }

    /// Joins the dial under way, or starts one.
    async fn dial(&self) -> Result<SendRequest<Bytes>, Error> {
        let dial = {
            let mut slot = self.slot();
            match &*slot {
                Slot::Dialling(dial) => dial.clone(),
                Slot::Empty | Slot::Up(_) => {
                    let (endpoint, name, metrics) = (self.endpoint.clone(), self.name, self.metrics.clone());
                    let dial = async move { endpoint.dial(name, metrics).await }.boxed().shared();
                    *slot = Slot::Dialling(dial.clone());
                    dial
                }
            }
        };
        let result = dial.clone().await;
        let mut slot = self.slot();
        if matches!(&*slot, Slot::Dialling(current) if current.ptr_eq(&dial)) {
            *slot = match &result {
                Ok(sender) => Slot::Up(sender.clone()),
                Err(_) => Slot::Empty,
            };
        }
        result
    }

    fn forget(&self) {
        *self.slot() = Slot::Empty;
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        // The slot is whole at every moment, so a panic elsewhere does not spoil it.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Dialling(_) => "Dialling",
            Self::Up(_) => "Up",
        })
    }
}

// === impl Links ===

impl Links {
    pub(super) fn new(endpoints: &Endpoints, metrics: &Arc<Metrics>) -> Self {
        Self {
            runtime: Link::new(endpoints.runtime.clone(), "runtime", metrics.clone()),
            image: Link::new(endpoints.image.clone(), "image", metrics.clone()),
        }
    }

    pub(super) fn of(&self, service: Service) -> &Link {
        match service {
            Service::Image => &self.image,
            Service::Runtime => &self.runtime,
        }
    }
}

// === impl Client ===

impl Client {
    /// A client with no connection yet.
    pub fn new(endpoints: &Endpoints, metrics: &Arc<Metrics>) -> Self {
        Self { links: Links::new(endpoints, metrics) }
    }

    /// Makes a unary call and gives back the reply as it came, whatever its code.
    pub async fn call(&self, method: Method, metadata: HeaderMap, message: &[u8]) -> Result<Raw, Error> {
        let link = self.links.of(Service::of_path(method.path()));
        let mut sender = link.ready().await?;
        let request = head::own_request(method, metadata)?;
        let lost = |error: h2::Error| link.lost(&error);
        let (mut response, mut body) = sender.send_request(request, false).map_err(lost)?;
        drop(sender);
        // Who answers before it has heard all wants no more of it; and why it could not be sent, the answer tells best.
        let response = tokio::select! {
            biased;
            response = &mut response => response,
            _sent = send(&mut body, Frame::of_message(message).into_bytes(), true) => response.await,
        };
        let (head, mut body) = response.map_err(lost)?.into_parts();
        let only_head = body.is_end_stream();
        let mut chunks = Vec::new();
        let mut size = 0;
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(lost)?;
            size += chunk.len();
            if size > MAX_COLLECTED {
                return Err(Error::new(Kind::Exhausted, Origin::Runtime, "the runtime's reply is too large"));
            }
            body.flow_control().release_capacity(chunk.len()).map_err(lost)?;
            chunks.push(chunk);
        }
        let trailers = body.trailers().await.map_err(lost)?;
        if !only_head && chunks.is_empty() && trailers.is_none() {
            // It just ended, after its head: that is another reply than a head alone.
            chunks.push(Bytes::new());
        }
        Ok(Raw::new(head.status, head.headers, chunks, trailers))
    }
}

/// Sends a piece as the receiver's windows allow.
async fn send(to: &mut SendStream<Bytes>, mut chunk: Bytes, last: bool) -> Result<(), h2::Error> {
    if chunk.is_empty() {
        return if last { to.send_data(chunk, true) } else { Ok(()) };
    }
    while !chunk.is_empty() {
        to.reserve_capacity(chunk.len());
        let room = match to.capacity() {
            0 => match poll_fn(|cx| to.poll_capacity(cx)).await {
                Some(room) => room?,
                // The stream is closed for sending; what was to be sent has no receiver.
                None => return Err(h2::Reason::CANCEL.into()),
            },
            room => room,
        };
        let piece = chunk.split_to(room.min(chunk.len()));
        to.send_data(piece, last && chunk.is_empty())?;
    }
    Ok(())
}
