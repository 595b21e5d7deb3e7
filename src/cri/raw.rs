//! A whole reply as it travels: head, framed messages, trailers.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
use tonic::Code;

use crate::cri::frame::Frame;
use crate::error::{Error, Kind, Origin};

/// A reply of the runtime or of crisp. Cloning is cheap, so that one reply can answer many callers.
#[derive(Debug, Clone)]
pub struct Raw {
    inner: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    status: StatusCode,
    head: HeaderMap,
    /// Framed messages as they were on the wire, in order, cut wherever they were cut.
    body: Vec<Bytes>,
    /// `None` for a reply that consists of its head alone ("trailers-only"), and for one that just ends.
    trailers: Option<HeaderMap>,
    /// Who says it, or is to blame that crisp says it.
    origin: Origin,
    /// crisp's own words on a failure.
    words: Option<String>,
}

// === impl Raw ===

impl Raw {
    /// A reply as it came from the runtime.
    pub fn new(status: StatusCode, head: HeaderMap, body: Vec<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let (origin, words) = (Origin::Runtime, None);
        Self { inner: Arc::new(Parts { status, head, body, trailers, origin, words }) }
    }

    /// A successful unary reply made by crisp.
    pub fn message(message: &[u8]) -> Self {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Self::made(
            grpc_head(),
            vec![Frame::of_message(message).into_bytes()],
            Some(trailers),
            Origin::Crisp,
            None,
        )
    }

    /// A refusal made by crisp.
    pub fn error(error: &Error) -> Self {
        let mut head = grpc_head();
        head.extend(error_trailers(error));
        Self::made(head, Vec::new(), None, error.origin(), Some(error.message().to_owned()))
    }

    fn made(
        head: HeaderMap,
        body: Vec<Bytes>,
        trailers: Option<HeaderMap>,
        origin: Origin,
        words: Option<String>,
    ) -> Self {
        let status = StatusCode::OK;
        Self { inner: Arc::new(Parts { status, head, body, trailers, origin, words }) }
    }

    /// Who says it, or is to blame that crisp says it.
    pub fn origin(&self) -> Origin {
        self.inner.origin
    }

    /// crisp's own words on a failure. Those of the runtime are on the wire only.
    pub fn words(&self) -> Option<&str> {
        self.inner.words.as_deref()
    }

    /// HTTP status of the head; 200 for every gRPC reply.
    pub fn status(&self) -> StatusCode {
        self.inner.status
    }

    /// Headers of the head.
    pub fn head(&self) -> &HeaderMap {
        &self.inner.head
    }

    /// The body's bytes, framed.
    pub fn body(&self) -> &[Bytes] {
        &self.inner.body
    }

    /// The trailers, if the reply has any: it may be its head alone, or just end.
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.inner.trailers.as_ref()
    }

    /// The gRPC code that the reply carries.
    pub fn code(&self) -> Code {
        code_of(self.trailers().unwrap_or(self.head()))
    }

    /// The gRPC message that the reply carries, percent-encoded as on the wire.
    pub fn grpc_message(&self) -> Option<&HeaderValue> {
        self.trailers().unwrap_or(self.head()).get("grpc-message")
    }

    /// The only message of a unary reply.
    pub fn unary_message(&self) -> Result<Bytes, Error> {
        let mut splitter = crate::cri::frame::Splitter::default();
        self.body().iter().for_each(|chunk| splitter.push(chunk.clone()));
        let frame = splitter.next_frame().ok().flatten();
        frame.and_then(|frame| frame.message()).ok_or_else(|| {
            Error::new(Kind::Internal, Origin::Runtime, "the runtime's reply holds no readable message")
        })
    }
}

/// Trailers (or the head of a trailers-only reply) that report an error of crisp.
pub fn error_trailers(error: &Error) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if error.to_status().add_header(&mut trailers).is_err() {
        // Percent-encoding always yields a legal header; should that ever fail, the code alone still goes.
        trailers.insert("grpc-status", HeaderValue::from(error.code() as u16));
    }
    trailers
}

/// The gRPC code in trailers. A reply without one broke off.
pub fn code_of(trailers: &HeaderMap) -> Code {
    trailers.get("grpc-status").map_or(Code::Unknown, |value| Code::from_bytes(value.as_bytes()))
}

fn grpc_head() -> HeaderMap {
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_head_alone() {
        let raw = Raw::error(&Error::new(Kind::Invalid, Origin::Kubelet, "line one\nü"));
        assert_eq!(raw.code(), Code::InvalidArgument);
        assert!(raw.trailers().is_none());
        assert_eq!(raw.grpc_message().unwrap(), "crisp:%20line%20one%0A%C3%BC");
    }

    #[test]
    fn a_local_message_reads_back() {
        let raw = Raw::message(b"abc");
        assert_eq!(raw.code(), Code::Ok);
        assert_eq!(raw.unary_message().unwrap().as_ref(), b"abc");
    }
}
