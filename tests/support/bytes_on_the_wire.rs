//! Requests and replies as bytes: what one side writes and what the other side must see.

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};

/// A whole reply, to be written or as it was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) head: HeaderMap,
    /// Pieces of the body as they are written; what was read is one piece.
    pub(crate) body: Vec<Bytes>,
    /// `None`: the last piece (or the head, if there is none) ends the stream.
    pub(crate) trailers: Option<HeaderMap>,
}

impl Reply {
    /// A successful reply with these messages.
    pub(crate) fn of(messages: &[&[u8]]) -> Self {
        Self {
            status: StatusCode::OK,
            head: headers(&[("content-type", "application/grpc")]),
            body: messages.iter().map(|message| framed(message)).collect(),
            trailers: Some(headers(&[("grpc-status", "0"), ("grpc-message", "")])),
        }
    }

    /// A head alone, with this code and message.
    pub(crate) fn error(code: &str, message: &str) -> Self {
        let head = [("content-type", "application/grpc"), ("grpc-status", code), ("grpc-message", message)];
        Self { status: StatusCode::OK, head: headers(&head), body: Vec::new(), trailers: None }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.body.concat().into()
    }

    /// The gRPC code, from the trailers or from a head that is all there is.
    pub(crate) fn code(&self) -> &str {
        let map = self.trailers.as_ref().unwrap_or(&self.head);
        map.get("grpc-status").map_or("none", |value| value.to_str().unwrap())
    }

    /// The gRPC message, still percent-encoded.
    pub(crate) fn message(&self) -> &str {
        let map = self.trailers.as_ref().unwrap_or(&self.head);
        map.get("grpc-message").map_or("", |value| value.to_str().unwrap())
    }
}

/// Headers from pairs; a name may occur several times.
pub(crate) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        })
        .fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
}

/// A request head as grpc-go writes it, with more headers.
pub(crate) fn request(path: &str, more: &HeaderMap) -> Request<()> {
    let mut request = Request::post(format!("http://localhost{path}")).body(()).unwrap();
    *request.headers_mut() = headers(&[
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.76.0"),
        ("te", "trailers"),
    ]);
    for (name, value) in more {
        if name == http::header::CONTENT_TYPE {
            request.headers_mut().insert(name, value.clone());
        } else {
            request.headers_mut().append(name, value.clone());
        }
    }
    request
}

/// A message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    flagged(0, message)
}

/// A message with its prefix and the compressed flag set or not.
pub(crate) fn flagged(flag: u8, message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.put_u8(flag);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}

/// Sends a piece as the receiver's windows allow.
pub(crate) async fn send(to: &mut SendStream<Bytes>, mut piece: Bytes, end: bool) -> Result<(), h2::Error> {
    if piece.is_empty() {
        return to.send_data(piece, end);
    }
    while !piece.is_empty() {
        to.reserve_capacity(piece.len());
        let room = match std::future::poll_fn(|cx| to.poll_capacity(cx)).await {
            Some(room) => room?,
            None => return Err(h2::Reason::CANCEL.into()),
        };
        let part = piece.split_to(room.min(piece.len()));
        to.send_data(part, end && piece.is_empty())?;
    }
    Ok(())
}

/// Sends all pieces, then the trailers or the end of the stream.
pub(crate) async fn send_all(
    to: &mut SendStream<Bytes>,
    pieces: &[Bytes],
    trailers: Option<&HeaderMap>,
) -> Result<(), h2::Error> {
    for (index, piece) in pieces.iter().enumerate() {
        send(to, piece.clone(), trailers.is_none() && index + 1 == pieces.len()).await?;
    }
    match trailers {
        Some(trailers) => to.send_trailers(trailers.clone()),
        None => Ok(()),
    }
}

/// Waits until the receiver resets the stream. An error: its connection went.
pub(crate) async fn reset(stream: &mut SendStream<Bytes>) -> Result<Reason, h2::Error> {
    std::future::poll_fn(|cx| stream.poll_reset(cx)).await
}

/// Reads a body to its end.
pub(crate) async fn receive(from: &mut RecvStream) -> Result<(Bytes, Option<HeaderMap>), h2::Error> {
    let mut body = BytesMut::new();
    while let Some(piece) = from.data().await {
        let piece = piece?;
        from.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    Ok((body.freeze(), from.trailers().await?))
}
