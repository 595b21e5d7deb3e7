//! One end of a connection that keeps to the rules and does everything else at random: a client, or a runtime that replies
//! with what it was asked.

use std::collections::{BTreeMap, VecDeque};

use tokio::net::UnixStream;

use crate::support::random::Random;
use crate::support::raw_frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PADDED,
    PING, PREFACE, RST_STREAM, RawFrame, SETTINGS, WINDOW_UPDATE, block, frame, padded, reply_end,
    reply_head, room, settings,
};

/// More than any call here needs.
const PLENTY: u32 = 100_000_000;
const WINDOW: u32 = 1_000_000;
const LARGEST: usize = 16_384;

/// One end of a connection.
pub(super) struct Side {
    stream: UnixStream,
    is_client: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The room that crisp gives: to the connection, and to a new call.
    window: i64,
    initial: i64,
    /// Bytes that came and were not credited to the connection.
    received: u32,
    calls: BTreeMap<u32, Call>,
    /// crisp has said its first word.
    is_told: bool,
    preface: bool,
    calm: bool,
    leaves: bool,
    /// To a client: crisp is to end, and may say so.
    pub(super) is_told_to_leave: bool,
    pub(super) is_gone: bool,
}

/// A call as one side knows it.
#[derive(Default)]
pub(super) struct Call {
    to_send: VecDeque<u8>,
    /// Everything to be sent is in it.
    is_whole: bool,
    with_trailers: bool,
    head_sent: bool,
    end_sent: bool,
    window: i64,
    /// To a client: what it will hear.
    asked: Vec<u8>,
    heard: usize,
    received: u32,
    head_came: bool,
    end_came: bool,
    /// It was broken off.
    is_over: bool,
}

impl Call {
    pub(super) fn asking(request: Vec<u8>, with_trailers: bool) -> Self {
        let to_send = request.iter().copied().collect();
        Self { to_send, asked: request, is_whole: true, with_trailers, head_sent: true, ..Self::default() }
    }

    /// A call that is its head alone.
    pub(super) fn ended() -> Self {
        Self { head_sent: true, end_sent: true, ..Self::default() }
    }

    fn is_open(&self) -> bool {
        !(self.is_over || self.end_sent && self.end_came)
    }
}

impl Side {
    pub(super) fn client(stream: UnixStream) -> Self {
        Self {
            stream,
            is_client: true,
            input: Vec::new(),
            output: Vec::new(),
            window: 65_535,
            initial: 65_535,
            received: 0,
            calls: BTreeMap::new(),
            is_told: false,
            preface: false,
            calm: false,
            leaves: false,
            is_told_to_leave: false,
            is_gone: false,
        }
    }

    pub(super) fn runtime(stream: UnixStream) -> Self {
        Self { is_client: false, preface: true, ..Self::client(stream) }
    }

    pub(super) fn put(&mut self, frame: Vec<u8>) {
        self.output.extend(frame);
    }

    pub(super) fn add(&mut self, id: u32, call: Call) {
        self.calls.insert(id, Call { window: self.initial, ..call });
    }

    pub(super) fn may_open_calls(&self) -> bool {
        self.is_told && !self.leaves
    }

    pub(super) fn open_calls(&self) -> Vec<u32> {
        self.calls.iter().filter(|(_, call)| call.is_open()).map(|(id, _)| *id).collect()
    }

    /// Calls that have not been answered.
    pub(super) fn waits_for(&self) -> Vec<u32> {
        self.calls.iter().filter(|(_, call)| !call.is_over && !call.end_came).map(|(id, _)| *id).collect()
    }

    pub(super) fn last_call(&self) -> u32 {
        self.calls.keys().next_back().copied().unwrap_or(0)
    }

    /// A call that is open, or 0.
    pub(super) fn any_call(&self, random: &mut Random) -> u32 {
        let open = self.open_calls();
        if open.is_empty() { 0 } else { open[random.below(open.len())] }
    }

    /// From now on there is room for everything, and everything is read.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        self.put(settings(&[(MAX_CONCURRENT_STREAMS, 1_000), (INITIAL_WINDOW_SIZE, WINDOW)]));
        self.put(room(0, PLENTY));
    }

    pub(super) fn give_up(&mut self, id: u32, words: impl Fn(u32) -> Vec<u8>) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.is_over = true;
            self.put(words(id));
        }
    }

    /// Ends a reply with an error, whether or not all was heard. `alone`: the fields of one that is only a head.
    pub(super) fn answers_early(&mut self, id: u32, alone: &[u8], trailers: &[u8]) -> bool {
        let Some(call) = self.calls.get_mut(&id).filter(|call| !call.end_sent) else { return false };
        let fields = if call.head_sent { trailers } else { alone };
        (call.head_sent, call.end_sent) = (true, true);
        self.put(frame(HEADERS, END_HEADERS | END_STREAM, id, fields));
        true
    }

    /// Gives back the room that was taken.
    pub(super) fn credit(&mut self, id: u32) {
        let taken = match self.calls.get_mut(&id) {
            _ if id == 0 => &mut self.received,
            Some(call) if !call.is_over => &mut call.received,
            _ => return,
        };
        let by = std::mem::take(taken);
        if by > 0 {
            self.put(room(id, by));
        }
    }

    /// Sends a piece of a call, padded or not, as far as there is room.
    pub(super) fn send_some(&mut self, id: u32, random: &mut Random) {
        let Some(call) = self.calls.get_mut(&id).filter(|call| !call.is_over && !call.end_sent) else {
            return;
        };
        if !call.head_sent {
            call.head_sent = true;
            return self.output.extend(reply_head(id));
        }
        let few = [5, 300, LARGEST][random.below(3)];
        let most = if self.calm { LARGEST } else { 1 + random.below(few) };
        let padding = if random.below(4) == 0 { Some(random.bytes(1)[0]) } else { None };
        let extra = padding.map_or(0, |padding| usize::from(padding) + 1);
        let room = usize::try_from(call.window.min(self.window)).unwrap_or(0);
        let length = most.min(call.to_send.len()).min(room.saturating_sub(extra)).min(LARGEST - extra);
        let last = call.is_whole && call.to_send.len() == length;
        if length > 0 || (last && room >= extra && random.below(2) == 0) {
            let piece: Vec<u8> = call.to_send.drain(..length).collect();
            call.end_sent = last && !call.with_trailers;
            let flags = if call.end_sent { END_STREAM } else { 0 };
            let (payload, flags) = match padding {
                Some(padding) => (padded(&piece, padding), flags | PADDED),
                None => (piece, flags),
            };
            call.window -= payload.len() as i64;
            self.window -= payload.len() as i64;
            self.output.extend(frame(DATA, flags, id, &payload));
        }
        if last && call.with_trailers && call.to_send.is_empty() {
            call.end_sent = true;
            let trailers = frame(HEADERS, END_HEADERS | END_STREAM, id, &block(&[("a", "b")]));
            self.output.extend(if self.is_client { trailers } else { reply_end(id) });
        }
    }

    /// Writes what there is; reads and credits everything when calm.
    pub(super) fn turn(&mut self) {
        if self.calm {
            self.read(70_000);
            self.credit(0);
            self.open_calls().into_iter().for_each(|id| self.credit(id));
        }
        while !self.output.is_empty() && !self.is_gone {
            match self.stream.try_write(&self.output) {
                Ok(length) => _ = self.output.drain(..length),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // What was said before is still to be read.
                Err(_) => return self.output.clear(),
            }
        }
    }

    pub(super) fn read(&mut self, most: usize) {
        let mut bytes = vec![0; most];
        match self.stream.try_read(&mut bytes) {
            Ok(0) => self.is_gone = true,
            Ok(length) => self.input.extend(&bytes[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.is_gone = true,
        }
        if self.preface && self.input.len() >= PREFACE.len() {
            self.input.drain(..PREFACE.len());
            self.preface = false;
        }
        while !self.preface
            && let Some([a, b, c, kind, flags, stream @ ..]) = self.input.first_chunk::<9>().copied()
        {
            let end = 9 + u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(payload) = self.input.get(9..end).map(<[u8]>::to_vec) else { return };
            self.input.drain(..end);
            self.came(RawFrame { kind, flags, stream: u32::from_be_bytes(stream), payload });
        }
    }

    fn came(&mut self, frame: RawFrame) {
        let RawFrame { kind, flags, stream: id, payload } = frame;
        let number = |from: usize| u32::from_be_bytes(*payload[from..].first_chunk().unwrap());
        let end = flags & END_STREAM != 0;
        match kind {
            SETTINGS | PING if flags & ACK != 0 => {}
            PING => self.put(crate::support::raw_frames::frame(PING, ACK, 0, &payload)),
            SETTINGS => {
                self.is_told = true;
                for entry in payload.chunks(6).filter(|entry| entry[1] == 4) {
                    let initial = i64::from(u32::from_be_bytes(*entry.last_chunk().unwrap()));
                    self.calls.values_mut().for_each(|call| call.window += initial - self.initial);
                    self.initial = initial;
                }
                self.put(crate::support::raw_frames::frame(SETTINGS, ACK, 0, &[]));
            }
            WINDOW_UPDATE if id == 0 => {
                self.window += i64::from(number(0));
                assert!(self.window <= 64 << 20, "room for more than was sent: {}", self.window);
            }
            WINDOW_UPDATE => {
                let Some(call) = self.calls.get_mut(&id) else { return };
                call.window += i64::from(number(0));
                assert!(call.window <= 1 << 20, "call {id}: room for more than was sent: {}", call.window);
            }
            GOAWAY if self.is_client => {
                assert!(self.is_told_to_leave && number(4) == 0, "crisp goes: {payload:?}");
                self.leaves = true;
                let last = number(0);
                self.calls.iter_mut().filter(|(id, _)| **id > last).for_each(|(_, call)| call.is_over = true);
            }
            GOAWAY => self.is_gone = true,
            RST_STREAM => _ = self.calls.get_mut(&id).map(|call| call.is_over = true),
            HEADERS => {
                assert!(flags & END_HEADERS != 0);
                if !self.is_client && !self.calls.contains_key(&id) {
                    let call = Call { with_trailers: true, ..Call::default() };
                    self.add(id, call);
                }
                let call = self.calls.get_mut(&id).unwrap();
                assert!(call.is_over || !call.end_came, "call {id}: more after its end");
                call.head_came = true;
                (call.end_came, call.is_whole) = (end, call.is_whole || end);
                if self.is_client && payload.windows(13).any(|field| field == b"grpc-status\x010") {
                    assert!(call.is_over || call.heard == call.asked.len(), "call {id}: an end too soon");
                }
            }
            DATA => {
                self.received += payload.len() as u32;
                let call = self.calls.get_mut(&id).unwrap();
                if call.is_over {
                    return;
                }
                assert!(call.head_came && !call.end_came, "call {id}: DATA where there is none");
                call.received += payload.len() as u32;
                let before = call.heard;
                call.heard += payload.len();
                if self.is_client {
                    assert_eq!(call.asked.get(before..call.heard), Some(&payload[..]), "call {id}");
                } else {
                    call.to_send.extend(&payload);
                }
                (call.end_came, call.is_whole) = (end, call.is_whole || end);
            }
            _ => panic!("nobody sends frames of kind {kind}"),
        }
    }
}
