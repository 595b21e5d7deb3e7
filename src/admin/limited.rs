//! A TCP listener for whoever is on the node, so it takes few connections and none for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Connections to the metrics address at a time. Anyone on the node may open them, and calls need descriptors too.
const MAX_CONNECTIONS: usize = 64;
/// How long one of them lasts at most: longer than any answer takes, and not so long that silent ones keep others out.
const MAX_AGE: Duration = Duration::from_secs(10);

/// A TCP listener with few connections at a time. Others wait in the backlog, where they cost no descriptor.
#[derive(Debug)]
pub(super) struct Limited {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

/// A connection and its place among the few. It lasts for [`MAX_AGE`] at most, so that silent ones make room again.
#[derive(Debug)]
pub(super) struct Counted {
    stream: TcpStream,
    age: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

// === impl Limited ===

impl Limited {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }
}

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
