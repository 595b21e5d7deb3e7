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

/// Serves one client until it leaves or crisp shuts down.
pub(super) async fn serve(id: u64, stream: UnixStream, proxy: Arc<Proxy>, shutdown: Shutdown) {
    proxy.metrics.downstream_connections.inc();
    if let Err(error) = serve_calls(id, stream, &proxy, &shutdown).await {
        tracing::debug!(connection = id, %error, "client connection ended");
    }
    proxy.metrics.downstream_connections.dec();
}

async fn serve_calls(
    id: u64,
    stream: UnixStream,
    proxy: &Arc<Proxy>,
    shutdown: &Shutdown,
) -> Result<(), h2::Error> {
    let mut connection = tokio::select! {
        connection = server_settings().handshake(stream) => connection?,
        () = shutdown.released() => return Ok(()),
    };
    let links = Arc::new(Links::new(&proxy.endpoints, &proxy.metrics));
    let mut draining = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let (proxy, links, shutdown) = (proxy.clone(), links.clone(), shutdown.clone());
                    tokio::spawn(handle(id, request, respond, proxy, links, shutdown));
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            // The client is told to open no more calls here; those under way go on.
            () = shutdown.released(), if !draining => {
                draining = true;
                connection.graceful_shutdown();
            }
        }
    }
}

/// One call.
async fn handle(
    connection: u64,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    proxy: Arc<Proxy>,
    links: Arc<Links>,
    shutdown: Shutdown,
) {
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
                intercepted::run(connection, method, parts, body, features, link, &mut downstream).await;
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
