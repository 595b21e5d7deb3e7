//! What each side tells the other at the beginning, and may change later.

use bytes::BytesMut;

use crate::http2::frame::{self, Fault, MAX_PAYLOAD};
use crate::http2::peer::Role;
use crate::http2::peer::{CONNECTION_WINDOW, HEADER_LIST, STREAM_WINDOW};

/// The room that every stream and connection has until something else is said.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
/// The largest window there may be.
pub(crate) const MOST_WINDOW: u32 = 0x7fff_ffff;

/// Streams that are opened before the other side has said how many it takes: it might refuse them.
const STREAMS_UNTOLD: u32 = 0;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// What the other side has said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Room for a new stream.
    pub(crate) window: u32,
    /// Streams that may be open at once.
    pub(crate) streams: u32,
    /// The table of its decoder.
    pub(super) table: u32,
    /// It has said something.
    pub(super) told: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window: DEFAULT_WINDOW, streams: STREAMS_UNTOLD, table: 4096, told: false }
    }
}

impl Settings {
    /// Takes over what a frame says. Gives the smallest table that it asks for on the way to the last: what did not fit
    /// into that is gone.
    pub(super) fn read(&mut self, payload: &[u8]) -> Result<u32, Fault> {
        let (entries, []) = payload.as_chunks::<6>() else {
            return Err(Fault::size("settings that are cut off"));
        };
        if !std::mem::replace(&mut self.told, true) {
            self.streams = u32::MAX;
        }
        let mut smallest = u32::MAX;
        for &[a, b, c, d, e, f] in entries {
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => {
                    self.table = value;
                    smallest = smallest.min(value);
                }
                ENABLE_PUSH if value > 1 => {
                    return Err(Fault::protocol("a switch that is neither on nor off"));
                }
                MAX_CONCURRENT_STREAMS => self.streams = value,
                INITIAL_WINDOW_SIZE if value > MOST_WINDOW => {
                    return Err(Fault::window());
                }
                INITIAL_WINDOW_SIZE => self.window = value,
                // Longer frames are allowed and not made.
                MAX_FRAME_SIZE if !(MAX_PAYLOAD..1 << 24).contains(&(value as usize)) => {
                    return Err(Fault::protocol("an impossible size of frames"));
                }
                // What is unknown is to be ignored; a limit for lists is advice, and who gave it says no himself.
                _ => {}
            }
        }
        Ok(smallest.min(self.table))
    }
}

/// Writes what we say. No limit for streams: it would let waiting pulls block everything else.
pub(super) fn put_ours(out: &mut BytesMut, role: Role) {
    let limit = u32::try_from(HEADER_LIST).unwrap_or(u32::MAX);
    let mut payload = Vec::with_capacity(18);
    let mut say = |name: u16, value: u32| {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    };
    if role == Role::Client {
        say(ENABLE_PUSH, 0);
    }
    say(INITIAL_WINDOW_SIZE, STREAM_WINDOW);
    say(MAX_HEADER_LIST_SIZE, limit);
    frame::put(out, frame::SETTINGS, 0, 0, &payload);
    let more = CONNECTION_WINDOW - DEFAULT_WINDOW;
    frame::put(out, frame::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_over_or_refused() {
        let read = |entries: &[(u16, u32)]| {
            let payload: Vec<u8> = entries
                .iter()
                .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
                .collect();
            let mut settings = Settings::default();
            settings.read(&payload).map(|smallest| (settings, smallest))
        };
        let (all, smallest) =
            read(&[(1, 50), (1, 100), (2, 0), (3, 7), (4, 9), (5, 1 << 20), (6, 1), (0xff, 3), (4, 10)])
                .unwrap();
        assert_eq!((all.table, smallest, all.streams, all.window), (100, 50, 7, 10));
        assert_eq!(Settings::default().streams, STREAMS_UNTOLD);
        assert_eq!(read(&[]).unwrap().0.streams, u32::MAX, "no limit was named");
        for wrong in [(2, 2), (4, 1 << 31), (5, 16_383), (5, 1 << 24)] {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(Settings::default().read(&[0; 5]).is_err());
    }
}
