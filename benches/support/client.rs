//! A client on the `h2` crate alone: it sees every byte and can leave replies unread.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::support::messages::Call;

/// How long a call may take before the run is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to one target.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    sender: SendRequest<Bytes>,
}

impl Client {
    /// Connects, with windows as large as the proxies'.
    pub(crate) async fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(1024 * 1024)
            .initial_connection_window_size(8 * 1024 * 1024)
            .handshake(stream)
            .await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Makes one call and compares every byte of the reply.
    pub(crate) async fn verify(&self, call: &Call) -> anyhow::Result<()> {
        let mut body = self.open(call).await?;
        let mut reply = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            reply.extend_from_slice(&chunk);
        }
        let expected = reply == call.reply || call.changed.as_ref().is_some_and(|changed| reply == *changed);
        ensure!(expected, "{}: the reply is not what the stub sent", call.name);
        ended_well(body.trailers().await?)
    }

    /// Makes one call and checks the length of the reply and its code.
    pub(crate) async fn call(&self, call: &Call) -> anyhow::Result<()> {
        self.finish(self.open(call).await?, call).await
    }

    /// Opens calls, reads nothing for a while, then everything: all the replies are under way at once.
    pub(crate) async fn stall(&self, call: &Call, callers: usize, length: Duration) -> anyhow::Result<()> {
        let mut opened = JoinSet::new();
        for _ in 0..callers {
            let (client, call) = (self.clone(), call.clone());
            opened.spawn(async move {
                let body = client.open(&call).await?;
                tokio::time::sleep(length).await;
                client.finish(body, &call).await
            });
        }
        let all = tokio::time::timeout(length + PATIENCE, opened.join_all())
            .await
            .context("a stalled call hangs")?;
        all.into_iter().collect()
    }

    /// Sends the request and waits for the head of the reply.
    async fn open(&self, call: &Call) -> anyhow::Result<RecvStream> {
        let request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!("http://localhost{}", call.path))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "crisp-bench")
            .header("grpc-timeout", "10S")
            .body(())?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut body) = sender.send_request(request, false)?;
        body.send_data(call.request.clone(), true)?;
        let (head, body) = response.await?.into_parts();
        ensure!(head.status == StatusCode::OK, "HTTP status {}", head.status);
        Ok(body)
    }

    /// Reads the rest of the reply.
    async fn finish(&self, mut body: RecvStream, call: &Call) -> anyhow::Result<()> {
        let mut length = 0;
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            length += chunk.len();
        }
        ensure!(call.expects(length), "a reply of {length} bytes instead of {}", call.reply.len());
        ended_well(body.trailers().await?)
    }
}

fn ended_well(trailers: Option<HeaderMap>) -> anyhow::Result<()> {
    let trailers = trailers.context("no trailers")?;
    let status = trailers.get("grpc-status").context("no grpc-status")?;
    ensure!(status == "0", "grpc-status {status:?}, {:?}", trailers.get("grpc-message"));
    Ok(())
}
