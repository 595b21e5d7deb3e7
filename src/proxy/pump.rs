//! Carries a body from one stream to another without holding more than the receiver has room for.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use tonic::Code;

use crate::cri::raw::code_of;

/// How a body ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// All of it was carried over; the code is that of its trailers, if it had any.
    Whole(Option<Code>),
    /// The side it came from broke off.
    Source(h2::Error),
    /// The side it goes to wants no more.
    Sink,
}

/// What comes next from the source, unless the sink went away first.
pub(super) enum Event {
    Data(Bytes),
    Trailers(HeaderMap),
    Ended(Ended),
}

/// Carries everything, telling `seen` of each piece after it went on.
pub(super) async fn carry(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
    seen: impl FnMut(&Bytes),
) -> Ended {
    carry_ahead(from, to, 0, seen).await
}

/// As [`carry`], but up to `ahead` bytes are sent without waiting for room.
pub(super) async fn carry_ahead(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
    mut ahead: usize,
    mut seen: impl FnMut(&Bytes),
) -> Ended {
    loop {
        match poll_fn(|cx| poll_event(from, to, cx)).await {
            Event::Data(chunk) => {
                let last = from.is_end_stream();
                if send_ahead(to, chunk.clone(), last, &mut ahead).await.is_err() {
                    return Ended::Sink;
                }
                seen(&chunk);
                if last {
                    return Ended::Whole(None);
                }
                if let Err(error) = from.flow_control().release_capacity(chunk.len()) {
                    return Ended::Source(error);
                }
            }
            Event::Trailers(trailers) => return finish(to, Some(trailers)),
            Event::Ended(Ended::Whole(_)) => return finish(to, None),
            Event::Ended(ended) => return ended,
        }
    }
}

/// Ends the sink's stream.
pub(super) fn finish(to: &mut SendStream<Bytes>, trailers: Option<HeaderMap>) -> Ended {
    let code = trailers.as_ref().map(code_of);
    let sent = match trailers {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    };
    if sent.is_ok() { Ended::Whole(code) } else { Ended::Sink }
}

/// Waits for the next piece from the source, or for the sink to go away.
pub(super) fn poll_event(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Event> {
    if to.poll_reset(cx).is_ready() {
        return Poll::Ready(Event::Ended(Ended::Sink));
    }
    Poll::Ready(match std::task::ready!(from.poll_data(cx)) {
        Some(Ok(chunk)) => Event::Data(chunk),
        Some(Err(error)) => Event::Ended(Ended::Source(error)),
        None => match std::task::ready!(from.poll_trailers(cx)) {
            Ok(Some(trailers)) => Event::Trailers(trailers),
            Ok(None) => Event::Ended(Ended::Whole(None)),
            Err(error) => Event::Ended(Ended::Source(error)),
        },
    })
}

/// Sends a piece at once if it is within `ahead`, which it then uses up; otherwise as the receiver's windows allow.
pub(super) async fn send_ahead(
    to: &mut SendStream<Bytes>,
    chunk: Bytes,
    last: bool,
    ahead: &mut usize,
) -> Result<(), h2::Error> {
    if chunk.is_empty() || chunk.len() > *ahead {
        return send(to, chunk, last).await;
    }
    *ahead -= chunk.len();
    to.send_data(chunk, last)
}

/// Sends a piece as the receiver's windows allow.
pub(super) async fn send(to: &mut SendStream<Bytes>, mut chunk: Bytes, last: bool) -> Result<(), h2::Error> {
    if chunk.is_empty() {
        return if last { to.send_data(chunk, true) } else { Ok(()) };
    }
    while !chunk.is_empty() {
        to.reserve_capacity(chunk.len());
        let room = match to.capacity() {
            0 => match poll_fn(|cx| to.poll_capacity(cx)).await {
                Some(room) => room?,
                // The stream is closed for sending; what was to be sent has no receiver.
                None => return Err(h2::Reason::CANCEL.into()),
            },
            room => room,
        };
        let piece = chunk.split_to(room.min(chunk.len()));
        to.send_data(piece, last && chunk.is_empty())?;
    }
    Ok(())
}
