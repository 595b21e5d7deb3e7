//! The caller's side of one call: where the reply goes, whoever makes it.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{Response, response};
use tonic::Code;

use crate::cri::Raw;
use crate::cri::raw::{code_of, error_trailers};
use crate::error::Error;
use crate::proxy::observation::Observation;
use crate::proxy::pump;
use crate::proxy::upstream::Link;

/// Where a reply goes. It outlives the attempt to produce one, so that an attempt that is given up can still be
/// ended properly.
#[derive(Debug)]
pub(super) struct Downstream {
    respond: SendResponse<Bytes>,
    /// There once the head has been sent.
    stream: Option<SendStream<Bytes>>,
    /// What is counted of the call.
    pub(super) observation: Observation,
}

impl Downstream {
    pub(super) fn new(respond: SendResponse<Bytes>, observation: Observation) -> Self {
        Self { respond, stream: None, observation }
    }

    /// Waits until the caller goes away.
    pub(super) async fn gone(&mut self) {
        poll_fn(|cx| self.poll_gone(cx)).await;
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.stream {
            Some(stream) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        reset.map(|_| ())
    }

    /// Sends the runtime's head. Gives the stream for what follows, or nothing when the head was all.
    pub(super) fn start(
        &mut self,
        head: response::Parts,
        only_head: bool,
    ) -> Option<(&mut SendStream<Bytes>, &mut Observation)> {
        if only_head {
            self.observation.runtime_said(code_of(&head.headers));
        }
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        // An error means that the caller is gone; there is nobody to tell.
        let stream = self.respond.send_response(response, only_head).ok()?;
        let stream = self.stream.insert(stream);
        (!only_head).then_some((stream, &mut self.observation))
    }

    /// Sends a whole reply that did not come from a stream of this call.
    pub(super) async fn reply(&mut self, raw: &Raw) {
        let only_head = raw.trailers().is_none();
        let mut response = Response::new(());
        *response.status_mut() = raw.status();
        *response.headers_mut() = raw.head().clone();
        let Ok(stream) = self.respond.send_response(response, only_head) else { return };
        let stream = self.stream.insert(stream);
        for chunk in raw.body() {
            if pump::send(stream, chunk.clone(), false).await.is_err() {
                return;
            }
            self.observation.reply_bytes(chunk.len());
        }
        if let Some(trailers) = raw.trailers()
            && stream.send_trailers(trailers.clone()).is_err()
        {
            return;
        }
        self.observation.crisp_said(raw.code());
    }

    /// Ends the call with an error of crisp, whatever has been sent so far.
    pub(super) fn fail(&mut self, error: &Error) {
        let sent = match &mut self.stream {
            Some(stream) => stream.send_trailers(error_trailers(error)),
            None => {
                let raw = Raw::error(error);
                let mut response = Response::new(());
                *response.headers_mut() = raw.head().clone();
                self.respond.send_response(response, true).map(|_| ())
            }
        };
        if sent.is_ok() {
            self.observation.failed(error);
        }
    }

    /// The runtime broke the call off. A reset goes on as it came; a lost connection becomes UNAVAILABLE, and
    /// the caller's own connection stays.
    pub(super) fn runtime_failed(&mut self, error: &h2::Error, link: &Link) {
        match error.reason() {
            Some(reason) if error.is_reset() && error.is_remote() => {
                match &mut self.stream {
                    Some(stream) => stream.send_reset(reason),
                    None => self.respond.send_reset(reason),
                }
                self.observation.runtime_said(code_of_reset(reason));
            }
            _ => self.fail(&link.lost(error)),
        }
    }
}

/// The code that a gRPC client makes of a reset, by the gRPC specification.
fn code_of_reset(reason: Reason) -> Code {
    match reason {
        Reason::REFUSED_STREAM => Code::Unavailable,
        Reason::CANCEL => Code::Cancelled,
        Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}
