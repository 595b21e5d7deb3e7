//! One direction of one call: what waits for room, what room there is, and what is owed to the sender.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::http2::Fields;

/// What ends a direction.
#[derive(Debug)]
pub(crate) enum End {
    /// The flag on the head: there is nothing else. grpc-go tells a handler of an end only if it comes later than the head,
    /// so that it makes a difference.
    Head,
    /// The flag on the last DATA.
    Flag,
    /// A last block of header fields.
    Trailers(Box<Fields>),
}

/// From one side to the other.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Room that the receiver has left for this stream. Below zero after it made its windows smaller.
    pub(crate) window: i64,
    /// What comes after the queue.
    pub(crate) end: Option<End>,
    /// The sender has said all.
    pub(crate) source_done: bool,
    /// The receiver has been told so.
    pub(crate) sink_done: bool,
    queue: VecDeque<Piece>,
    /// Bytes in it.
    queued: usize,
    /// Bytes that the sender sent and has no credit for yet.
    received: u32,
    /// Of these, bytes that no longer take room here.
    passed: u32,
}

/// What waits, and the bytes of the sender that are credited when it has gone. They are not the same where something
/// else was made of what came.
#[derive(Debug)]
struct Piece {
    bytes: Waiting,
    owed: u32,
}

#[derive(Debug)]
enum Waiting {
    Whole(Bytes),
    /// Small pieces come together: a thousand of a byte each would take a hundred times their length.
    Growing(BytesMut),
}

/// How long a growing piece gets.
const GROWN: usize = 16 * 1024;

/// What is no longer than this is copied, because to keep it as it is takes more.
const SMALL: usize = 1024;

/// The sender sent more than it had room for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl Flow {
    /// A direction whose receiver gives that much room.
    pub(crate) fn new(window: u32) -> Self {
        Self { window: i64::from(window), ..Self::default() }
    }

    /// Takes note of what came.
    pub(crate) fn receive(&mut self, length: u32, limit: u32) -> Result<(), Overrun> {
        self.received = self.received.saturating_add(length);
        if self.received > limit { Err(Overrun) } else { Ok(()) }
    }

    /// Bytes of the sender take no more room here. Gives credit to be sent, once it is worth a frame.
    pub(crate) fn pass(&mut self, length: u32, limit: u32) -> Option<u32> {
        self.passed = self.passed.saturating_add(length);
        if self.source_done || self.passed < limit / 2 {
            return None;
        }
        let credit = std::mem::take(&mut self.passed);
        self.received = self.received.saturating_sub(credit);
        Some(credit)
    }

    /// Lets something wait that nothing is owed for.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= SMALL {
            self.grow(&bytes, 0);
        } else {
            self.queued += bytes.len();
            self.queue.push_back(Piece { bytes: Waiting::Whole(bytes), owed: 0 });
        }
    }

    /// Lets what came wait as it is.
    pub(crate) fn push_slice(&mut self, content: &[u8]) {
        self.grow(content, u32::try_from(content.len()).unwrap_or(u32::MAX));
    }

    fn grow(&mut self, content: &[u8], owed: u32) {
        self.queued += content.len();
        if let Some(Piece { bytes: Waiting::Growing(last), owed: owing }) = self.queue.back_mut()
            && last.len() + content.len() <= GROWN
        {
            last.extend_from_slice(content);
            *owing = owing.saturating_add(owed);
        } else if !content.is_empty() {
            self.queue.push_back(Piece { bytes: Waiting::Growing(content.into()), owed });
        }
    }

    /// Lets it go before all that waits; nothing is owed for it.
    pub(crate) fn push_first(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queued += bytes.len();
            self.queue.push_front(Piece { bytes: Waiting::Whole(bytes), owed: 0 });
        }
    }

    /// Bytes that are credited when what waits has gone: who makes something else of what comes must not take in more
    /// than goes out. Gives back what need not wait, because nothing does.
    pub(crate) fn owe(&mut self, length: u32) -> u32 {
        match self.queue.back_mut() {
            None => length,
            Some(last) => {
                last.owed = last.owed.saturating_add(length);
                0
            }
        }
    }

    /// The next piece that waits, at most so much of it, and the bytes of the sender that go with it.
    pub(crate) fn pop(&mut self, most: usize) -> Option<(Bytes, u32)> {
        let first = self.queue.front_mut()?;
        self.queued -= first.bytes.len().min(most);
        if first.bytes.len() <= most {
            return self.queue.pop_front().map(|piece| (piece.bytes.into_bytes(), piece.owed));
        }
        let bytes = match &mut first.bytes {
            Waiting::Whole(bytes) => bytes.split_to(most),
            Waiting::Growing(bytes) => bytes.split_to(most).freeze(),
        };
        let owed = first.owed.min(u32::try_from(most).unwrap_or(u32::MAX));
        first.owed -= owed;
        Some((bytes, owed))
    }

    /// Bytes that wait, of header fields too.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let fields = match &self.end {
            Some(End::Trailers(fields)) => fields.size(),
            Some(End::Head | End::Flag) | None => 0,
        };
        self.queued + fields
    }

    /// Bytes that the sender has no credit for and will have none of before something has gone.
    #[cfg(debug_assertions)]
    pub(crate) fn uncredited(&self) -> u32 {
        self.received - self.passed
    }

    /// Bytes of the sender in what waits. All that are uncredited, or some are lost.
    #[cfg(debug_assertions)]
    pub(crate) fn owed(&self) -> u32 {
        self.queue.iter().map(|piece| piece.owed).sum()
    }

    /// Whether DATA waits.
    pub(crate) fn has_data(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has_data() || self.end.is_some()
    }

    /// The sender is gone, and with it whom the bytes in what waits are owed to. Gives their number: its connection
    /// needs their credit.
    pub(crate) fn forgive(&mut self) -> u32 {
        self.queue.iter_mut().fold(0, |sum, piece| sum.saturating_add(std::mem::take(&mut piece.owed)))
    }

    /// Gives up what waits. Gives the bytes of the sender that were in it: its connection needs their credit.
    pub(crate) fn clear(&mut self) -> u32 {
        self.end = None;
        self.queued = 0;
        self.queue.drain(..).fold(0, |sum, piece| sum.saturating_add(piece.owed))
    }
}

impl Waiting {
    fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Growing(bytes) => bytes.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Growing(bytes) => bytes.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u32 = 64;

    #[test]
    fn a_sender_that_overruns_is_noticed() {
        let mut flow = Flow::new(0);
        assert_eq!(flow.receive(LIMIT, LIMIT), Ok(()));
        assert_eq!(flow.receive(1, LIMIT), Err(Overrun));
    }

    #[test]
    fn small_pieces_wait_together() {
        let mut flow = Flow::new(0);
        (0..100_000).for_each(|_| flow.push_slice(b"x"));
        assert!(flow.queue.len() < 10, "{}", flow.queue.len());
        assert_eq!(flow.clear(), 100_000);
        // Also what was made of what came. Broke: each took a hundred bytes.
        (0..100_000).for_each(|_| flow.push(Bytes::from_static(b"x")));
        assert!(flow.queue.len() < 10, "{}", flow.queue.len());
        assert_eq!(flow.clear(), 0);
    }

    proptest! {
        /// Whatever is done in whatever order: each byte is credited once, and none before it is gone.
        #[test]
        fn every_byte_is_credited_once(steps in prop::collection::vec((0u32..20, 0usize..3, 1usize..9), 0..60)) {
            let mut flow = Flow::new(0);
            let (mut received, mut gone, mut credited, mut waiting) = (0, 0, 0, 0);
            for (length, action, most) in steps {
                match action {
                    0 => {
                        received += length;
                        waiting += length;
                        flow.push_slice(&vec![0; length as usize]);
                        prop_assert!(flow.receive(length, u32::MAX).is_ok());
                    }
                    1 => {
                        received += length;
                        prop_assert!(flow.receive(length, u32::MAX).is_ok());
                        let at_once = flow.owe(length);
                        prop_assert!(at_once == 0 || !flow.has_data());
                        waiting += length - at_once;
                        gone += at_once;
                        credited += flow.pass(at_once, LIMIT).unwrap_or(0);
                    }
                    _ => if let Some((bytes, owed)) = flow.pop(most) {
                        prop_assert!(bytes.len() <= most && !bytes.is_empty());
                        gone += owed;
                        waiting -= owed;
                        credited += flow.pass(owed, LIMIT).unwrap_or(0);
                    },
                }
                prop_assert_eq!(gone + waiting, received);
                prop_assert_eq!(flow.waiting_bytes(), flow.queue.iter().map(|piece| piece.bytes.len()).sum::<usize>());
                prop_assert!(credited <= gone && gone - credited < LIMIT / 2);
                prop_assert_eq!(flow.received, received - credited);
            }
            prop_assert_eq!(flow.clear(), waiting);
        }
    }
}
