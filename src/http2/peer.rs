//! One connection: its socket, what has been read and not understood yet, what is to be written, and what both sides
//! have agreed on. It answers what concerns the connection alone; the rest are events.

mod incoming;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use self::incoming::Block;
pub(crate) use self::incoming::Event;
use crate::http2::frame::{self, HEAD, Head, MAX_PAYLOAD, PREFACE, Reason};
use crate::http2::hpack::{Decoder, Encoder};
use crate::http2::input::Input;
use crate::http2::settings::{self, Settings};
use crate::http2::{Field, Fields};

/// A window as measured best for 300 KiB lists; small calls do not care.
pub(crate) const STREAM_WINDOW: u32 = 1024 * 1024;
/// What all calls of a connection together may have waiting here. When that many stand still with a whole window each, the
/// others stand still too.
pub(super) const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
/// grpc-go's limit. A smaller one loses long error messages, and the connection with them.
pub(crate) const HEADER_LIST: usize = 16 * 1024 * 1024;
/// What may wait to be written before DATA waits elsewhere.
const FULL: usize = 256 * 1024;
/// What may wait to be written before nothing is read that could add to it.
const OVERFULL: usize = 4 * 1024 * 1024;
/// Memory that an idle connection keeps for what it writes.
const KEPT: usize = 128 * 1024;

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Peer {
    io: Io,
    input: Input,
    out: BytesMut,
    decoder: Decoder,
    encoder: Encoder,
    /// Room that the other side has left on the connection.
    pub(crate) window: i64,
    pub(crate) settings: Settings,
    /// Bytes of DATA that have no credit yet, and those among them that took no more room here.
    received: u32,
    passed: u32,
    /// A block of header fields that is not whole.
    block: Option<Block>,
    /// Used again, so that a head needs no memory of its own.
    fields: Fields,
}

enum Io {
    Dialling(BoxFuture<'static, io::Result<UnixStream>>),
    Open(UnixStream),
}

// === impl Peer ===

impl Peer {
    /// The server's side of an accepted connection.
    pub(crate) fn accepted(stream: UnixStream) -> Self {
        Self::new(Io::Open(stream), Role::Server)
    }

    /// The client's side of a connection that is being made. What is to be sent waits meanwhile.
    pub(crate) fn dialling(dial: BoxFuture<'static, io::Result<UnixStream>>) -> Self {
        Self::new(Io::Dialling(dial), Role::Client)
    }

    fn new(io: Io, role: Role) -> Self {
        let mut out = BytesMut::new();
        if role == Role::Client {
            out.put_slice(PREFACE);
        }
        settings::put_ours(&mut out, role);
        Self {
            io,
            input: Input::new(role == Role::Server),
            out,
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            window: i64::from(settings::DEFAULT_WINDOW),
            settings: Settings::default(),
            received: 0,
            passed: 0,
            block: None,
            fields: Fields::default(),
        }
    }

    // --- the socket ---

    /// Makes the connection, if it is not there yet.
    pub(crate) fn poll_dial(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Io::Dialling(dial) = &mut self.io else { return Poll::Ready(Ok(false)) };
        dial.as_mut().poll(cx).map_ok(|stream| {
            self.io = Io::Open(stream);
            true
        })
    }

    /// Reads what there is. Zero bytes are the end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Io::Open(stream) = &mut self.io else { return Poll::Pending };
        let mut buffer = ReadBuf::new(self.input.room());
        std::task::ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        let read = buffer.filled().len();
        self.input.filled(read);
        Poll::Ready(Ok(read))
    }

    /// Writes what there is. Ready when all is written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Io::Open(stream) = &mut self.io else { return Poll::Pending };
        while !self.out.is_empty() {
            match std::task::ready!(Pin::new(&mut *stream).poll_write(cx, &self.out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                // Not advanced: the memory is to be used from its beginning again.
                written if written == self.out.len() => self.out.clear(),
                written => bytes::Buf::advance(&mut self.out, written),
            }
        }
        if self.out.capacity() > KEPT {
            self.out = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Forgets what is to be written: nobody takes it.
    pub(crate) fn drop_output(&mut self) {
        self.out = BytesMut::new();
    }

    /// Whether there is nothing left to be written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether DATA may be added to what waits to be written.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() < FULL
    }

    /// Whether DATA of some stream can go out now.
    pub(crate) fn takes_data(&self) -> bool {
        self.has_room() && self.window > 0
    }

    /// Whether so much waits to be written that nothing may be read that adds to it.
    pub(crate) fn is_overfull(&self) -> bool {
        self.out.len() >= OVERFULL
    }

    // --- what comes ---

    /// What has been read, for who goes through its frames. It must come back.
    pub(crate) fn take_input(&mut self) -> Input {
        std::mem::take(&mut self.input)
    }

    pub(crate) fn give_back(&mut self, input: Input) {
        self.input = input;
    }

    /// Memory for the next head.
    pub(crate) fn recycle(&mut self, mut fields: Fields) {
        fields.clear();
        self.fields = fields;
    }

    // --- what goes ---

    /// Writes a block of header fields.
    pub(crate) fn head<'a>(&mut self, stream: u32, fields: impl Iterator<Item = Field<'a>>, end: bool) {
        let start = self.out.len();
        self.out.put_slice(&[0; HEAD]);
        self.encoder.encode(fields, &mut self.out);
        let block = self.out.len() - start - HEAD;
        let flags = if end { frame::END_STREAM } else { 0 };
        let whole = block <= MAX_PAYLOAD;
        let tail = if whole { BytesMut::new() } else { self.out.split_off(start + HEAD + MAX_PAYLOAD) };
        let head = Head {
            length: block.min(MAX_PAYLOAD),
            kind: frame::HEADERS,
            flags: if whole { flags | frame::END_HEADERS } else { flags },
            stream,
        };
        if let Some(place) = self.out.get_mut(start..start + HEAD) {
            place.copy_from_slice(&head.bytes());
        }
        let pieces = tail.len().div_ceil(MAX_PAYLOAD);
        for (number, piece) in tail.chunks(MAX_PAYLOAD).enumerate() {
            let flags = if number + 1 == pieces { frame::END_HEADERS } else { 0 };
            frame::put(&mut self.out, frame::CONTINUATION, flags, stream, piece);
        }
    }

    /// Writes DATA, which must fit a frame and the windows.
    pub(crate) fn data(&mut self, stream: u32, content: &[u8], end: bool) {
        debug_assert!(content.len() <= MAX_PAYLOAD);
        self.window -= content.len() as i64;
        let flags = if end { frame::END_STREAM } else { 0 };
        frame::put(&mut self.out, frame::DATA, flags, stream, content);
    }

    /// How much DATA can be written at once to a stream with that much room.
    pub(crate) fn most_data(&self, window: i64) -> usize {
        usize::try_from(window.min(self.window)).unwrap_or(0).min(MAX_PAYLOAD)
    }

    pub(crate) fn reset(&mut self, stream: u32, reason: Reason) {
        frame::put(&mut self.out, frame::RST_STREAM, 0, stream, &reason.0.to_be_bytes());
    }

    /// Gives a stream more room.
    pub(crate) fn credit(&mut self, stream: u32, by: u32) {
        frame::put(&mut self.out, frame::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    }

    /// Bytes of DATA that came here take no more room, whatever became of their stream.
    pub(crate) fn pass(&mut self, length: u32) {
        self.passed = self.passed.saturating_add(length);
        self.credit_connection();
    }

    /// Bytes that the other side has no credit for and will have none of before something has gone.
    #[cfg(debug_assertions)]
    pub(crate) fn uncredited(&self) -> u32 {
        self.received - self.passed
    }

    /// Gives credit once it is worth a frame: half of the room, or as much as there is left. The rest may be taken by calls
    /// that stand still.
    fn credit_connection(&mut self) {
        let left = CONNECTION_WINDOW.saturating_sub(self.received);
        if self.passed > 0 && self.passed >= left.min(CONNECTION_WINDOW / 2) {
            let credit = std::mem::take(&mut self.passed);
            self.received = self.received.saturating_sub(credit);
            self.credit(0, credit);
        }
    }

    /// Says that streams above `last` are not looked at.
    pub(crate) fn go_away(&mut self, last: u32, reason: Reason) {
        let [a, b, c, d] = last.to_be_bytes();
        let [e, f, g, h] = reason.0.to_be_bytes();
        frame::put(&mut self.out, frame::GOAWAY, 0, 0, &[a, b, c, d, e, f, g, h]);
    }

    pub(crate) fn ping(&mut self) {
        frame::put(&mut self.out, frame::PING, 0, 0, b"crisp...");
    }
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dialling(_) => "Dialling",
            Self::Open(_) => "Open",
        })
    }
}
