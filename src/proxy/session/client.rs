//! What the client says.

use crate::cri::Method;
use crate::cri::call::grpc_timeout;
use crate::cri::frame::Splitter;
use crate::cri::method::Service;
use crate::error::{Error, Kind, Origin};
use crate::http2::{End, Event, Fault, Fields, HEADER_LIST, MOST_WINDOW, Reason, STREAM_WINDOW};
use crate::proxy::head;
use crate::proxy::observation::Observation;
use crate::proxy::session::{CALL_ITSELF, Leaving, MOST_CALLS, MOST_EFFORT, Session};
use crate::proxy::stream::{State, Stream};

/// Bytes of header fields, and calls whose windows change, that cost as much as a frame.
const MUCH_AT_ONCE: usize = 1024;
pub(super) const MANY_AT_ONCE: usize = 32;

impl Session {
    /// Goes through the frames that have been read, as many as a turn has time for.
    pub(super) fn read_client(&mut self) {
        let mut input = self.down.take_input();
        self.effort = 0;
        while self.leaving < Leaving::Now {
            self.effort += 1;
            // A byte of a head may stand for thousands.
            self.unread = self.down.is_overfull() || self.effort > MOST_EFFORT;
            if self.unread {
                break;
            }
            let done = match input.next_frame() {
                Ok(None) => break,
                Ok(Some((head, payload))) => self
                    .down
                    .event(head, payload)
                    .and_then(|event| event.map_or(Ok(()), |event| self.asked(event))),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = done {
                self.client_fault(fault);
            }
        }
        self.down.give_back(input);
    }

    fn asked(&mut self, event: Event<'_>) -> Result<(), Fault> {
        match event {
            Event::Head { stream, fields, end } => self.head_asked(stream, fields, end)?,
            Event::Data { stream, content, length, end } => {
                self.is_known(stream)?;
                self.data_asked(stream, content, length, end);
            }
            Event::Reset { stream, reason } => {
                self.is_known(stream)?;
                if let Some(call) = self.streams.get_mut(&stream) {
                    // What crisp waits for is what the call asked for.
                    let at_runtime = matches!(call.state, State::Passing | State::Queued(_));
                    call.observation.given_up(if at_runtime { Origin::Runtime } else { Origin::Kubelet });
                }
                self.remove(stream, None, Some(reason));
            }
            Event::Room { stream, by } => {
                self.is_known(stream)?;
                if let Some(call) = self.streams.get_mut(&stream) {
                    call.reply.window += i64::from(by);
                    if by == 0 || call.reply.window > i64::from(MOST_WINDOW) {
                        let why = if by == 0 { Reason::PROTOCOL_ERROR } else { Reason::FLOW_CONTROL_ERROR };
                        self.remove(stream, Some(why), Some(Reason::CANCEL));
                    } else {
                        self.has_room_for_reply(stream);
                    }
                }
            }
            Event::Settings { change } => {
                if change != 0 {
                    self.effort += self.streams.len() / MANY_AT_ONCE;
                    for call in self.streams.values_mut() {
                        call.reply.window += change;
                        if call.reply.window > i64::from(MOST_WINDOW) {
                            return Err(Fault::window());
                        }
                    }
                }
                self.stirred = true;
            }
            Event::ConnectionRoom => self.stirred = true,
            // It opens no more calls here; what it has opened goes on.
            Event::GoAway { .. } => {}
            Event::Pong => self.drained(),
        }
        Ok(())
    }

    /// A stream that was never opened is no stream.
    fn is_known(&self, stream: u32) -> Result<(), Fault> {
        if stream > self.last || stream.is_multiple_of(2) {
            Err(Fault::protocol("a frame of a stream that nobody opened"))
        } else {
            Ok(())
        }
    }

    fn head_asked(&mut self, id: u32, fields: Option<Fields>, end: bool) -> Result<(), Fault> {
        if id.is_multiple_of(2) {
            return Err(Fault::protocol("a client opened a stream with an even number"));
        }
        // Whatever becomes of it, it was read.
        self.effort += fields.as_ref().map_or(HEADER_LIST, Fields::size) / MUCH_AT_ONCE;
        if id > self.last {
            self.last = id;
            if self.leaving >= Leaving::Heard {
                // It was told, and had heard it.
                self.down.reset(id, Reason::REFUSED_STREAM);
            } else {
                self.opened(id, fields, end);
                return Ok(());
            }
        } else if self.streams.contains_key(&id) {
            match fields {
                Some(fields) if end => self.trailers_asked(id, fields),
                _ => self.remove(id, Some(Reason::PROTOCOL_ERROR), Some(Reason::CANCEL)),
            }
            return Ok(());
        }
        // What belongs to a call that is over is read, because header fields refer to earlier ones, and dropped.
        if let Some(fields) = fields {
            if id < self.last && fields.get(b":path").is_some() {
                return Err(Fault::protocol("a client opened a stream with a number below an earlier one"));
            }
            self.down.recycle(fields);
        }
        Ok(())
    }

    /// A call begins.
    fn opened(&mut self, id: u32, fields: Option<Fields>, end: bool) {
        let Some(fields) = fields else { return self.down.reset(id, Reason::ENHANCE_YOUR_CALM) };
        let Some(path) = head::path_of(&fields) else {
            self.down.recycle(fields);
            return self.down.reset(id, Reason::PROTOCOL_ERROR);
        };
        let (method, service) = (Method::of_path(path), Service::of_path(path));
        self.proxy.usage.saw(service);
        let observation = Observation::start(self.proxy.metrics.clone(), method, path, grpc_timeout(&fields));
        let mut stream = Stream::new(method, service, self.down.settings.window, observation);
        if end {
            stream.request.source_done = true;
            stream.request.end = Some(End::Head);
        }
        let size = fields.size() + CALL_ITSELF;
        let looked_at = !end && !self.proxy.router.route(method).is_empty();
        if self.streams.len() >= MOST_CALLS {
            self.streams.insert(id, stream);
            self.down.recycle(fields);
            let words = "too many calls of this client are under way; try again when some have ended";
            self.fail(id, &Error::new(Kind::Exhausted, Origin::Kubelet, words));
        } else if looked_at {
            stream.state = State::Collecting { head: Box::new(fields), splitter: Splitter::default() };
            self.streams.insert(id, stream);
            self.hold(id, size);
        } else {
            self.streams.insert(id, stream);
            let fields = self.ask(id, fields);
            self.down.recycle(fields);
        }
    }

    fn data_asked(&mut self, id: u32, content: &[u8], length: u32, end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return self.down.pass(length) };
        if stream.request.source_done {
            self.down.pass(length);
            return self.remove(id, Some(Reason::STREAM_CLOSED), Some(Reason::CANCEL));
        }
        if stream.request.receive(length, STREAM_WINDOW).is_err() {
            self.down.pass(length);
            return self.remove(id, Some(Reason::FLOW_CONTROL_ERROR), Some(Reason::CANCEL));
        }
        if end {
            stream.request.source_done = true;
        }
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        match &mut stream.state {
            State::Collecting { splitter, .. } => {
                splitter.push_slice(content);
                if end {
                    stream.request.end = Some(End::Flag);
                }
                self.hold(id, content.len());
                self.request_passed(id, length);
                self.collected(id);
            }
            State::Answered => self.request_passed(id, length),
            State::Waiting { .. } | State::Queued(_) => {
                stream.observation.request_bytes(content.len());
                stream.request.push_slice(content);
                if end {
                    stream.request.end = Some(End::Flag);
                }
                // The call's own window holds it back. The connection's must not: others need it, perhaps to come to their end
                // and let this one have its turn.
                stream.prepaid += size;
                // Padding waits for nobody.
                let padding = stream.request.pass(length - size, STREAM_WINDOW);
                self.down.pass(length);
                if let Some(credit) = padding {
                    self.down.credit(id, credit);
                }
                self.hold(id, content.len());
            }
            State::Passing => {
                stream.observation.request_bytes(content.len());
                self.request_passed(id, length - size);
                self.pass_request(id, content, end);
            }
        }
    }

    fn trailers_asked(&mut self, id: u32, fields: Fields) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.request.source_done {
            return self.remove(id, Some(Reason::STREAM_CLOSED), Some(Reason::CANCEL));
        }
        stream.request.source_done = true;
        if matches!(stream.state, State::Answered) {
            return;
        }
        let size = fields.size();
        stream.request.end = Some(End::Trailers(Box::new(fields)));
        self.hold(id, size);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match stream.state {
            State::Collecting { .. } => self.collected(id),
            State::Passing => self.send_request(id),
            State::Waiting { .. } | State::Queued(_) | State::Answered => {}
        }
    }
}
