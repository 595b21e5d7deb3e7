//! The life of a call, from top to bottom:
//!
//! 1. [`listener`] owns the socket; a `connection` is one client.
//! 2. [`router`] looks at the HTTP/2 path only and decides: pass on, or look at it.
//! 3. `passthrough` forwards frames; [`intercepted`] collects a message, lets the features plan, carries the
//!    plan out.
//! 4. [`upstream`] is the way to the runtime.
//!
//! Everything here runs on one thread of its own, so that background work never delays a call.

mod connection;
mod counting;
mod downstream;
mod head;
mod intercepted;
pub mod listener;
mod observation;
mod passthrough;
mod pump;
pub mod router;
pub mod upstream;
pub mod usage;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::net::UnixListener;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::proxy::router::Router;
use crate::proxy::upstream::Endpoints;
use crate::proxy::usage::Usage;
use crate::shutdown::Shutdown;

/// What every connection shares.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Where the runtime is.
    pub endpoints: Endpoints,
    /// Which calls are looked at, and by what.
    pub router: Router,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Which services clients use.
    pub usage: Arc<Usage>,
}

/// Serves connections until the shutdown's first stage, then lets what is under way finish until its second.
///
/// The caller owns the socket and the signal. The listener is closed as soon as the first stage begins, so that
/// another process can take its place.
pub async fn serve(listener: UnixListener, proxy: Proxy, shutdown: Shutdown) {
    let proxy = Arc::new(proxy);
    let connections = TaskTracker::new();
    let ids = AtomicU64::new(1);
    tokio::select! {
        () = shutdown.released() => {}
        () = listener::accept_all(&listener, |stream| {
            let id = ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            connections.spawn(connection::serve(id, stream, proxy.clone(), shutdown.clone()));
        }) => {}
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
