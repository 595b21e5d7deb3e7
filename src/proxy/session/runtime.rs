//! The connections to the runtime, and what it says.
//!
//! They belong to one client, so that cancellation and back-pressure stay its own: one for the image service and one for
//! everything else, made when a call needs them and anew after they were lost.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::Code;

use crate::cri::method::Service;
use crate::error::{Error, Kind, Origin};
use crate::http2::{End, Event, Fault, Fields, MOST_WINDOW, Peer, Reason, STREAM_WINDOW};
use crate::metrics::Metrics;
use crate::proxy::head;
use crate::proxy::replies::Replies;
use crate::proxy::session::Session;
use crate::proxy::session::sending::{code_of, is_informational};
use crate::proxy::stream::{Link, Outcome, State};
use crate::proxy::upstream::Endpoint;

/// The last number that a stream can have. A connection that has used them up is left for a new one.
const LAST_NUMBER: u32 = 0x7fff_ffff;

/// One connection to the runtime.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) peer: Peer,
    service: Service,
    endpoint: Arc<Endpoint>,
    /// The client's numbers of the calls on it, by its own.
    calls: HashMap<u32, u32>,
    /// The next number for a call.
    next: u32,
    /// Calls that wait until the runtime takes one more.
    waiting: VecDeque<u32>,
    /// It takes no new calls.
    leaving: bool,
    /// Nothing can be written to it any more. What it said before is still to be read.
    deaf: bool,
    /// Frames of it have been read and not looked at, because too much waited to be written.
    unread: bool,
    _counted: Option<Counted>,
}

/// Counts an open connection while it lives.
#[derive(Debug)]
struct Counted(Arc<Metrics>);

impl Session {
    // --- connections ---

    /// Makes connections and reads what the runtime says. Gives whether anything happened.
    pub(super) fn poll_runtimes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        for place in 0..self.ups.len() {
            moved |= self.poll_runtime(place, cx);
        }
        moved
    }

    fn poll_runtime(&mut self, place: usize, cx: &mut Context<'_>) -> bool {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return false };
        match up.peer.poll_dial(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(false)) => {}
            Poll::Ready(Ok(true)) => {
                let metrics = &self.proxy.metrics;
                metrics.set_upstream_up(name_of(up.service), true);
                metrics.upstream_connections.inc();
                up._counted = Some(Counted(metrics.clone()));
            }
            Poll::Ready(Err(error)) => {
                self.proxy.metrics.set_upstream_up(name_of(up.service), false);
                let error = up.endpoint.away(&error);
                self.lose(place, &error);
                return true;
            }
        }
        // What the client does not read is left with the runtime, and who does not read answers gets no more of them.
        if !self.down.has_room() || up.peer.is_overfull() {
            return false;
        }
        if up.unread {
            self.read_runtime(place);
            return true;
        }
        match up.peer.poll_read(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => {
                let error = up.endpoint.lost(&"it was closed");
                self.lose(place, &error);
            }
            Poll::Ready(Err(error)) => {
                let error = up.endpoint.lost(&error);
                self.lose(place, &error);
            }
            Poll::Ready(Ok(_)) => self.read_runtime(place),
        }
        true
    }

    /// Writes what is to be written. Gives whether something that waits may go on.
    pub(super) fn flush_runtime(&mut self, place: usize, cx: &mut Context<'_>) -> bool {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return false };
        let (had_room, was_overfull) = (up.peer.has_room(), up.peer.is_overfull());
        if up.deaf {
            up.peer.drop_output();
        } else if let Poll::Ready(Err(error)) = up.peer.poll_flush(cx) {
            tracing::debug!(connection = self.id, %error, "the runtime takes no more on a connection");
            self.went_deaf(place);
            return true;
        }
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return true };
        let more_room = up.peer.has_room() && !had_room;
        let moved = more_room || (was_overfull && !up.peer.is_overfull());
        self.stirred |= more_room;
        if up.leaving {
            self.fill(place);
        }
        moved
    }

    /// Nothing can be written any more. What it said before it went is still to be read, though perhaps not now: the
    /// calls on it end when that comes to its end. What has not been sent gets a new connection.
    fn went_deaf(&mut self, place: usize) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        (up.deaf, up.leaving) = (true, true);
        up.peer.drop_output();
        self.stirred = true;
        let (service, waiting) = (up.service, std::mem::take(&mut up.waiting));
        self.take_out_of_use(service, place);
        for id in waiting {
            self.ask_again(id);
        }
    }

    /// A connection is gone, or never came to be.
    fn lose(&mut self, place: usize, error: &Error) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::take) else { return };
        tracing::debug!(connection = self.id, %error, "connection to the runtime ended");
        self.take_out_of_use(up.service, place);
        let was_there = up._counted.is_some();
        let mut calls: Vec<u32> = up.calls.into_values().collect();
        calls.sort_unstable();
        for id in calls {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.link = None;
            stream.reply.forgive();
            if stream.reply.source_done {
                // Its reply is whole and only waits for room.
                self.let_go_of_request(id, None);
            } else {
                self.fail(id, error);
            }
        }
        for id in up.waiting {
            if was_there {
                // Nothing of it was sent, so that a new connection repeats nothing.
                self.ask_again(id);
            } else {
                self.fail(id, error);
            }
        }
    }

    fn take_out_of_use(&mut self, service: Service, place: usize) {
        let current = self.current(service);
        if *current == Some(place) {
            *current = None;
        }
    }

    /// The connection for a call.
    fn connection_for(&mut self, service: Service) -> usize {
        if let Some(place) = *self.current(service) {
            return place;
        }
        let endpoint = match service {
            Service::Image => self.proxy.endpoints.image.clone(),
            Service::Runtime => self.proxy.endpoints.runtime.clone(),
        };
        let up = Up {
            peer: Peer::dialling(endpoint.connect()),
            service,
            endpoint,
            calls: HashMap::new(),
            next: 1,
            waiting: VecDeque::new(),
            leaving: false,
            deaf: false,
            unread: false,
            _counted: None,
        };
        let place = match self.ups.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.ups.push(None);
                self.ups.len() - 1
            }
        };
        if let Some(free) = self.ups.get_mut(place) {
            *free = Some(up);
        }
        *self.current(service) = Some(place);
        place
    }

    // --- calls ---

    /// Sends a call to the runtime, or lets it wait until the runtime takes one more. Gives the head back.
    pub(super) fn ask(&mut self, id: u32, head: Fields) -> Fields {
        let Some(stream) = self.streams.get_mut(&id) else { return head };
        let service = stream.service;
        let place = self.connection_for(service);
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return head };
        let Some(stream) = self.streams.get_mut(&id) else { return head };
        if up.calls.len() >= up.peer.settings.streams as usize {
            stream.state = State::Queued(Box::new(head));
            up.waiting.push_back(id);
            return Fields::default();
        }
        let number = up.next;
        up.next += 2;
        up.calls.insert(number, id);
        stream.state = State::Passing;
        stream.link = Some(Link { up: place, stream: number });
        stream.request.window = i64::from(up.peer.settings.window);
        let end = !stream.request.has_data() && matches!(stream.request.end, Some(End::Flag));
        if end {
            stream.request.end = None;
            stream.request.sink_done = true;
        }
        up.peer.head(number, head::forwarded(&head), end);
        if up.next >= LAST_NUMBER {
            up.leaving = true;
            self.take_out_of_use(service, place);
        }
        self.send_request(id);
        head
    }

    /// The runtime has no more part in a call. If it does not know that yet, it is told with this reason.
    pub(super) fn unlink(&mut self, id: u32, reason: Option<Reason>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if matches!(stream.state, State::Queued(_)) {
            for up in self.ups.iter_mut().flatten() {
                up.waiting.retain(|waiting| *waiting != id);
            }
        }
        let Some(link) = stream.link.take() else { return };
        let Some(up) = self.ups.get_mut(link.up).and_then(Option::as_mut) else { return };
        up.peer.pass(stream.reply.forgive());
        up.calls.remove(&link.stream);
        if let Some(reason) = reason
            && !(stream.request.sink_done && stream.reply.source_done)
        {
            up.peer.reset(link.stream, reason);
        }
        self.fill(link.up);
    }

    /// Sends calls that wait for their turn, and closes a connection that has had its day.
    fn fill(&mut self, place: usize) {
        while let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) {
            if up.leaving && up.calls.is_empty() && up.waiting.is_empty() && up.peer.is_flushed() {
                self.ups.get_mut(place).map(Option::take);
                return;
            }
            if up.calls.len() >= up.peer.settings.streams as usize {
                return;
            }
            let Some(id) = up.waiting.pop_front() else { return };
            self.ask_again(id);
        }
    }

    /// Sends a call that waited.
    fn ask_again(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !matches!(stream.state, State::Queued(_)) {
            return;
        }
        if let State::Queued(head) = std::mem::replace(&mut stream.state, State::Passing) {
            let fields = self.ask(id, *head);
            self.down.recycle(fields);
        }
    }

    // --- what it says ---

    fn read_runtime(&mut self, place: usize) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        let mut input = up.peer.take_input();
        loop {
            let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
            up.unread = self.down.is_overfull() || up.peer.is_overfull();
            if up.unread {
                return up.peer.give_back(input);
            }
            let said = match input.next_frame() {
                Ok(None) => return up.peer.give_back(input),
                Ok(Some((head, payload))) => {
                    let event = up.peer.event(head, payload);
                    event.and_then(|event| event.map_or(Ok(()), |event| self.said(place, event)))
                }
                Err(fault) => Err(fault),
            };
            if let Err(fault) = said {
                let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
                let error = up.endpoint.lost(&format_args!("it broke the rules of HTTP/2 ({})", fault.why));
                // What is left of its words must not be taken for those of the next connection in its place.
                return self.lose(place, &error);
            }
        }
    }

    fn said(&mut self, place: usize, event: Event<'_>) -> Result<(), Fault> {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return Ok(()) };
        match event {
            Event::Head { stream, fields, end } => match (up.call(stream)?, fields) {
                (Some(id), Some(fields)) => self.head_said(place, id, fields, end),
                (Some(id), None) => self.fail(
                    id,
                    &Error::new(
                        Kind::Exhausted,
                        Origin::Runtime,
                        "the runtime's reply has too many header fields",
                    ),
                ),
                (None, Some(fields)) => up.peer.recycle(fields),
                (None, None) => {}
            },
            Event::Data { stream, content, length, end } => match up.call(stream)? {
                Some(id) => self.data_said(id, content, length, end),
                None => up.peer.pass(length),
            },
            Event::Reset { stream, reason } => {
                if let Some(id) = up.call(stream)? {
                    self.reset_said(id, reason);
                }
            }
            Event::Room { stream, by } => {
                if let Some(id) = up.call(stream)?
                    && let Some(stream) = self.streams.get_mut(&id)
                {
                    stream.request.window += i64::from(by);
                    if by == 0 || stream.request.window > i64::from(MOST_WINDOW) {
                        self.broke_rules(id, "room for nothing, or for too much");
                    } else {
                        self.stirred |= stream.request_listed;
                    }
                }
            }
            Event::Settings { change } => {
                for id in up.calls.values() {
                    if let Some(stream) = self.streams.get_mut(id) {
                        stream.request.window += change;
                        if stream.request.window > i64::from(MOST_WINDOW) {
                            return Err(Fault::window());
                        }
                    }
                }
                self.stirred = true;
                self.fill(place);
            }
            Event::ConnectionRoom => self.stirred = true,
            Event::GoAway { last, reason } => self.leaves(place, last, reason),
            Event::Pong => {}
        }
        Ok(())
    }

    /// The runtime lays a connection down: what it has not looked at fails, the rest goes on, and what has not been sent
    /// gets a new one.
    fn leaves(&mut self, place: usize, last: u32, reason: Reason) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        up.leaving = true;
        let service = up.service;
        let waiting = std::mem::take(&mut up.waiting);
        let mut refused: Vec<_> =
            up.calls.iter().filter(|(number, _)| **number > last).map(|(_, id)| *id).collect();
        refused.sort_unstable();
        let error = up.endpoint.lost(&format_args!("it laid the connection down (reason {})", reason.0));
        self.take_out_of_use(service, place);
        for id in refused {
            self.fail(id, &error);
        }
        for id in waiting {
            self.ask_again(id);
        }
        self.fill(place);
    }

    fn head_said(&mut self, place: usize, id: u32, fields: Fields, end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.reply.source_done {
            // Nobody waits for more.
        } else if !head::is_reply(&fields, stream.head_sent) {
            self.broke_rules(id, "header fields that no reply has");
        } else if !stream.head_sent {
            stream.head_sent = !is_informational(&fields);
            if end && !stream.head_sent {
                return self.broke_rules(id, "a first word was its last");
            }
            self.down.head(id, fields.iter(), end);
            if end {
                stream.outcome = Some(Outcome::Runtime(code_of(&fields)));
                stream.reply.source_done = true;
                stream.reply.sink_done = true;
                self.finish(id);
            }
            if let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) {
                up.peer.recycle(fields);
            }
        } else if end {
            stream.outcome = Some(Outcome::Runtime(code_of(&fields)));
            stream.reply.source_done = true;
            let rest = stream.replies.as_mut().map(Replies::rest);
            stream.reply.push(rest.unwrap_or_default());
            stream.reply.end = Some(End::Trailers(Box::new(fields)));
            self.send_reply(id);
        } else {
            self.broke_rules(id, "it has two heads");
        }
    }

    fn data_said(&mut self, id: u32, content: &[u8], length: u32, end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let within = stream.reply.receive(length, STREAM_WINDOW).is_ok();
        if !within || !stream.head_sent || stream.reply.source_done {
            let why =
                if within { "DATA where there can be none" } else { "more DATA than there is room for" };
            self.reply_passed(id, length);
            return self.broke_rules(id, why);
        }
        stream.observation.reply_bytes(content.len());
        if end {
            stream.reply.source_done = true;
            stream.outcome = Some(Outcome::Runtime(Code::Unknown));
        }
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        match &mut stream.replies {
            Some(replies) if replies.maps() => {
                let mapped = replies.map(content, &self.proxy.metrics);
                let rest = if end { replies.rest() } else { bytes::Bytes::new() };
                match mapped {
                    Ok(on) => {
                        on.into_iter().chain([rest]).for_each(|bytes| stream.reply.push(bytes));
                        if end {
                            stream.reply.end = Some(End::Flag);
                        }
                        // Credited when what was made of it has gone.
                        let now = stream.reply.owe(length);
                        self.reply_passed(id, now);
                        self.send_reply(id);
                    }
                    Err(refusal) => {
                        self.reply_passed(id, length);
                        self.fail(id, &refusal);
                    }
                }
            }
            Some(_) => {
                // It goes on first, and may be the last of the call.
                let mut replies = stream.replies.take();
                self.reply_passed(id, length - size);
                self.pass_reply(id, content, end);
                if let Some(replies) = &mut replies {
                    replies.see(content, &self.proxy.metrics);
                }
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.replies = replies;
                }
            }
            None => {
                self.reply_passed(id, length - size);
                self.pass_reply(id, content, end);
            }
        }
    }

    /// The runtime broke the rules on one call; the others go on. A reply that is whole has not suffered.
    fn broke_rules(&mut self, id: u32, why: &str) {
        let words = format!("the container runtime broke the rules of HTTP/2 in its reply: {why}");
        self.fail(id, &Error::new(Kind::Internal, Origin::Runtime, words));
    }

    /// The runtime broke a call off.
    fn reset_said(&mut self, id: u32, reason: Reason) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.reply.source_done {
            // It has answered, and wants no more of the request.
            return self.let_go_of_request(id, None);
        }
        stream.observation.runtime_said(code_of_reset(reason));
        self.unlink(id, None);
        self.remove(id, Some(reason), None);
    }
}

// === impl Up ===

impl Up {
    /// The client's number of a call; nothing if it is over.
    fn call(&self, stream: u32) -> Result<Option<u32>, Fault> {
        if stream >= self.next || stream.is_multiple_of(2) {
            return Err(Fault::protocol("a frame of a stream that nobody opened"));
        }
        Ok(self.calls.get(&stream).copied())
    }
}

fn name_of(service: Service) -> &'static str {
    match service {
        Service::Image => "image",
        Service::Runtime => "runtime",
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

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.upstream_connections.dec();
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
