//! One client's connection, the calls on it, and the connections to the runtime that belong to it.
//!
//! All of it is one task: a frame that comes on one side goes out on the other in the same turn, without queues,
//! wakers or tasks in between. Only what a feature waits for is a future of its own, in `waits`.

#[cfg(debug_assertions)]
mod check;
mod client;
mod features;
mod runtime;
mod sending;
mod up;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use futures_util::StreamExt;
use futures_util::future::{Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use tokio::net::UnixStream;

use crate::cri::frame::MAX_COLLECTED;
use crate::cri::method::Service;
use crate::error::{Error, Kind, Origin};
use crate::http2::{Fault, MOST_WINDOW, Peer, Reason};
use crate::metrics::Counted;
use crate::proxy::Proxy;
use crate::proxy::session::features::Brought;
use crate::proxy::session::up::Up;
use crate::proxy::stream::Stream;
use crate::shutdown::Shutdown;

/// One client and its calls.
struct Session {
    id: u64,
    proxy: Arc<Proxy>,
    down: Peer,
    /// By the client's number.
    streams: HashMap<u32, Stream>,
    /// The highest number that the client has used.
    last: u32,
    /// Connections to the runtime. A place that is free is used again.
    ups: Vec<Option<Up>>,
    /// Those that take new calls.
    image: Option<usize>,
    runtime: Option<usize>,
    /// What features wait for.
    waits: FuturesUnordered<Abortable<BoxFuture<'static, (u32, Brought)>>>,
    /// Calls with something that waits for room, in the order in which they get it.
    requests_waiting: VecDeque<u32>,
    replies_waiting: VecDeque<u32>,
    /// There may be room for them.
    stirred: bool,
    /// The client has said something.
    heard: bool,
    /// Frames of the client have been read and not looked at, because too much waited to be written or others had their turn.
    unread: bool,
    /// Bytes of what was asked that wait here until they can be looked at or sent, heads included.
    held: usize,
    /// What it has cost so far to go through what was read.
    effort: usize,
    leaving: Leaving,
    /// It was looked once more whether a client that is to leave has said something.
    looked: bool,
}

/// How often each side is read in one turn of a client, before others have theirs.
const ROUNDS: usize = 2;

/// What it may cost to go through what was read, before the rest waits. A frame costs one; what costs more says so.
const MOST_EFFORT: usize = 256;

/// What one client may have waiting here: more than the largest message that is looked at.
const MOST_HELD: usize = 2 * MAX_COLLECTED;

/// Calls that one client may have under way: those whose replies it does not read take memory too. A kubelet has hundreds at
/// most. It is not told of this limit: a client that waited for its turn would let pulls hold up everything else.
const MOST_CALLS: usize = 20_000;

/// What a call takes that waits, besides its bytes.
const CALL_ITSELF: usize = 1024;

/// How far an orderly end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Leaving {
    Not,
    /// The client was told to open no more calls, and may not have heard it.
    Told,
    /// It has heard it.
    Heard,
    /// Nothing is waited for but that what was said is written.
    Now,
}

/// Serves one client until it leaves or crisp shuts down.
pub(super) async fn serve(id: u64, stream: UnixStream, proxy: Arc<Proxy>, shutdown: Shutdown) {
    let _counted = Counted::new(&proxy.metrics.downstream_connections);
    let mut session = Session::new(id, stream, proxy);
    let (released, ended) = (shutdown.released(), shutdown.ended());
    tokio::pin!(released, ended);
    let (mut is_released, mut is_ended) = (false, false);
    let result = std::future::poll_fn(|cx| {
        if !is_released && released.as_mut().poll(cx).is_ready() {
            is_released = true;
            session.drain();
        }
        if !is_ended && ended.as_mut().poll(cx).is_ready() {
            is_ended = true;
            session.end();
        }
        let polled = session.poll(cx);
        #[cfg(debug_assertions)]
        session.check();
        polled
    })
    .await;
    if let Err(error) = result {
        tracing::debug!(connection = id, %error, "client connection ended");
    }
}

// === impl Session ===

impl Session {
    fn new(id: u64, stream: UnixStream, proxy: Arc<Proxy>) -> Self {
        Self {
            id,
            proxy,
            down: Peer::accepted(stream),
            streams: HashMap::new(),
            last: 0,
            ups: Vec::new(),
            image: None,
            runtime: None,
            waits: FuturesUnordered::new(),
            requests_waiting: VecDeque::new(),
            replies_waiting: VecDeque::new(),
            stirred: false,
            heard: false,
            unread: false,
            held: 0,
            effort: 0,
            leaving: Leaving::Not,
            looked: false,
        }
    }

    /// Does what can be done in a turn. Ready when the client has left or nothing is left to do for it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS {
            // The runtime first: a connection that it has closed must not get one more call.
            let mut moved = self.poll_runtimes(cx);
            // Who waits for room gets it before what the client says next.
            if std::mem::take(&mut self.stirred) {
                self.send_what_waits();
            }
            if self.leaving < Leaving::Now && !self.down.is_overfull() {
                match if self.unread { Poll::Ready(Ok(1)) } else { self.down.poll_read(cx) } {
                    Poll::Pending => {}
                    Poll::Ready(read) => {
                        if read? == 0 {
                            return Poll::Ready(Ok(()));
                        }
                        self.heard = true;
                        moved = true;
                        self.read_client();
                    }
                }
            }
            while !self.waits.is_empty()
                && let Poll::Ready(Some(brought)) = self.waits.poll_next_unpin(cx)
            {
                // What was given up brings nothing.
                if let Ok((id, brought)) = brought {
                    self.brought(id, brought);
                }
                moved = true;
            }
            if std::mem::take(&mut self.stirred) {
                self.send_what_waits();
            }
            moved |= self.flush(cx)?;
            if self.is_over() {
                return Poll::Ready(Ok(()));
            }
            if !moved {
                if self.leaving != Leaving::Told || self.heard {
                    return Poll::Pending;
                }
                // Who never said a word waits for nothing. But of a connection that is new it is known only in the next
                // turn whether there is something to read.
                if std::mem::replace(&mut self.looked, true) {
                    self.drained();
                } else {
                    break;
                }
            }
        }
        // Woken again when others have had their turn, and those who have something to say have been found.
        let _pending = std::pin::pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Writes what is to be written. Gives whether something that waits may go on.
    fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        for place in 0..self.ups.len() {
            moved |= self.flush_runtime(place, cx);
        }
        let (had_room, was_overfull) = (self.down.has_room(), self.down.is_overfull());
        if let Poll::Ready(written) = self.down.poll_flush(cx) {
            written?;
        }
        if self.down.has_room() && !had_room {
            self.stirred = true;
            moved = true;
        }
        // Reading goes on, whether or not there will ever be more room.
        moved |= was_overfull && !self.down.is_overfull();
        Ok(moved)
    }

    fn is_over(&self) -> bool {
        match self.leaving {
            Leaving::Not | Leaving::Told => false,
            Leaving::Heard | Leaving::Now => self.streams.is_empty() && self.down.is_flushed(),
        }
    }

    /// The client is told to open no more calls here; those under way go on.
    fn drain(&mut self) {
        if self.leaving == Leaving::Not {
            self.leaving = Leaving::Told;
            self.down.go_away(MOST_WINDOW, Reason::NO_ERROR);
            // When this comes back, the client has heard it and what it opened before has come.
            self.down.ping();
        }
    }

    /// The client has heard that it is to open no more calls.
    fn drained(&mut self) {
        if self.leaving == Leaving::Told {
            self.leaving = Leaving::Heard;
            self.down.go_away(self.last, Reason::NO_ERROR);
        }
    }

    /// Ends every call.
    fn end(&mut self) {
        let error = Error::new(
            Kind::Unavailable,
            Origin::Crisp,
            "crisp is shutting down and this call did not end in time; try again",
        );
        self.forget_waiting();
        for id in self.ids(|_| true) {
            // What waits for room may wait for ever. Its sender is credited with it as it is let go.
            self.let_go_of_request(id, Some(Reason::CANCEL));
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.reply.clear();
            }
            self.fail(id, &error);
        }
        self.drained();
        self.leaving = Leaving::Now;
    }

    /// The client broke the rules: it is told so, and everything ends.
    fn client_fault(&mut self, fault: Fault) {
        tracing::debug!(connection = self.id, why = fault.why, "a client broke the rules of HTTP/2");
        self.down.go_away(self.last, fault.reason);
        self.forget_waiting();
        for id in self.ids(|_| true) {
            self.remove(id, None, Some(Reason::CANCEL));
        }
        self.leaving = Leaving::Now;
    }

    /// More of what was asked waits here.
    fn hold(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.held += bytes;
        self.held += bytes;
        if self.held > MOST_HELD {
            let words = "too many and too large requests of this client wait; try again when some have ended";
            self.fail(id, &Error::new(Kind::Exhausted, Origin::Kubelet, words));
        }
    }

    /// What of a request no longer waits is not held any more.
    fn hold_no_more(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let still = stream.held.min(stream.request.waiting_bytes());
        self.held -= std::mem::replace(&mut stream.held, still) - still;
    }

    fn ids(&self, wanted: impl Fn(&Stream) -> bool) -> Vec<u32> {
        self.streams.iter().filter(|(_, stream)| wanted(stream)).map(|(id, _)| *id).collect()
    }

    fn current(&mut self, service: Service) -> &mut Option<usize> {
        match service {
            Service::Image => &mut self.image,
            Service::Runtime => &mut self.runtime,
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("calls", &self.streams.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
