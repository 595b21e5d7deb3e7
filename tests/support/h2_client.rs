//! A client that speaks raw HTTP/2 over a unix socket, with the settings of grpc-go's.

use std::path::Path;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::UnixStream;

use super::bytes_on_the_wire::{Reply, framed, receive, request, send_all};
use super::wait::soon;

/// One connection. Dropping it closes the socket without a word.
#[derive(Debug)]
pub(crate) struct Client {
    sender: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A call under way. Dropping it cancels the call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) response: ResponseFuture,
    pub(crate) request: SendStream<Bytes>,
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).await.unwrap()
    }

    pub(crate) async fn try_connect(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = h2::client::Builder::new()
            .enable_push(false)
            // grpc-go credits the connection's window on receipt, the stream's when the application reads.
            .initial_connection_window_size(1 << 30)
            .initial_max_send_streams(1 << 20)
            .max_header_list_size(16 << 20)
            .max_concurrent_reset_streams(1 << 20)
            .max_local_error_reset_streams(None)
            .data_frame_budget(1 << 30)
            .handshake(stream)
            .await
            .map_err(std::io::Error::other)?;
        Ok(Self { sender, connection: tokio::spawn(connection) })
    }

    /// Opens a call.
    pub(crate) async fn open(&self, head: Request<()>, end: bool) -> Result<Call, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, request) = sender.send_request(head, end)?;
        Ok(Call { response, request })
    }

    /// Opens a call and sends the whole request.
    pub(crate) async fn start(
        &self,
        head: Request<()>,
        body: &[Bytes],
        trailers: Option<&HeaderMap>,
    ) -> Result<Call, h2::Error> {
        let mut call = self.open(head, body.is_empty() && trailers.is_none()).await?;
        send_all(&mut call.request, body, trailers).await?;
        Ok(call)
    }

    /// Starts a unary call with a small message.
    pub(crate) async fn ask(&self, path: &str, message: &[u8]) -> Call {
        self.start(request(path, &HeaderMap::new()), &[framed(message)], None).await.unwrap()
    }

    /// Makes a unary call with a small message.
    pub(crate) async fn unary(&self, path: &str, message: &[u8]) -> Result<Reply, h2::Error> {
        self.ask(path, message).await.reply().await
    }

    /// Whether the connection still stands.
    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_finished()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Call {
    /// Waits for the head of the reply.
    pub(crate) async fn head(self) -> Result<(Reply, RecvStream), h2::Error> {
        let (head, body) = soon("the head of a reply", self.response).await?.into_parts();
        Ok((Reply { status: head.status, head: head.headers, body: Vec::new(), trailers: None }, body))
    }

    /// Waits for the whole reply.
    pub(crate) async fn reply(self) -> Result<Reply, h2::Error> {
        let (mut reply, mut body) = self.head().await?;
        let (bytes, trailers) = soon("the body of a reply", receive(&mut body)).await?;
        if !bytes.is_empty() {
            reply.body.push(bytes);
        }
        reply.trailers = trailers;
        Ok(reply)
    }
}
