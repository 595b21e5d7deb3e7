//! The two HTTP servers: the admin API (unix socket) and health with metrics (TCP, read-only).

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::admin::health::Health;
use crate::admin::status::Reporter;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// Content type of the metrics' text form.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Connections to the metrics address at a time. Anyone on the node may open them, and calls need descriptors too.
const MAX_CONNECTIONS: usize = 64;
/// How long one of them lasts at most.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Serves the admin API until the shutdown's first stage.
pub async fn serve_admin(
    listener: UnixListener,
    reporter: Arc<Reporter>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let status = |State(reporter): State<Arc<Reporter>>| async move { Json(reporter.status().await) };
    let router = Router::new().route("/v1/status", get(status)).with_state(reporter);
    axum::serve(listener, router).with_graceful_shutdown(shutdown.release_token().cancelled_owned()).await
}

/// Serves health and metrics until the shutdown's first stage.
pub async fn serve_metrics(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state((health, metrics));
    let listener = Limited { listener, room: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    axum::serve(listener, router).with_graceful_shutdown(shutdown.release_token().cancelled_owned()).await
}

/// A TCP listener with few connections at a time. Others wait in the backlog, where they cost no descriptor.
#[derive(Debug)]
struct Limited {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

/// A connection and its place among the few. It lasts for [`MAX_AGE`] at most, so that silent ones make room again.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    age: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

// === impl Limited ===

impl Listener for Limited {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        // The semaphore is never closed, so there is always a place in the end.
        let place = self.room.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let age = Box::pin(tokio::time::sleep(MAX_AGE));
        (Counted { stream, age, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

// === impl Counted ===

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.age.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.age.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

type Served = State<(Arc<Health>, Arc<Metrics>)>;

async fn livez(State((health, _)): Served) -> Response {
    if health.alive().await {
        "alive\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the proxy thread does not take work\n").into_response()
    }
}

async fn readyz(State((health, _)): Served) -> Response {
    match health.runtime().await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn scrape(State((health, metrics)): Served) -> Response {
    // Asking keeps `crisp_upstream_up` true to the moment of the scrape.
    let _ = health.runtime().await;
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
