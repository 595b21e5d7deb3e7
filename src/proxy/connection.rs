//! One client connection and the calls on it.

use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use tokio::net::UnixStream;

use crate::cri::Method;
use crate::cri::method::Service;
use crate::error::{Error, Kind, Origin};
use crate::proxy::downstream::Downstream;
use crate::proxy::intercepted::Replies;
use crate::proxy::observation::Observation;
use crate::proxy::passthrough::Outgoing;
use crate::proxy::upstream::{Links, server_settings};
use crate::proxy::{Proxy, head, intercepted, passthrough};
use crate::shutdown::Shutdown;

/// How many calls are taken in a row before those taken get their turn. In a burst of calls the runtime then works on
/// the first while the last are still being read.
const BURST: usize = 8;

/// What the calls on one connection share.
#[derive(Debug)]
struct Connection {
    id: u64,
    proxy: Arc<Proxy>,
    links: Links,
    shutdown: Shutdown,
}

/// Serves one client until it leaves or crisp shuts down.
pub(super) async fn serve(id: u64, stream: UnixStream, proxy: Arc<Proxy>, shutdown: Shutdown) {
    let metrics = proxy.metrics.clone();
    metrics.downstream_connections.inc();
    let links = Links::new(&proxy.endpoints, &metrics);
    if let Err(error) = serve_calls(stream, Arc::new(Connection { id, proxy, links, shutdown })).await {
        tracing::debug!(connection = id, %error, "client connection ended");
    }
    metrics.downstream_connections.dec();
}

async fn serve_calls(stream: UnixStream, shared: Arc<Connection>) -> Result<(), h2::Error> {
    let released = shared.shutdown.released();
    tokio::pin!(released);
    let mut connection = tokio::select! {
        connection = server_settings().handshake(stream) => connection?,
        () = &mut released => return Ok(()),
    };
    let mut draining = false;
    let mut in_a_row = 0;
    loop {
        if in_a_row == BURST {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    tokio::spawn(handle(request, respond, shared.clone()));
                    in_a_row += 1;
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            // The client is told to open no more calls here; those under way go on.
            () = &mut released, if !draining => {
                draining = true;
                connection.graceful_shutdown();
            }
        }
    }
}

/// One call.
async fn handle(request: Request<RecvStream>, respond: SendResponse<Bytes>, shared: Arc<Connection>) {
    let Connection { id, proxy, links, shutdown } = &*shared;
    let (parts, body) = request.into_parts();
    let method = Method::of_path(parts.uri.path());
    let service = Service::of_path(parts.uri.path());
    proxy.usage.saw(service);
    let observation = Observation::start(proxy.metrics.clone(), method, parts.uri.path_and_query().cloned());
    let mut downstream = Downstream::new(respond, observation);
    let link = links.of(service);
    let carried_out = async {
        match proxy.router.route(method) {
            [] => {
                let outgoing = Outgoing { head: head::forwarded(parts), first: Bytes::new(), body };
                passthrough::forward(outgoing, link, &mut downstream, Replies::default()).await;
            }
            features => {
                intercepted::run(*id, method, parts, body, features, link, &mut downstream).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = carried_out => {}
        () = shutdown.ended() => downstream.fail(&Error::new(
            Kind::Unavailable,
            Origin::Crisp,
            "crisp is shutting down and this call did not end in time; try again",
        )),
    }
}
