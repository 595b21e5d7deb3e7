//! The connections to the runtime, and which call is on which.
//!
//! They belong to one client, so that cancellation and back-pressure stay its own: one for the image service and one for
//! everything else, made when a call needs them and anew after they were lost.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Sleep;

use crate::cri::method::Service;
use crate::error::Error;
use crate::http2::{End, Fault, Fields, Peer, Reason};
use crate::metrics::Counted;
use crate::proxy::head;
use crate::proxy::session::{CALL_ITSELF, Session};
use crate::proxy::stream::{Link, State};
use crate::proxy::upstream::{Endpoint, FIRST_WORD};

/// The last number that a stream can have. A connection that has used them up is left for a new one.
const LAST_NUMBER: u32 = 0x7fff_ffff;

/// One connection to the runtime.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) peer: Peer,
    pub(super) service: Service,
    pub(super) endpoint: Arc<Endpoint>,
    /// The client's numbers of the calls on it, by its own.
    pub(super) calls: HashMap<u32, u32>,
    /// The next number for a call.
    next: u32,
    /// Calls that wait until the runtime takes one more, and some that waited.
    pub(super) waiting: VecDeque<u32>,
    /// It takes no new calls.
    pub(super) leaving: bool,
    /// Nothing can be written to it any more. What it said before is still to be read.
    pub(super) deaf: bool,
    /// Frames of it have been read and not looked at, because too much waited to be written.
    pub(super) unread: bool,
    /// There once it is open.
    open: Option<Counted>,
    /// How long its first word is waited for; nothing once that has come.
    patience: Option<Pin<Box<Sleep>>>,
}

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
            Poll::Pending => return self.lose_if_silent(place, cx),
            Poll::Ready(Ok(false)) => {}
            Poll::Ready(Ok(true)) => up.open = Some(Counted::new(&self.proxy.metrics.upstream_connections)),
            Poll::Ready(Err(error)) => {
                let error = up.endpoint.away(&error);
                return self.not_reached(place, &error);
            }
        }
        // What the client does not read is left with the runtime, and who does not read answers gets no more of them. A first
        // word is heard all the same: whether the runtime is there does not depend on the client.
        if up.patience.is_none() && (!self.down.has_room() || up.peer.is_overfull()) {
            return false;
        }
        if up.unread {
            self.read_runtime(place);
            return true;
        }
        match up.peer.poll_read(cx) {
            Poll::Pending => return self.lose_if_silent(place, cx),
            Poll::Ready(Ok(0)) => {
                let error = up.endpoint.lost(&"it was closed");
                self.lose(place, &error);
            }
            Poll::Ready(Err(error)) => {
                let error = up.endpoint.lost(&error);
                self.lose(place, &error);
            }
            Poll::Ready(Ok(_)) => {
                if up.patience.take().is_some() {
                    self.proxy.metrics.set_upstream_up(name_of(up.service), true);
                    up.endpoint.reached();
                }
                self.read_runtime(place);
            }
        }
        true
    }

    /// Gives up a connection on which the runtime has not said a word in time. Gives whether it did.
    fn lose_if_silent(&mut self, place: usize, cx: &mut Context<'_>) -> bool {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return false };
        let Some(patience) = &mut up.patience else { return false };
        if patience.as_mut().poll(cx).is_pending() {
            return false;
        }
        let error = up.endpoint.silent();
        self.not_reached(place, &error)
    }

    /// There is nobody at the other end. Gives that something happened.
    fn not_reached(&mut self, place: usize, error: &Error) -> bool {
        if let Some(up) = self.ups.get(place).and_then(Option::as_ref) {
            self.proxy.metrics.set_upstream_up(name_of(up.service), false);
        }
        self.lose(place, error);
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
            let error = up.endpoint.lost(&error);
            self.went_deaf(place, &error);
            return true;
        }
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return true };
        let more_room = up.peer.has_room() && !had_room;
        let moved = more_room || (was_overfull && !up.peer.is_overfull());
        self.stirred |= more_room;
        if moved {
            self.fill(place);
        }
        self.close(place);
        moved
    }

    /// Closes a connection that has had its day. Only here, when nobody goes through its words: they must not be taken for
    /// those of the next connection in its place.
    fn close(&mut self, place: usize) {
        if let Some(free) = self.ups.get_mut(place) {
            free.take_if(|up| {
                up.leaving && up.calls.is_empty() && up.waiting.is_empty() && up.peer.is_flushed()
            });
        }
    }

    /// Nothing can be written any more. What it said before it went is still to be read, though perhaps not now: the
    /// calls on it end when that comes to its end. What has not been sent gets a new connection.
    fn went_deaf(&mut self, place: usize, error: &Error) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        (up.deaf, up.leaving) = (true, true);
        up.peer.drop_output();
        self.stirred = true;
        let (service, waiting, was_used) = (up.service, std::mem::take(&mut up.waiting), up.was_used());
        self.take_out_of_use(service, place);
        self.ask_elsewhere(waiting, was_used, error);
    }

    /// A connection is gone, or never came to be.
    pub(super) fn lose(&mut self, place: usize, error: &Error) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::take) else { return };
        tracing::debug!(connection = self.id, %error, "connection to the runtime ended");
        self.take_out_of_use(up.service, place);
        let was_used = up.was_used();
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
        self.ask_elsewhere(up.waiting, was_used, error);
    }

    /// Calls that waited for a connection which is gone get a new one: nothing of them was sent, so that it repeats nothing.
    /// They fail if it never took a call, as the next one would not either.
    pub(super) fn ask_elsewhere(&mut self, waiting: VecDeque<u32>, was_used: bool, error: &Error) {
        for id in waiting {
            if was_used {
                self.ask_again(id);
            } else if self.is_queued(id) {
                self.fail(id, error);
            }
        }
    }

    pub(super) fn take_out_of_use(&mut self, service: Service, place: usize) {
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
            open: None,
            patience: Some(Box::pin(tokio::time::sleep(FIRST_WORD))),
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
        if !up.takes_call() {
            let size = head.size() + CALL_ITSELF;
            stream.state = State::Queued(Box::new(head));
            up.waiting.push_back(id);
            if stream.held == 0 {
                self.hold(id, size);
            }
            return Fields::default();
        }
        let number = up.next;
        up.next += 2;
        up.calls.insert(number, id);
        stream.state = State::Passing;
        stream.link = Some(Link { up: place, stream: number });
        stream.request.window = i64::from(up.peer.settings.window);
        let end = matches!(stream.request.end, Some(End::Head));
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

    /// Sends calls that wait for their turn.
    pub(super) fn fill(&mut self, place: usize) {
        while let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut)
            && up.takes_call()
            && let Some(id) = up.waiting.pop_front()
        {
            self.ask_again(id);
        }
    }

    /// No call that waits for its turn will get one.
    pub(super) fn forget_waiting(&mut self) {
        self.ups.iter_mut().flatten().for_each(|up| up.waiting.clear());
    }

    /// Whether a call still waits: one that was given up stays in the queue until its turn comes.
    fn is_queued(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|stream| matches!(stream.state, State::Queued(_)))
    }

    /// Sends a call that waited, if it still does.
    pub(super) fn ask_again(&mut self, id: u32) {
        if !self.is_queued(id) {
            return;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let State::Queued(head) = std::mem::replace(&mut stream.state, State::Passing) {
            let fields = self.ask(id, *head);
            self.down.recycle(fields);
        }
    }
}

// === impl Up ===

impl Up {
    /// Whether it has ever taken a call.
    pub(super) fn was_used(&self) -> bool {
        self.next > 1
    }

    /// Whether one more call can be sent now. One that does not read what it is sent gets no more of it.
    fn takes_call(&self) -> bool {
        self.calls.len() < self.peer.settings.streams as usize && !self.peer.is_overfull()
    }

    /// The client's number of a call; nothing if it is over.
    pub(super) fn call(&self, stream: u32) -> Result<Option<u32>, Fault> {
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
