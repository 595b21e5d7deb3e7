//! What has been read from a socket, cut into frames.

use crate::http2::frame::{Fault, HEAD, Head, MAX_PAYLOAD, PREFACE};

/// What is read at once. Four of the largest frames.
const SIZE: usize = 64 * 1024;

/// What has been read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// Made when something is first read, and never longer than [`SIZE`].
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// What a client says first is still to come.
    preface: bool,
}

impl Input {
    pub(super) fn new(preface: bool) -> Self {
        Self { preface, ..Self::default() }
    }

    /// Room to read into: at least a whole frame less what is here of it.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer = vec![0; SIZE];
        }
        if self.start == self.end {
            // From the beginning, so that small calls touch few pages.
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < HEAD + MAX_PAYLOAD {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    pub(super) fn filled(&mut self, length: usize) {
        self.end = (self.end + length).min(self.buffer.len());
    }

    /// The next whole frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<(Head, &[u8])>, Fault> {
        let mut here = self.buffer.get(self.start..self.end).unwrap_or_default();
        if self.preface {
            let length = here.len().min(PREFACE.len());
            let (said, rest) = here.split_at(length);
            if !PREFACE.starts_with(said) {
                return Err(Fault::protocol("this is not HTTP/2"));
            }
            if length < PREFACE.len() {
                return Ok(None);
            }
            self.preface = false;
            self.start += length;
            here = rest;
        }
        let Some(head) = Head::read(here) else { return Ok(None) };
        if head.length > MAX_PAYLOAD {
            return Err(Fault::size("a frame larger than was agreed on"));
        }
        let Some(payload) = here.get(HEAD..HEAD + head.length) else { return Ok(None) };
        self.start += HEAD + head.length;
        Ok(Some((head, payload)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http2::frame;

    proptest! {
        /// However the network cuts, the frames are the same.
        #[test]
        fn cutting_does_not_matter(
            lengths in prop::collection::vec(prop_oneof![0usize..40, 16_000usize..=MAX_PAYLOAD], 0..12),
            cuts in prop::collection::vec(1usize..70_000, 1..40),
        ) {
            let mut wire = bytes::BytesMut::from(PREFACE);
            for (number, &length) in lengths.iter().enumerate() {
                let byte = u8::try_from(number).unwrap();
                frame::put(&mut wire, frame::DATA, byte, 1, &vec![byte; length]);
            }
            let mut input = Input::new(true);
            let mut seen = Vec::new();
            let mut rest = &wire[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let room = input.room();
                prop_assert!(!room.is_empty());
                let length = room.len().min(rest.len()).min(*cuts.next().unwrap());
                let (now, later) = rest.split_at(length);
                room[..length].copy_from_slice(now);
                rest = later;
                input.filled(length);
                while let Some((head, payload)) = input.next_frame().unwrap() {
                    prop_assert!(payload.iter().all(|byte| *byte == head.flags));
                    seen.push(payload.len());
                }
            }
            prop_assert_eq!(seen, lengths);
        }

        /// Hostile bytes end in an error or wait for more.
        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..200), preface: bool) {
            let mut input = Input::new(preface);
            input.room()[..bytes.len()].copy_from_slice(&bytes);
            input.filled(bytes.len());
            while let Ok(Some(_)) = input.next_frame() {}
        }
    }
}
