//! An OCI registry inside the test process: it serves pulls, remembers every request, and misbehaves when told to.
//!
//! ```ignore
//! let registry = Registry::start().await;
//! let image = ImageBuilder::default().layer(&[("etc/motd", b"hi")]).build();
//! let name = registry.push("app:v1", &image);        // 127.0.0.1:PORT/app:v1
//! registry.misbehave("/blobs/", Fault::Status(500));
//! assert_eq!(registry.requests_to("/manifests/"), 1);
//! ```

#![allow(dead_code, unused_imports, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test registry that cannot go on should say where, in the demo too")]

#[path = "registry/fault.rs"]
mod fault;
#[path = "registry/image.rs"]
mod image;
#[path = "registry/line.rs"]
mod line;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) use fault::{Fault, Hold};
pub(crate) use image::{Image, ImageBuilder, digest_of, host_architecture, index};
use line::Line;

/// A running registry; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Registry {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// What a request must show.
#[derive(Clone, Debug, Default)]
pub(crate) enum Auth {
    /// Nothing.
    #[default]
    Open,
    /// This name and password, with every request.
    Basic(&'static str, &'static str),
    /// A token from `/token`, which everybody gets.
    AnonymousToken,
    /// A token from `/token`, for this name and password.
    Token(&'static str, &'static str),
    /// A token from `/token`, in exchange for this refresh token.
    Refresh(&'static str),
}

/// One request as it was answered.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) status: u16,
    /// Bytes of the body that were handed to the connection so far.
    pub(crate) sent: u64,
    /// Whether no more of them come: all are sent, or the client has gone.
    pub(crate) over: bool,
    /// The name that was shown with a password.
    pub(crate) user: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `repository/manifests/tag-or-digest` and `repository/blobs/digest`, each with its media type.
    content: HashMap<String, (String, Bytes)>,
    auth: Auth,
    bytes_per_second: Option<u64>,
    /// In what pieces bodies are sent.
    piece: Option<usize>,
    line: Line,
    faults: Vec<(String, Fault)>,
    log: Vec<Seen>,
}

/// The token that `/token` gives; also one that may be given as `registry_token`.
pub(crate) const TOKEN: &str = "a-token-of-the-test-registry";

// === impl Registry ===

impl Registry {
    /// Starts on a free port of 127.0.0.1.
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let app = axum::Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, shared, server }
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Stores an image under `repository[:tag]` and by digest; returns its full name.
    pub(crate) fn push(&self, name: &str, image: &Image) -> String {
        let (repository, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let mut state = self.shared.lock();
        for (digest, data) in image.blobs.iter() {
            let kind = "application/octet-stream".to_owned();
            state.content.insert(format!("{repository}/blobs/{digest}"), (kind, data.clone()));
        }
        for (kind, data) in image.manifests.iter() {
            let path = format!("{repository}/manifests/{}", digest_of(data));
            state.content.insert(path, (kind.clone(), data.clone()));
        }
        let top = image.manifests.last().unwrap().clone();
        state.content.insert(format!("{repository}/manifests/{tag}"), top);
        format!("{}/{repository}:{tag}", self.address)
    }

    /// Asks for credentials from now on.
    pub(crate) fn require(&self, auth: Auth) {
        self.shared.lock().auth = auth;
    }

    /// Sends at most so many bytes per second on each connection; `None` is as fast as it goes.
    pub(crate) fn throttle(&self, bytes_per_second: Option<u64>) {
        self.shared.lock().bytes_per_second = bytes_per_second;
    }

    /// Sends at most so many bytes per second over all connections together, as a node's line does; from now on also
    /// to who is being answered.
    pub(crate) fn throttle_in_all(&self, bytes_per_second: Option<u64>) {
        self.shared.lock().line.bytes_per_second = bytes_per_second;
    }

    /// Sends bodies in pieces of so many bytes, and never several at once to catch up. The smaller they are, the less is
    /// on its way when a client goes.
    pub(crate) fn in_pieces(&self, bytes: usize) {
        let mut state = self.shared.lock();
        state.piece = Some(bytes);
        state.line.even = true;
    }

    /// Answers every request whose path contains `path` with a fault, until [`Registry::behave`].
    pub(crate) fn misbehave(&self, path: &str, fault: Fault) {
        self.shared.lock().faults.push((path.to_owned(), fault));
    }

    /// Forgets all faults. Requests that a [`Hold`] keeps wait for it still.
    pub(crate) fn behave(&self) {
        self.shared.lock().faults.clear();
    }

    /// Holds requests whose path contains `path` before they are answered, until the hold is dropped.
    pub(crate) fn hold(&self, path: &str) -> Hold {
        let (hold, fault) = fault::hold();
        self.misbehave(path, fault);
        hold
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.shared.lock().log.clone()
    }

    /// How many requests there have been so far.
    pub(crate) fn requests_so_far(&self) -> usize {
        self.shared.lock().log.len()
    }

    /// Every request after the first so many.
    pub(crate) fn requests_after(&self, count: usize) -> Vec<Seen> {
        self.shared.lock().log.get(count..).unwrap_or_default().to_vec()
    }

    /// How many GET requests had a path that contains `path`.
    pub(crate) fn requests_to(&self, path: &str) -> usize {
        let gets = |seen: &&Seen| seen.method == Method::GET && seen.path.contains(path);
        self.shared.lock().log.iter().filter(gets).count()
    }

    /// Bytes of bodies sent so far.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.shared.lock().log.iter().map(|seen| seen.sent).sum()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    fn sent(&self, entry: usize, bytes: u64) {
        self.lock().log[entry].sent += bytes;
    }

    fn over(&self, entry: usize) {
        self.lock().log[entry].over = true;
    }
}

// === impl Auth ===

impl Auth {
    /// `None` if the request may pass, else the refusal.
    fn refuse(&self, headers: &HeaderMap) -> Option<Response> {
        let shown =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (wanted, challenge) = match self {
            Self::Open => return None,
            Self::Basic(user, password) => (basic(user, password), r#"Basic realm="test""#.to_owned()),
            _ => (format!("Bearer {TOKEN}"), format!(r#"Bearer realm="http://{host}/token",service="test""#)),
        };
        (shown != wanted).then(|| {
            let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#;
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], body).into_response()
        })
    }

    /// The answer of `/token`.
    fn token(&self, headers: &HeaderMap, form: &[u8]) -> Response {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let granted = match self {
            Self::Token(user, password) => shown == Some(basic(user, password).as_str()),
            Self::Refresh(token) => {
                let form = String::from_utf8_lossy(form);
                form.contains("grant_type=refresh_token") && form.contains(&format!("refresh_token={token}"))
            }
            _ => shown.is_none(),
        };
        match granted {
            true => (StatusCode::OK, format!(r#"{{"token":"{TOKEN}"}}"#)).into_response(),
            false => (StatusCode::UNAUTHORIZED, "wrong credentials").into_response(),
        }
    }
}

fn user_of(headers: &HeaderMap) -> Option<String> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let shown = String::from_utf8(STANDARD.decode(shown).ok()?).ok()?;
    shown.split_once(':').map(|(user, _)| user.to_owned())
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let range = head.headers.get(header::RANGE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (entry, fault) = {
        let mut state = shared.lock();
        let seen = Seen {
            method: head.method.clone(),
            path: path.clone(),
            range: range.clone(),
            status: 0,
            sent: 0,
            over: false,
            user: user_of(&head.headers),
        };
        state.log.push(seen);
        let fault = state.faults.iter().find(|(part, _)| path.contains(part)).map(|(_, fault)| fault.clone());
        (state.log.len() - 1, fault)
    };
    if let Some(fault) = &fault {
        fault.wait().await;
    }
    let response = if path == "/token" {
        let form = axum::body::to_bytes(body, 1 << 16).await.unwrap_or_default();
        shared.lock().auth.token(&head.headers, &form)
    } else {
        respond(&shared, entry, &head.method, &path, range.as_deref(), &head.headers, fault)
    };
    shared.lock().log[entry].status = response.status().as_u16();
    response
}

fn respond(
    shared: &Arc<Shared>,
    entry: usize,
    method: &Method,
    path: &str,
    range: Option<&str>,
    headers: &HeaderMap,
    fault: Option<Fault>,
) -> Response {
    let state = shared.lock();
    if let Some(refusal) = state.auth.refuse(headers) {
        return refusal;
    }
    let Some((kind, data)) = path.strip_prefix("/v2/").and_then(|path| state.content.get(path)).cloned()
    else {
        let status = if path == "/v2/" { StatusCode::OK } else { StatusCode::NOT_FOUND };
        return (status, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#)
            .into_response();
    };
    let pace = fault::Pace { bytes_per_second: state.bytes_per_second, piece: state.piece };
    drop(state);
    if let Some(Fault::Status(code)) = fault {
        return (StatusCode::from_u16(code).unwrap(), "the test registry fails as told").into_response();
    }
    if let Some(Fault::Redirect(to)) = fault {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response();
    }
    let (status, part) = match range.map(|range| slice(&data, range)) {
        None => (StatusCode::OK, data.clone()),
        Some(Some(part)) => (StatusCode::PARTIAL_CONTENT, part),
        Some(None) => return StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
    };
    let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    // Hashing a large blob for every request would hold all others up.
    let digest = path.rsplit('/').next().filter(|name| name.starts_with("sha256:")).map(str::to_owned);
    response = response.header("docker-content-digest", digest.unwrap_or_else(|| digest_of(&data)));
    if status == StatusCode::PARTIAL_CONTENT {
        let from = data.len() - part.len();
        response = response.header(header::CONTENT_RANGE, format!("bytes {from}-*/{}", data.len()));
    }
    if fault.as_ref().is_none_or(Fault::tells_length) {
        response = response.header(header::CONTENT_LENGTH, part.len());
    }
    let body = match *method {
        Method::HEAD => Body::empty(),
        _ => Body::from_stream(fault::body(part, fault, pace, Arc::clone(shared), entry)),
    };
    response.body(body).unwrap()
}

/// The part of `data` that `bytes=FROM-[TO]` asks for.
fn slice(data: &Bytes, range: &str) -> Option<Bytes> {
    let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let end = if to.is_empty() { data.len() } else { data.len().min(to.parse::<usize>().ok()? + 1) };
    (from < end).then(|| data.slice(from..end))
}
