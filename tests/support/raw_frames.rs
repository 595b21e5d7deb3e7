//! HTTP/2 frames written and read by hand, for what no well-behaved client does: thousands of them in one write.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A connection of frames.
#[derive(Debug)]
pub(crate) struct RawFrames {
    stream: UnixStream,
}

/// A frame as it was read.
#[derive(Debug)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawFrames {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self { stream }
    }

    /// Writes frames at once.
    pub(crate) async fn write(&mut self, frames: &[Vec<u8>]) {
        self.stream.write_all(&frames.concat()).await.unwrap();
    }

    /// Reads the next frame, answering what the protocol wants answered.
    pub(crate) async fn read(&mut self) -> RawFrame {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.unwrap();
        match kind {
            SETTINGS if flags & ACK == 0 => self.write(&[frame(SETTINGS, ACK, 0, &[])]).await,
            PING if flags & ACK == 0 => self.write(&[frame(PING, ACK, 0, &payload)]).await,
            _ => {}
        }
        RawFrame { kind, flags, stream: u32::from_be_bytes(stream), payload }
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
    let pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in pairs {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The whole body of a call.
pub(crate) fn body(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

/// A cancellation.
pub(crate) fn cancel(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
