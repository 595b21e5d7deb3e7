//! gRPC's framing of messages inside HTTP/2 DATA: one flag byte, four bytes of length, the message.

use bytes::{BufMut, Bytes, BytesMut};

/// Length of the prefix before each message.
pub const PREFIX: usize = 5;

/// The largest message that crisp collects in order to look at it. A larger one passes through unread.
pub const MAX_COLLECTED: usize = 64 * 1024 * 1024;

/// The most that is allocated on the word of a prefix alone; a message is seldom larger.
const EAGER: usize = 1024 * 1024;

/// One framed message, exactly as it came or as it will be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Prefix and message.
    bytes: Bytes,
}

/// Cuts a byte stream into frames. Holds at most one message of [`MAX_COLLECTED`] bytes.
///
/// A frame that came in one chunk is not copied: it shares memory with the chunk.
#[derive(Debug, Default)]
pub struct Splitter {
    /// What came in one chunk. Empty while `buffer` is not.
    chunk: Bytes,
    /// What came in several chunks.
    buffer: BytesMut,
}

/// Follows a byte stream frame by frame without holding any of it.
#[derive(Debug, Default)]
pub struct Walker {
    /// The prefix of the frame at hand, as far as it has come.
    prefix: [u8; PREFIX],
    prefix_length: usize,
    /// What is still to come of its message.
    left: usize,
}

/// What a [`Walker`] comes across.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Some bytes of a message.
    Bytes(&'a [u8]),
    /// The message is complete.
    End,
}

/// The message at hand is larger than crisp collects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

// === impl Frame ===

impl Frame {
    /// Frames an uncompressed message.
    pub fn of_message(message: &[u8]) -> Self {
        let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
        bytes.put_u8(0);
        // A message that crisp itself makes or patches is far below 4 GiB.
        bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        bytes.put_slice(message);
        Self { bytes: bytes.freeze() }
    }

    /// The message, or nothing when it is compressed: then only the two ends can read it.
    pub fn message(&self) -> Option<Bytes> {
        match self.bytes.first() {
            Some(0) => Some(self.bytes.slice(PREFIX..)),
            _ => None,
        }
    }

    /// Prefix and message as they go on the wire.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

// === impl Splitter ===

impl Splitter {
    /// Adds what came from the wire.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() && self.buffer.is_empty() {
            self.chunk = chunk;
            return;
        }
        let first = std::mem::take(&mut self.chunk);
        if let Some(length) = frame_length(&first)
            && length <= PREFIX + MAX_COLLECTED
        {
            // One allocation instead of a growing one. A prefix is only a claim, so it is not believed without bound.
            self.buffer.reserve(length.min(EAGER).max(first.len() + chunk.len()));
        }
        self.buffer.extend_from_slice(&first);
        self.buffer.extend_from_slice(&chunk);
    }

    /// Adds what came from the wire and is somebody else's memory.
    pub fn push_slice(&mut self, chunk: &[u8]) {
        if self.chunk.is_empty() && self.buffer.is_empty() {
            match frame_length(chunk) {
                // More is to come: it is collected where there is room for all of it.
                Some(length) if length > chunk.len() && length <= PREFIX + MAX_COLLECTED => {
                    self.buffer.reserve(length.min(EAGER).max(chunk.len()));
                    self.buffer.extend_from_slice(chunk);
                }
                _ => self.chunk = Bytes::copy_from_slice(chunk),
            }
        } else if self.chunk.is_empty() {
            self.buffer.extend_from_slice(chunk);
        } else {
            self.push(Bytes::copy_from_slice(chunk));
        }
    }

    /// Takes the next whole frame, if it is all here.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, TooLarge> {
        let here = if self.buffer.is_empty() { &self.chunk[..] } else { &self.buffer[..] };
        let Some(length) = frame_length(here) else { return Ok(None) };
        if length > PREFIX + MAX_COLLECTED {
            return Err(TooLarge);
        }
        if here.len() < length {
            return Ok(None);
        }
        let bytes = if self.buffer.is_empty() {
            self.chunk.split_to(length)
        } else {
            self.buffer.split_to(length).freeze()
        };
        Ok(Some(Frame { bytes }))
    }

    /// Everything that has not become a frame.
    pub fn into_rest(self) -> Bytes {
        if self.buffer.is_empty() { self.chunk } else { self.buffer.freeze() }
    }
}

// === impl Walker ===

impl Walker {
    /// Takes what came from the wire and shows the messages in it, except compressed ones.
    pub fn push(&mut self, mut chunk: &[u8], mut see: impl FnMut(Piece<'_>)) {
        while !chunk.is_empty() {
            let in_prefix = self.prefix_length < PREFIX;
            let wanted = if in_prefix { PREFIX - self.prefix_length } else { self.left };
            let (piece, rest) = chunk.split_at(wanted.min(chunk.len()));
            chunk = rest;
            if in_prefix {
                for (place, byte) in self.prefix.iter_mut().skip(self.prefix_length).zip(piece) {
                    *place = *byte;
                }
                self.prefix_length += piece.len();
                if self.prefix_length < PREFIX {
                    return;
                }
                self.left = frame_length(&self.prefix).map_or(0, |length| length - PREFIX);
            } else {
                self.left -= piece.len();
            }
            let readable = self.prefix.first() == Some(&0);
            if readable && !in_prefix {
                see(Piece::Bytes(piece));
            }
            if self.left == 0 {
                self.prefix_length = 0;
                if readable {
                    see(Piece::End);
                }
            }
        }
    }
}

/// Length of the frame that starts here, prefix included, once its prefix is here.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [_, a, b, c, d] = *bytes.first_chunk::<PREFIX>()?;
    Some(PREFIX + u32::from_be_bytes([a, b, c, d]) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the network cuts the bytes, the frames are the same and nothing is lost.
        #[test]
        fn cutting_does_not_matter(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            tail in prop::collection::vec(any::<u8>(), 0..PREFIX),
            cut in 1usize..17,
        ) {
            let frames: Vec<Frame> = messages.iter().map(|m| Frame::of_message(m)).collect();
            let mut wire: Vec<u8> = frames.iter().flat_map(|f| f.bytes.to_vec()).collect();
            wire.extend_from_slice(&tail);
            let mut splitter = Splitter::default();
            let mut seen = Vec::new();
            for chunk in wire.chunks(cut) {
                splitter.push(Bytes::copy_from_slice(chunk));
                while let Ok(Some(frame)) = splitter.next_frame() {
                    seen.push(frame);
                }
            }
            prop_assert_eq!(&seen, &frames);
            let rest = splitter.into_rest();
            prop_assert_eq!(rest.as_ref(), tail.as_slice());

            let (mut splitter, mut copied) = (Splitter::default(), Vec::new());
            for chunk in wire.chunks(cut) {
                splitter.push_slice(chunk);
                while let Ok(Some(frame)) = splitter.next_frame() {
                    copied.push(frame);
                }
            }
            prop_assert_eq!(&copied, &frames);
            let rest = splitter.into_rest();
            prop_assert_eq!(rest.as_ref(), tail.as_slice());

            let (mut walker, mut current, mut walked) = (Walker::default(), Vec::new(), Vec::new());
            for chunk in wire.chunks(cut) {
                walker.push(chunk, |piece| match piece {
                    Piece::Bytes(bytes) => current.extend_from_slice(bytes),
                    Piece::End => walked.push(std::mem::take(&mut current)),
                });
            }
            prop_assert_eq!(&walked, &messages);
        }
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_collected() {
        let mut splitter = Splitter::default();
        splitter.push(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]));
        assert_eq!(splitter.next_frame(), Err(TooLarge));
        assert_eq!(splitter.into_rest().len(), 8);
    }

    /// Broke: five bytes made crisp reserve 64 MiB, and three thousand open calls 192 GiB; where memory is not
    /// overcommitted that ends the process.
    #[test]
    fn a_claimed_length_reserves_little() {
        let mut splitter = Splitter::default();
        splitter.push(Bytes::from_static(&[0, 3, 0xff, 0xff, 0xff]));
        splitter.push(Bytes::from_static(&[0]));
        assert!(splitter.buffer.capacity() <= 2 * EAGER, "{}", splitter.buffer.capacity());
    }

    #[test]
    fn a_compressed_message_is_not_walked() {
        let mut seen = Vec::new();
        let see = |piece: Piece<'_>| seen.push(format!("{piece:?}"));
        Walker::default().push(&[1, 0, 0, 0, 1, 9, 0, 0, 0, 0, 1, 8, 1, 0, 0, 0, 0], see);
        assert_eq!(seen, ["Bytes([8])", "End"]);
    }

    #[test]
    fn a_compressed_message_is_not_readable() {
        let mut splitter = Splitter::default();
        splitter.push(Bytes::from_static(&[1, 0, 0, 0, 1, 9]));
        let frame = splitter.next_frame().unwrap().unwrap();
        assert_eq!(frame.message(), None);
        assert_eq!(frame.into_bytes().as_ref(), &[1, 0, 0, 0, 1, 9]);
    }
}
