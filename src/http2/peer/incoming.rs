//! What comes from the other side, frame by frame.

use crate::http2::Fields;
use crate::http2::frame::{self, Fault, Head, Reason};
use crate::http2::hpack::DecodeError;
use crate::http2::peer::{CONNECTION_WINDOW, HEADER_LIST, Peer};
use crate::http2::settings::MOST_WINDOW;

/// Frames that a block of header fields may come in. Small frames are no reason to read for ever.
const MOST_CONTINUATIONS: usize = 16 * 1024;

/// What came from the other side.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A block of header fields, or nothing if it was too long to be read.
    Head {
        stream: u32,
        fields: Option<Fields>,
        end: bool,
    },
    /// `length` is what counts against windows.
    Data {
        stream: u32,
        content: &'a [u8],
        length: u32,
        end: bool,
    },
    Reset {
        stream: u32,
        reason: Reason,
    },
    /// More room for one stream.
    Room {
        stream: u32,
        by: u32,
    },
    /// More or less room for every stream; perhaps more streams.
    Settings {
        change: i64,
    },
    /// More room for the connection, in [`Peer::window`] already.
    ConnectionRoom,
    /// No stream above `last` will be looked at.
    GoAway {
        last: u32,
        reason: Reason,
    },
    /// Our ping came back.
    Pong,
}

/// A block of header fields that is not whole.
#[derive(Debug)]
pub(super) struct Block {
    stream: u32,
    end: bool,
    bytes: Vec<u8>,
    frames: usize,
}

impl Peer {
    /// Understands one frame. Nothing: it needs nobody's attention.
    pub(crate) fn event<'a>(&mut self, head: Head, payload: &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        if let Some(block) = &self.block
            && (head.kind != frame::CONTINUATION || head.stream != block.stream)
        {
            return Err(Fault::protocol("a block of header fields is interrupted"));
        }
        if !self.settings.told && head.kind != frame::SETTINGS {
            return Err(Fault::protocol("settings do not come first"));
        }
        match head.kind {
            frame::DATA => self.data_came(head, payload).map(Some),
            frame::HEADERS => self.head_came(head, payload),
            frame::CONTINUATION => self.head_goes_on(head, payload),
            frame::RST_STREAM => {
                let reason = exactly_four(payload)?;
                on_stream(head)?;
                Ok(Some(Event::Reset { stream: head.stream, reason: Reason(reason) }))
            }
            frame::SETTINGS => self.settings_came(head, payload),
            frame::PUSH_PROMISE => Err(Fault::protocol("a push, which nobody asked for")),
            frame::PING => {
                let Ok(opaque) = <&[u8; 8]>::try_from(payload) else {
                    return Err(Fault::size("a ping that is not eight bytes"));
                };
                on_connection(head)?;
                if head.has(frame::ACK) {
                    return Ok(Some(Event::Pong));
                }
                // Answered here: passed on, they would be too many for the runtime.
                frame::put(&mut self.out, frame::PING, frame::ACK, 0, opaque);
                Ok(None)
            }
            frame::GOAWAY => {
                on_connection(head)?;
                let words = frame::number(payload).zip(payload.get(4..).and_then(frame::number));
                let (last, reason) = words.ok_or(Fault::size("a short GOAWAY"))?;
                Ok(Some(Event::GoAway { last: last & 0x7fff_ffff, reason: Reason(reason) }))
            }
            frame::WINDOW_UPDATE => self.room_came(head, payload),
            frame::PRIORITY if payload.len() != 5 => Err(Fault::size("a PRIORITY that is not five bytes")),
            // Frames of kinds that nobody knows are to be ignored.
            _ => Ok(None),
        }
    }

    fn data_came<'a>(&mut self, head: Head, payload: &'a [u8]) -> Result<Event<'a>, Fault> {
        on_stream(head)?;
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.received = self.received.saturating_add(length);
        if self.received > CONNECTION_WINDOW {
            return Err(Fault::new(Reason::FLOW_CONTROL_ERROR, "more DATA than the connection has room for"));
        }
        self.credit_connection();
        let content = head.content(payload)?;
        Ok(Event::Data { stream: head.stream, content, length, end: head.has(frame::END_STREAM) })
    }

    fn head_came<'a>(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'a>>, Fault> {
        on_stream(head)?;
        let (stream, end) = (head.stream, head.has(frame::END_STREAM));
        let content = head.content(payload)?;
        if head.has(frame::END_HEADERS) {
            return self.decode(stream, end, content).map(Some);
        }
        self.block = Some(Block { stream, end, bytes: content.to_vec(), frames: 1 });
        Ok(None)
    }

    fn head_goes_on<'a>(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'a>>, Fault> {
        let Some(mut block) = self.block.take() else {
            return Err(Fault::protocol("a CONTINUATION of nothing"));
        };
        block.frames += 1;
        if block.frames > MOST_CONTINUATIONS || block.bytes.len() + payload.len() > HEADER_LIST {
            return Err(Fault::new(Reason::ENHANCE_YOUR_CALM, "a block of header fields without end"));
        }
        block.bytes.extend_from_slice(payload);
        if head.has(frame::END_HEADERS) {
            return self.decode(block.stream, block.end, &block.bytes).map(Some);
        }
        self.block = Some(block);
        Ok(None)
    }

    fn decode<'a>(&mut self, stream: u32, end: bool, block: &[u8]) -> Result<Event<'a>, Fault> {
        let mut fields = std::mem::take(&mut self.fields);
        match self.decoder.decode(block, HEADER_LIST, &mut fields) {
            Ok(()) => Ok(Event::Head { stream, fields: Some(fields), end }),
            Err(DecodeError::TooLarge) => Ok(Event::Head { stream, fields: None, end }),
            Err(DecodeError::Broken) => {
                Err(Fault::new(Reason::COMPRESSION_ERROR, "header fields that cannot be read"))
            }
        }
    }

    fn settings_came<'a>(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'a>>, Fault> {
        on_connection(head)?;
        if head.has(frame::ACK) {
            return if payload.is_empty() {
                Ok(None)
            } else {
                Err(Fault::size("an acknowledgement with words"))
            };
        }
        let before = self.settings.window;
        let smallest = self.settings.read(payload)?;
        self.encoder.set_table_size(smallest);
        self.encoder.set_table_size(self.settings.table);
        frame::put(&mut self.out, frame::SETTINGS, frame::ACK, 0, &[]);
        Ok(Some(Event::Settings { change: i64::from(self.settings.window) - i64::from(before) }))
    }

    fn room_came<'a>(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event<'a>>, Fault> {
        let by = exactly_four(payload)? & 0x7fff_ffff;
        if head.stream != 0 {
            return Ok(Some(Event::Room { stream: head.stream, by }));
        }
        self.window += i64::from(by);
        if by == 0 {
            return Err(Fault::protocol("room for nothing"));
        }
        if self.window > i64::from(MOST_WINDOW) {
            return Err(Fault::window());
        }
        Ok(Some(Event::ConnectionRoom))
    }
}

fn on_stream(head: Head) -> Result<(), Fault> {
    if head.stream == 0 { Err(Fault::protocol("a frame of no stream")) } else { Ok(()) }
}

fn on_connection(head: Head) -> Result<(), Fault> {
    if head.stream == 0 { Ok(()) } else { Err(Fault::protocol("a frame of the connection on a stream")) }
}

fn exactly_four(payload: &[u8]) -> Result<u32, Fault> {
    <[u8; 4]>::try_from(payload)
        .map(u32::from_be_bytes)
        .map_err(|_| Fault::size("a frame that is not four bytes"))
}
