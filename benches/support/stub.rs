//! The stub of a runtime: answers as fast as the `h2` crate can, so that what a proxy costs is seen.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use tokio::net::{UnixListener, UnixStream};

use crate::support::messages::{self, Call};

const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// Serves until its standard input ends: it must not outlive the process that started it.
pub(crate) async fn serve(socket: &Path) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let mut calls = messages::calls();
    for call in &mut calls {
        call.reply = fs::read(reply_file(socket, call))?.into();
    }
    let calls = Arc::new(calls);
    let (tell, mut parent_ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(tell);
    });
    loop {
        tokio::select! {
            accepted = listener.accept() => { tokio::spawn(connection(accepted?.0, calls.clone())); }
            _ = &mut parent_ended => return Ok(()),
        }
    }
}

/// Where the stub on this socket finds the reply to a call.
pub(crate) fn reply_file(socket: &Path, call: &Call) -> PathBuf {
    socket.with_file_name(call.name)
}

async fn connection(stream: UnixStream, calls: Arc<[Call; 5]>) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(stream)
        .await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let reply =
            calls.iter().find(|call| call.path == request.uri().path()).map(|call| call.reply.clone());
        tokio::spawn(answer(request, respond, reply));
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    reply: Option<Bytes>,
) -> Result<(), h2::Error> {
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        body.flow_control().release_capacity(chunk?.len())?;
    }
    let mut response = Response::new(());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let Some(reply) = reply else {
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
        respond.send_response(response, true)?;
        return Ok(());
    };
    let mut stream = respond.send_response(response, false)?;
    // h2 holds what the windows have no room for yet; the reply is one shared piece of memory.
    stream.send_data(reply, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
