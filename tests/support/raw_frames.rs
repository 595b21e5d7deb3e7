//! HTTP/2 frames written and read by hand, for what no well-behaved client or runtime does.

use std::collections::HashMap;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::wait::soon;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DEFAULT_WINDOW: i64 = 65_535;

/// A connection of frames.
#[derive(Debug)]
pub(crate) struct RawFrames {
    stream: UnixStream,
    /// Room that the other side gives its streams at first.
    initial: i64,
    /// Room that it gave beyond that, less what was sent. The connection is number 0.
    room: HashMap<u32, i64>,
    /// The highest number whose head has come.
    opened: u32,
}

/// A frame as it was read.
#[derive(Debug)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawFrames {
    /// A client's connection that wants nothing special.
    pub(crate) async fn connect(socket: &Path) -> Self {
        Self::connect_with(socket, &[]).await
    }

    /// A client's connection with these settings.
    pub(crate) async fn connect_with(socket: &Path, said: &[(u16, u32)]) -> Self {
        let mut frames = Self::bare(socket).await;
        frames.write(&[PREFACE.to_vec(), settings(said)]).await;
        frames
    }

    /// A client's connection on which nothing has been said.
    pub(crate) async fn bare(socket: &Path) -> Self {
        Self::new(UnixStream::connect(socket).await.unwrap())
    }

    /// A runtime's connection with these settings, when it comes.
    pub(crate) async fn accept(listener: &UnixListener, said: &[(u16, u32)]) -> Self {
        let mut frames = Self::accepted(listener).await;
        frames.write(&[settings(said)]).await;
        frames
    }

    /// A runtime's connection on which it has said nothing.
    pub(crate) async fn accepted(listener: &UnixListener) -> Self {
        let (stream, _) = soon("a connection", listener.accept()).await.unwrap();
        let mut frames = Self::new(stream);
        let mut preface = [0; PREFACE.len()];
        soon("a preface", frames.stream.read_exact(&mut preface)).await.unwrap();
        assert_eq!(preface, PREFACE);
        frames
    }

    fn new(stream: UnixStream) -> Self {
        Self { stream, initial: DEFAULT_WINDOW, room: HashMap::new(), opened: 0 }
    }

    /// Writes frames at once.
    pub(crate) async fn write(&mut self, frames: &[Vec<u8>]) {
        assert!(self.try_write(&frames.concat()).await, "the connection is gone");
    }

    /// Writes bytes. Whether they could be.
    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> bool {
        soon("room to write", self.stream.write_all(bytes)).await.is_ok()
    }

    /// Writes DATA as soon as there is room for it. Gives how many bytes of DATA came meanwhile.
    pub(crate) async fn write_data(&mut self, stream: u32, flags: u8, payload: &[u8]) -> usize {
        let length = i64::try_from(payload.len()).unwrap();
        let mut came = 0;
        while self.room_of(stream) < length {
            let frame = self.read().await;
            if frame.kind == DATA {
                came += frame.payload.len();
            }
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        }
        self.write(&[frame(DATA, flags, stream, payload)]).await;
        for window in [0, stream] {
            *self.room.entry(window).or_default() -= length;
        }
        came
    }

    fn room_of(&self, stream: u32) -> i64 {
        let more = |number| self.room.get(&number).copied().unwrap_or_default();
        (DEFAULT_WINDOW + more(0)).min(self.initial + more(stream))
    }

    /// Reads the next frame, answering what the protocol wants answered.
    pub(crate) async fn read(&mut self) -> RawFrame {
        self.next().await.unwrap_or_else(|| panic!("the connection ended"))
    }

    /// The same; nothing at the end.
    pub(crate) async fn next(&mut self) -> Option<RawFrame> {
        soon("a frame", self.next_frame()).await
    }

    async fn next_frame(&mut self) -> Option<RawFrame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes(stream);
        match kind {
            SETTINGS if flags & ACK == 0 => {
                for entry in payload.chunks(6) {
                    if entry[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                        self.initial = i64::from(number(&entry[2..]));
                    }
                }
                self.try_write(&frame(SETTINGS, ACK, 0, &[])).await;
            }
            PING if flags & ACK == 0 => {
                self.try_write(&frame(PING, ACK, 0, &payload)).await;
            }
            HEADERS => self.opened = self.opened.max(stream),
            WINDOW_UPDATE => *self.room.entry(stream).or_default() += i64::from(number(&payload)),
            _ => {}
        }
        Some(RawFrame { kind, flags, stream, payload })
    }

    /// Reads until such a frame comes.
    pub(crate) async fn until(&mut self, kind: u8, stream: u32) -> RawFrame {
        loop {
            let frame = self.read().await;
            if (frame.kind, frame.stream) == (kind, stream) {
                return frame;
            }
        }
    }

    /// Reads until a stream has been opened, if it has not been.
    pub(crate) async fn until_opened(&mut self, stream: u32) {
        while self.opened < stream {
            self.read().await;
        }
    }

    /// Reads a reply to its end, whatever else comes. Gives its body and the last header block of it.
    pub(crate) async fn reply(&mut self, stream: u32) -> (Vec<u8>, Vec<u8>) {
        let (mut body, mut last) = (Vec::new(), Vec::new());
        loop {
            let frame = self.read().await;
            if frame.stream != stream {
                assert_ne!(frame.kind, GOAWAY, "{frame:?}");
                continue;
            }
            let ends = frame.ends();
            match frame.kind {
                DATA => body.extend(frame.payload),
                HEADERS => last = frame.payload,
                WINDOW_UPDATE => {}
                _ => panic!("{frame:?}"),
            }
            if ends {
                return (body, last);
            }
        }
    }

    /// Waits until all that was written so far has been dealt with, and what came of it has come. Gives that.
    pub(crate) async fn settle(&mut self) -> Vec<RawFrame> {
        let mut came = Vec::new();
        // What the first has stirred up comes before the answer to the second.
        for number in 0..2 {
            self.write(&[frame(PING, 0, 0, &[number; 8])]).await;
            loop {
                let frame = self.read().await;
                if frame.kind == PING && frame.flags & ACK != 0 {
                    assert_eq!(frame.payload, [number; 8]);
                    break;
                }
                came.push(frame);
            }
        }
        came
    }

    /// Says nothing more.
    pub(crate) async fn leave(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Reads to the end of the connection. Gives the reason that was said, if any was.
    pub(crate) async fn last_words(&mut self) -> Option<u32> {
        let mut reason = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                reason = Some(number(&frame.payload[4..]));
            }
        }
        reason
    }
}

impl RawFrame {
    /// Whether the sender has said all on this stream.
    pub(crate) fn ends(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// The head of a call; its headers are literals, so that nothing depends on what was sent before.
pub(crate) fn head(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &call_block(path))
}

/// The header fields of a call.
pub(crate) fn call_block(path: &str) -> Vec<u8> {
    call_block_to("localhost", path)
}

/// The header fields of a call to somebody else.
pub(crate) fn call_block_to(authority: &str, path: &str) -> Vec<u8> {
    block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// Header fields as literals.
pub(crate) fn block(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in pairs {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The head of a reply.
pub(crate) fn reply_head(stream: u32) -> Vec<u8> {
    let fields = block(&[(":status", "200"), ("content-type", "application/grpc")]);
    frame(HEADERS, END_HEADERS, stream, &fields)
}

/// The end of a successful reply.
pub(crate) fn reply_end(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("grpc-status", "0")]))
}

/// A whole reply.
pub(crate) fn whole_reply(stream: u32, body: &[u8]) -> Vec<u8> {
    [reply_head(stream), frame(DATA, 0, stream, body), reply_end(stream)].concat()
}

/// The whole body of a call.
pub(crate) fn body(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

/// A cancellation.
pub(crate) fn cancel(stream: u32) -> Vec<u8> {
    reset(stream, 8)
}

pub(crate) fn reset(stream: u32, reason: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &reason.to_be_bytes())
}

/// More room.
pub(crate) fn room(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let entries =
        entries.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
    frame(SETTINGS, 0, 0, &entries.collect::<Vec<_>>())
}

pub(crate) fn go_away(last: u32, reason: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat())
}

/// A payload with padding around it.
pub(crate) fn padded(payload: &[u8], padding: u8) -> Vec<u8> {
    [&[padding][..], payload, &vec![0; usize::from(padding)]].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)) & 0x7fff_ffff
}
