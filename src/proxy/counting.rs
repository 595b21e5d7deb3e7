//! Counts entries of replies that stream past.

use crate::cri::frame::{Piece, Walker};
use crate::cri::plan::{OnReply, Step};
use crate::error::Error;
use crate::proxy::replies::guarded;
use crate::wire::{self, Counter};

/// The messages of one reply, counted by steps that want nothing but a number.
#[derive(Debug)]
pub(super) struct Counting {
    walker: Walker,
    /// One for each step.
    counters: Vec<Counter>,
}

impl Counting {
    /// For a reply that nobody needs as a whole; nothing if somebody does.
    pub(super) fn by(steps: &[Step<OnReply>]) -> Option<Self> {
        let counter = |step: &Step<OnReply>| match &step.action {
            OnReply::Count(field, _) => Some(Counter::new(*field)),
            OnReply::Observe(_) | OnReply::Map(_) => None,
        };
        let counters: Option<Vec<_>> = steps.iter().map(counter).collect();
        Some(Self { walker: Walker::default(), counters: counters? })
    }

    /// Takes what went by. Tells each step of each whole message, and `failed` of what could not be counted.
    pub(super) fn push(
        &mut self,
        chunk: &[u8],
        steps: &mut [Step<OnReply>],
        mut failed: impl FnMut(&Step<OnReply>, Error),
    ) {
        let counters = &mut self.counters;
        self.walker.push(chunk, |piece| match piece {
            Piece::Bytes(bytes) => counters.iter_mut().for_each(|counter| counter.push(bytes)),
            Piece::End => {
                for (step, counter) in steps.iter_mut().zip(counters.iter_mut()) {
                    let OnReply::Count(field, then) = &mut step.action else { continue };
                    let counted = std::mem::replace(counter, Counter::new(*field)).finish();
                    let told = counted.map_err(Error::from).and_then(|number| {
                        guarded(|| {
                            then(number);
                            Ok(())
                        })
                    });
                    if let Err(error) = told {
                        failed(step, error);
                    }
                }
            }
        });
    }
}

/// Counts in a message that was collected for somebody else.
pub(super) fn count(message: &[u8], field: u32, then: &mut (dyn FnMut(u64) + Send)) -> Result<(), Error> {
    wire::count(message, [field]).map(then).map_err(Error::from)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::cri::Policy;
    use crate::cri::frame::Frame;

    /// Two entries, then none, then something that is no message: counted wherever the network cuts.
    #[test]
    fn each_message_is_counted_by_itself() {
        let wire: Vec<u8> = [&b"\x0a\x01a\x0a\x00"[..], b"", b"\x0a\x05a"]
            .iter()
            .flat_map(|message| Frame::of_message(message).into_bytes())
            .collect();
        for cut in 1..wire.len() {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let (told, noted) = (seen.clone(), seen.clone());
            let then = move |number| told.lock().unwrap().push(Some(number));
            let action = OnReply::Count(1, Box::new(then));
            let mut steps = [Step { feature: "test", policy: Policy::Open, action }];
            let mut counting = Counting::by(&steps).unwrap();
            for chunk in wire.chunks(cut) {
                counting.push(chunk, &mut steps, |_, _| noted.lock().unwrap().push(None));
            }
            assert_eq!(*seen.lock().unwrap(), [Some(2), Some(0), None], "cut at {cut}");
        }
    }
}
