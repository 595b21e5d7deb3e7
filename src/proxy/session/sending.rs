//! What goes out: pieces as far as there is room, answers of crisp itself, and the end of a call.

use std::collections::VecDeque;

use crate::cri::Raw;
use crate::cri::raw::error_trailers;
use crate::error::Error;
use crate::http2::{End, Field, Fields, Flow, Peer, Reason, STREAM_WINDOW};
use crate::proxy::head;
use crate::proxy::session::Session;
use crate::proxy::stream::{Outcome, State};

impl Session {
    // --- from the client to the runtime ---

    /// Passes DATA of the request on, or lets it wait its turn.
    pub(super) fn pass_request(&mut self, id: u32, content: &[u8], end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(link) = stream.link else { return };
        let Some(up) = self.ups.get_mut(link.up).and_then(Option::as_mut) else { return };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        if can_pass(&stream.request, &up.peer, content) {
            up.peer.data(link.stream, content, end);
            stream.request.window -= i64::from(size);
            stream.request.sink_done = end;
            self.request_passed(id, size);
        } else {
            stream.request.push_slice(content);
            if end {
                stream.request.end = Some(End::Flag);
            }
            self.send_request(id);
        }
    }

    /// Sends what waits of a request, as far as there is room.
    pub(super) fn send_request(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(link) = stream.link else { return };
        let Some(up) = self.ups.get_mut(link.up).and_then(Option::as_mut) else { return };
        let passed = send(&mut stream.request, &mut up.peer, link.stream);
        if stream.request.is_waiting() && !stream.request_listed {
            stream.request_listed = true;
            self.requests_waiting.push_back(id);
        }
        self.request_passed(id, passed);
        self.hold_no_more(id);
    }

    /// The runtime gives a request room. Others are not looked at for its sake, unless it is their turn anyway.
    pub(super) fn has_room_for_request(&mut self, id: u32) {
        if !self.stirred && self.streams.get(&id).is_some_and(|stream| stream.request_listed) {
            self.send_request(id);
        }
    }

    /// Bytes of a request take no more room here.
    pub(super) fn request_passed(&mut self, id: u32, length: u32) {
        if length == 0 {
            return;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return self.down.pass(length) };
        let paid = length.min(stream.prepaid);
        stream.prepaid -= paid;
        self.down.pass(length - paid);
        if let Some(credit) = stream.request.pass(length, STREAM_WINDOW) {
            self.down.credit(id, credit);
        }
    }

    // --- from the runtime, or crisp, to the client ---

    /// Passes DATA of the reply on, or lets it wait its turn.
    pub(super) fn pass_reply(&mut self, id: u32, content: &[u8], end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        if can_pass(&stream.reply, &self.down, content) {
            self.down.data(id, content, end);
            stream.reply.window -= i64::from(size);
            stream.reply.sink_done = end;
            self.reply_passed(id, size);
            if end {
                self.finish(id);
            }
        } else {
            stream.reply.push_slice(content);
            if end {
                stream.reply.end = Some(End::Flag);
            }
            self.send_reply(id);
        }
    }

    /// Sends what waits of a reply, as far as there is room, and ends the call with it.
    pub(super) fn send_reply(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let passed = send(&mut stream.reply, &mut self.down, id);
        if stream.reply.is_waiting() && !stream.reply_listed {
            stream.reply_listed = true;
            self.replies_waiting.push_back(id);
        }
        let done = stream.reply.sink_done;
        self.reply_passed(id, passed);
        if done {
            self.finish(id);
        }
    }

    /// The client gives a reply room; see [`Session::has_room_for_request`].
    pub(super) fn has_room_for_reply(&mut self, id: u32) {
        if !self.stirred && self.streams.get(&id).is_some_and(|stream| stream.reply_listed) {
            self.send_reply(id);
        }
    }

    /// Bytes of a reply take no more room here.
    pub(super) fn reply_passed(&mut self, id: u32, length: u32) {
        if length == 0 {
            return;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(link) = stream.link else { return };
        let Some(up) = self.ups.get_mut(link.up).and_then(Option::as_mut) else { return };
        up.peer.pass(length);
        if let Some(credit) = stream.reply.pass(length, STREAM_WINDOW) {
            up.peer.credit(link.stream, credit);
        }
    }

    /// Sends what waits, now that there may be room. Who finds none stays first, who got some comes last next time.
    pub(super) fn send_what_waits(&mut self) {
        let mut stay = VecDeque::new();
        for _ in 0..self.requests_waiting.len() {
            let Some(id) = self.requests_waiting.pop_front() else { break };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let up = stream.link.and_then(|link| self.ups.get(link.up)?.as_ref());
            if up.is_some_and(|up| !up.peer.takes_data()) {
                stay.push_back(id);
            } else {
                stream.request_listed = false;
                self.send_request(id);
            }
        }
        stay.append(&mut self.requests_waiting);
        self.requests_waiting = stay;
        for _ in 0..self.replies_waiting.len() {
            if !self.down.takes_data() {
                break;
            }
            let Some(id) = self.replies_waiting.pop_front() else { break };
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.reply_listed = false;
                self.send_reply(id);
            }
        }
    }

    // --- crisp's own words ---

    /// Answers a call with a whole reply that is not from the runtime's stream for it.
    pub(super) fn answer(&mut self, id: u32, raw: &Raw) {
        self.let_go_of_request(id, Some(Reason::CANCEL));
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.outcome = Some(Outcome::Answered(raw.clone()));
        stream.head_sent = true;
        let only_head = raw.trailers().is_none() && raw.body().is_empty();
        self.down.head(id, head::fields_of(Some(raw.status()), raw.head()).iter(), only_head);
        if only_head {
            stream.reply.sink_done = true;
            return self.finish(id);
        }
        for chunk in raw.body() {
            stream.observation.reply_bytes(chunk.len());
            stream.reply.push(chunk.clone());
        }
        stream.reply.end = Some(match raw.trailers() {
            Some(trailers) => End::Trailers(Box::new(head::fields_of(None, trailers))),
            None => End::Flag,
        });
        self.send_reply(id);
    }

    /// Ends a call with an error of crisp, whatever has been sent so far.
    pub(super) fn fail(&mut self, id: u32, error: &Error) {
        let head_sent = match self.streams.get_mut(&id) {
            // Its last word has been said and only waits for room.
            Some(stream) if stream.reply.end.is_some() => {
                return self.let_go_of_request(id, Some(Reason::CANCEL));
            }
            Some(stream) => {
                stream.observation.failed(error);
                stream.outcome = None;
                stream.head_sent
            }
            None => return,
        };
        self.let_go_of_request(id, Some(Reason::CANCEL));
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if head_sent {
            stream.reply.end = Some(End::Trailers(Box::new(head::fields_of(None, &error_trailers(error)))));
            self.send_reply(id);
        } else {
            let raw = Raw::error(error);
            self.down.head(id, head::fields_of(Some(raw.status()), raw.head()).iter(), true);
            stream.reply.sink_done = true;
            self.finish(id);
        }
    }

    /// Ends a call that the runtime has not looked at. Who hears that may try it again without a second thought, and does.
    pub(super) fn refuse(&mut self, id: u32, error: &Error) {
        match self.streams.get_mut(&id) {
            Some(stream) if !stream.head_sent => {
                stream.observation.failed(error);
                self.remove(id, Some(Reason::REFUSED_STREAM), None);
            }
            _ => self.fail(id, error),
        }
    }

    /// The runtime has no more part in a call, and what is left of the request has no receiver: it is read and credited
    /// all the same. If the runtime does not know that yet, it is told with this reason.
    pub(super) fn let_go_of_request(&mut self, id: u32, reason: Option<Reason>) {
        self.unlink(id, reason);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.state = State::Answered;
        let given_up = stream.request.clear();
        self.request_passed(id, given_up);
        self.hold_no_more(id);
    }

    // --- the end ---

    /// The client has the whole reply.
    pub(super) fn finish(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.note_outcome();
        // Who still talks is asked to stop.
        let to_client = (!stream.request.source_done).then_some(Reason::NO_ERROR);
        self.remove(id, to_client, Some(Reason::CANCEL));
    }

    /// Forgets a call. Each side that does not know of its end yet is told this.
    pub(super) fn remove(&mut self, id: u32, to_client: Option<Reason>, to_runtime: Option<Reason>) {
        self.unlink(id, to_runtime);
        let Some(mut stream) = self.streams.remove(&id) else { return };
        self.held -= stream.held;
        if let Some(reason) = to_client {
            self.down.reset(id, reason);
        }
        self.down.pass(stream.request.clear().saturating_sub(stream.prepaid));
        // Who never makes room never has the lists gone through.
        let queues = self.ups.iter_mut().flatten().map(|up| &mut up.waiting);
        for list in [&mut self.requests_waiting, &mut self.replies_waiting].into_iter().chain(queues) {
            if list.len() > 2 * self.streams.len() + MANY {
                list.retain(|id| self.streams.contains_key(id));
            }
        }
        if self.streams.is_empty() && self.streams.capacity() > MANY {
            // After a burst.
            self.streams.shrink_to(MANY);
        }
    }
}

/// Calls whose places are kept when all are gone.
const MANY: usize = 256;

/// Whether DATA can go on as it is: nothing waits before it, and there is room.
fn can_pass(flow: &Flow, to: &Peer, content: &[u8]) -> bool {
    !flow.is_waiting() && to.has_room() && (content.is_empty() || content.len() <= to.most_data(flow.window))
}

/// Sends what waits, as far as there is room. Gives the bytes of the sender that took no more room here.
fn send(flow: &mut Flow, to: &mut Peer, stream: u32) -> u32 {
    let mut passed = 0u32;
    while flow.has_data() {
        let most = to.most_data(flow.window);
        if most == 0 || !to.has_room() {
            return passed;
        }
        let Some((bytes, owed)) = flow.pop(most) else { break };
        let last = !flow.has_data() && matches!(flow.end, Some(End::Flag));
        to.data(stream, &bytes, last);
        flow.window -= bytes.len() as i64;
        passed = passed.saturating_add(owed);
        if last {
            flow.end = None;
            flow.sink_done = true;
        }
    }
    match flow.end.take() {
        Some(End::Head | End::Flag) => to.data(stream, &[], true),
        Some(End::Trailers(fields)) => to.head(stream, fields.iter(), true),
        None => return passed,
    }
    flow.sink_done = true;
    passed
}

/// The code at the end of a reply.
pub(super) fn code_of(fields: &Fields) -> tonic::Code {
    fields.get(b"grpc-status").map_or(tonic::Code::Unknown, tonic::Code::from_bytes)
}

/// Whether a head is only a first word: another will come.
pub(super) fn is_informational(fields: &Fields) -> bool {
    fields.iter().any(|Field { name, value, .. }| name == b":status" && value.first() == Some(&b'1'))
}
