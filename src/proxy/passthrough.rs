//! Forwards a call as frames: head, DATA and trailers, both ways, as they come.

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::Request;
use tonic::Code;

use crate::proxy::downstream::Downstream;
use crate::proxy::intercepted::Replies;
use crate::proxy::pump::{self, Ended};
use crate::proxy::upstream::Link;

/// How much of a request goes out together with its head. h2 gives a stream no room until its head is on the wire;
/// to wait for that would wake the runtime twice for every small request.
const WITH_HEAD: usize = 16 * 1024;

/// The request on its way to the runtime.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) head: Request<()>,
    /// What has already been read of the body (and perhaps changed).
    pub(super) first: Bytes,
    /// The rest of the body.
    pub(super) body: RecvStream,
}

/// Forwards the call. Returns when the reply is complete or either side is gone; what is then dropped resets
/// what is still open, which is how a cancellation travels on.
pub(super) async fn forward(
    outgoing: Outgoing,
    link: &Link,
    downstream: &mut Downstream,
    mut replies: Replies,
) {
    let Outgoing { head, first, mut body } = outgoing;
    let mut sender = match link.ready().await {
        Ok(sender) => sender,
        Err(error) => return downstream.fail(&error),
    };
    let empty = first.is_empty() && body.is_end_stream();
    let (response, mut upstream) = match sender.send_request(head, empty) {
        Ok(opened) => opened,
        Err(error) => return downstream.runtime_failed(&error, link),
    };
    // A sender that waits would keep the connection open after the client has left.
    drop(sender);

    let mut request_bytes = first.len();
    let ended = {
        let send = async {
            if !empty {
                send_request(first, &mut body, &mut upstream, &mut request_bytes).await
            } else {
                Ended::Whole(None)
            }
        };
        let receive = receive_reply(response, link, downstream, &mut replies);
        tokio::pin!(send, receive);
        tokio::select! {
            biased;
            ended = &mut send => match ended {
                // The caller is gone. Nothing is left to do for it.
                Ended::Source(_) => None,
                // All sent, or the runtime wants no more: its reply says why.
                Ended::Whole(_) | Ended::Sink => receive.await,
            },
            ended = &mut receive => ended,
        }
    };
    downstream.observation.request_bytes(request_bytes);
    if let Some(code) = ended {
        downstream.observation.runtime_said(code);
    }
}

async fn send_request(
    first: Bytes,
    body: &mut RecvStream,
    upstream: &mut SendStream<Bytes>,
    bytes: &mut usize,
) -> Ended {
    let last = body.is_end_stream();
    let mut ahead = WITH_HEAD;
    if pump::send_ahead(upstream, first, last, &mut ahead).await.is_err() {
        return Ended::Sink;
    }
    if last {
        return Ended::Whole(None);
    }
    pump::carry_ahead(body, upstream, ahead, |chunk| *bytes += chunk.len()).await
}

/// Relays the reply. Gives the runtime's code when the reply came to its end.
async fn receive_reply(
    response: ResponseFuture,
    link: &Link,
    downstream: &mut Downstream,
    replies: &mut Replies,
) -> Option<Code> {
    let response = tokio::select! {
        biased;
        response = response => response,
        () = downstream.gone() => return None,
    };
    let (head, mut body) = match response {
        Ok(response) => response.into_parts(),
        Err(error) => {
            downstream.runtime_failed(&error, link);
            return None;
        }
    };
    let only_head = body.is_end_stream();
    let (stream, observation) = downstream.start(head, only_head)?;
    match replies.carry(&mut body, stream, observation).await {
        Ok(Ended::Whole(code)) => Some(code.unwrap_or(Code::Unknown)),
        Ok(Ended::Source(error)) => {
            downstream.runtime_failed(&error, link);
            None
        }
        Ok(Ended::Sink) => None,
        Err(refusal) => {
            downstream.fail(&refusal);
            None
        }
    }
}
