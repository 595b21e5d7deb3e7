//! What must be true of a session between two turns. Looked at in debug builds, so in every test.

use crate::proxy::session::Session;
use crate::proxy::stream::State;

/// With more calls than these a look costs tests more than it tells them.
const MOST_LOOKED_AT: usize = 100;

impl Session {
    pub(super) fn check(&self) {
        if self.streams.len() > MOST_LOOKED_AT {
            return;
        }
        debug_assert_eq!(self.held, self.streams.values().map(|stream| stream.held).sum::<usize>());
        let mut uncredited = 0;
        for (id, stream) in &self.streams {
            let request = stream.request.owed();
            debug_assert_eq!(stream.request.uncredited(), request, "request {id}, {:?}", stream.state);
            debug_assert!(stream.prepaid <= request, "request {id}: paid {} of {request}", stream.prepaid);
            uncredited += request - stream.prepaid;
            match (&stream.state, stream.link) {
                (State::Passing, Some(_)) => {
                    debug_assert!(!stream.request.is_waiting() || stream.request_listed, "request {id}");
                    debug_assert_eq!(stream.reply.uncredited(), stream.reply.owed(), "reply {id}");
                }
                (State::Queued(_), None) => {
                    debug_assert_eq!(stream.prepaid, request, "call {id} takes room from others");
                    let mut queues = self.ups.iter().flatten();
                    debug_assert!(queues.any(|up| up.waiting.contains(id)), "call {id} waits for nothing");
                }
                (State::Answered, None) => {
                    debug_assert!(stream.reply.is_waiting(), "call {id} is over");
                    debug_assert_eq!(stream.held, 0, "nothing of call {id} is kept");
                }
                (State::Waiting { .. }, None) => {
                    debug_assert_eq!(stream.prepaid, request, "call {id} takes room from others");
                }
                (State::Collecting { .. }, None) => {}
                (state, link) => debug_assert!(false, "call {id}: {state:?}, {link:?}"),
            }
            debug_assert!(!stream.reply.is_waiting() || stream.reply_listed, "reply {id}");
            debug_assert!(!stream.reply.sink_done, "call {id} has ended");
        }
        debug_assert_eq!(self.down.uncredited(), uncredited, "the client's credit");
        for (place, up) in self.ups.iter().enumerate() {
            let Some(up) = up else { continue };
            let links =
                self.streams.values().filter(|stream| stream.link.is_some_and(|link| link.up == place));
            let owed: u32 = links.map(|stream| stream.reply.owed()).sum();
            debug_assert_eq!(up.peer.uncredited(), owed, "the runtime's credit");
            for (number, id) in &up.calls {
                let link = self.streams.get(id).and_then(|stream| stream.link);
                debug_assert!(
                    link.is_some_and(|link| (link.up, link.stream) == (place, *number)),
                    "call {id}"
                );
            }
            debug_assert!(!up.leaving || ![self.image, self.runtime].contains(&Some(place)), "in use");
        }
        for place in [self.image, self.runtime].into_iter().flatten() {
            debug_assert!(self.ups.get(place).is_some_and(Option::is_some), "in use and not there");
        }
    }
}
