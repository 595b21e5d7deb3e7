//! What the runtime says.

use tonic::Code;

use crate::error::{Error, Kind, Origin};
use crate::http2::{End, Event, Fault, Fields, MOST_WINDOW, Reason, STREAM_WINDOW};
use crate::proxy::head;
use crate::proxy::replies::Replies;
use crate::proxy::session::client::MANY_AT_ONCE;
use crate::proxy::session::sending::{code_of, is_informational};
use crate::proxy::session::{MOST_EFFORT, Session};
use crate::proxy::stream::Outcome;

impl Session {
    pub(super) fn read_runtime(&mut self, place: usize) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        let mut input = up.peer.take_input();
        self.effort = 0;
        loop {
            self.effort += 1;
            let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
            up.unread = self.effort > MOST_EFFORT || self.down.is_overfull() || up.peer.is_overfull();
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
                        self.has_room_for_request(id);
                    }
                }
            }
            Event::Settings { change } => {
                if change != 0 {
                    self.effort += up.calls.len() / MANY_AT_ONCE;
                    for id in up.calls.values() {
                        let Some(stream) = self.streams.get_mut(id) else { continue };
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

    /// The runtime lays a connection down: what it has not looked at is refused, the rest goes on, and what has not been sent
    /// gets a new one.
    fn leaves(&mut self, place: usize, last: u32, reason: Reason) {
        let Some(up) = self.ups.get_mut(place).and_then(Option::as_mut) else { return };
        up.leaving = true;
        let (service, was_used) = (up.service, up.was_used());
        let waiting = std::mem::take(&mut up.waiting);
        let mut refused: Vec<_> =
            up.calls.iter().filter(|(number, _)| **number > last).map(|(_, id)| *id).collect();
        refused.sort_unstable();
        let error = up.endpoint.lost(&format_args!("it laid the connection down (reason {})", reason.0));
        self.take_out_of_use(service, place);
        for id in refused {
            self.refuse(id, &error);
        }
        self.ask_elsewhere(waiting, was_used, &error);
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
            let maps = stream.replies.as_ref().is_some_and(Replies::maps);
            let fields = if maps { head::without_length(fields) } else { fields };
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
                // It goes on first, unless it is the last: a call that has ended is told of, with all that was seen in it.
                let mut replies = stream.replies.take();
                let metrics = self.proxy.metrics.clone();
                let mut see = || replies.iter_mut().for_each(|replies| replies.see(content, &metrics));
                if end {
                    see();
                }
                self.reply_passed(id, length - size);
                self.pass_reply(id, content, end);
                if !end {
                    see();
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
