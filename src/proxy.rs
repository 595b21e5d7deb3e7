//! The life of a call, from top to bottom:
//!
//! 1. [`listener`] owns the socket; a `session` is one client with its calls and its connections to the runtime.
//! 2. [`router`] looks at the HTTP/2 path only and decides: pass on, or look at it.
//! 3. `session::client` is what the client says: frames go on as they come, or a message is collected, the features plan
//!    (`session::features`), and the plan is carried out.
//! 4. `session::up` are the connections to the runtime, `session::runtime` is what it says: frames go back as they come, or
//!    through `replies`.
//! 5. `session::sending` is the way out on either side. [`upstream`] is the way of crisp's own calls.
//!
//! Everything here runs on one thread of its own, so that background work never delays a call.

mod counting;
mod head;
pub mod listener;
mod observation;
mod replies;
pub mod router;
mod session;
mod stream;
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
            connections.spawn(session::serve(id, stream, proxy.clone(), shutdown.clone()));
        }) => {}
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
