//! Protects: whatever both sides do, in whatever order and however it is cut, every call ends, every byte of a reply is the
//! right one, nobody is sent more than there is room for, and no credit is lost. What the session itself must keep to is
//! looked at after each of its turns, in `src/proxy/session/check.rs`.

mod side;

use std::time::{Duration, Instant};

use crisp::cri::plan::{First, OnReply, Step};
use crisp::cri::{Method, Plan, Policy, Raw};
use crisp::wire::Patch;
use futures_util::FutureExt;
use tokio::net::{UnixListener, UnixStream};

use self::side::{Call, Side};
use crate::support::feature::{everywhere, failure, feature};
use crate::support::in_process::InProcess;
use crate::support::random::Random;
use crate::support::raw_frames::{
    END_HEADERS, END_STREAM, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PING,
    PREFACE, block, call_block, cancel, frame, go_away, reset, room, settings,
};
use crate::support::wait::{PATIENCE, eventually};

/// Worlds in one run. `CRISP_WORLDS=1000` for a long one, `CRISP_WORLD=17` to begin with that one.
const WORLDS: u64 = 25;

/// Passed on, and one for each thing that a feature may do.
const METHODS: [Method; 8] = [
    Method::VERSION,
    Method::STATUS,
    Method::PULL_IMAGE,
    Method::REMOVE_IMAGE,
    Method::IMAGE_STATUS,
    Method::LIST_IMAGES,
    Method::LIST_CONTAINERS,
    Method::CONTAINER_STATUS,
];

/// A proxy whose replies are what was asked, whoever gives them.
fn crisp() -> InProcess {
    let all = feature("all", Policy::Open, |call, forward| {
        let step = |action| Step { feature: "all", policy: Policy::Open, action };
        let message = call.message.clone();
        let turn = u64::from(message.first().copied().unwrap_or_default()) % 8;
        let a_moment = tokio::time::sleep(Duration::from_millis(turn));
        match call.method {
            Method::PULL_IMAGE => {
                return Ok(Some(Plan::Delegate(a_moment.map(move |()| Raw::message(&message)).boxed())));
            }
            Method::REMOVE_IMAGE => return Ok(Some(Plan::Reply(Raw::message(&message)))),
            Method::IMAGE_STATUS => {
                let brought = move |()| if turn == 3 { Err(failure()) } else { Ok(Patch::new()) };
                let action = First(a_moment.map(brought).boxed());
                forward.first.push(Step { feature: "all", policy: Policy::Open, action });
                forward.reply.push(step(OnReply::Map(Box::new(|_| Ok(Patch::new())))));
            }
            Method::LIST_IMAGES => forward.reply.push(step(OnReply::Map(Box::new(|_| Ok(Patch::new()))))),
            Method::LIST_CONTAINERS => forward.reply.push(step(OnReply::Observe(Box::new(|_| Ok(()))))),
            Method::CONTAINER_STATUS => forward.reply.push(step(OnReply::Count(1, Box::new(|_| ())))),
            _ => {}
        }
        Ok(None)
    });
    InProcess::with(|_, _| everywhere(vec![all]))
}

/// One client of crisp, and the runtime behind it on however many connections.
struct World {
    random: Random,
    client: Side,
    runtimes: Vec<Side>,
    listener: UnixListener,
    most_calls: usize,
    next: u32,
    /// Everybody now does what is needed to come to an end.
    calm: bool,
}

/// What becomes of a world's crisp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It is told to end when half of the time is over, and made to at the end.
    Ends,
}

impl World {
    async fn new(crisp: &InProcess, seed: u64) -> Self {
        let _ = std::fs::remove_file(crisp.runtime_socket());
        let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
        let mut random = Random::seeded(seed);
        let mut client = Side::client(UnixStream::connect(crisp.socket()).await.unwrap());
        client.put(PREFACE.to_vec());
        let window = [0, 1, 10, 1_000, 65_535][random.below(5)];
        client.put(settings(&[(HEADER_TABLE_SIZE, 0), (INITIAL_WINDOW_SIZE, window)]));
        let most_calls = 5 + random.below(60);
        Self { random, client, runtimes: Vec::new(), listener, most_calls, next: 1, calm: false }
    }

    fn accept(&mut self) {
        while let Some(Ok((stream, _))) = self.listener.accept().now_or_never() {
            let mut runtime = Side::runtime(stream);
            let calls = [1, 2, 5, 1_000][self.random.below(4)];
            let window = [0, 7, 500, 65_535, 1_000_000][self.random.below(5)];
            runtime.put(settings(&[(MAX_CONCURRENT_STREAMS, calls), (INITIAL_WINDOW_SIZE, window)]));
            if self.calm {
                runtime.calm_down();
            }
            self.runtimes.push(runtime);
        }
    }

    fn open_call(&mut self) {
        if self.client.open_calls().len() >= self.most_calls || !self.client.may_open_calls() {
            return;
        }
        let (id, random) = (self.next, &mut self.random);
        self.next += 2;
        let method = METHODS[random.below(METHODS.len())];
        // Crisp's own answers are to one whole message.
        let own = matches!(method, Method::PULL_IMAGE | Method::REMOVE_IMAGE);
        let most =
            if random.below(12) == 0 { 1_500_000 } else { [1, 3, 500, 20_000, 60_000][random.below(5)] };
        let mut request = Vec::new();
        for _ in 0..if own { 1 } else { 1 + random.below(3) } {
            let size = random.below(most);
            request.push(u8::from(!own && random.below(20) == 0));
            request.extend(u32::try_from(size).unwrap().to_be_bytes());
            let first = random.bytes(1)[0];
            request.extend((0u8..251).cycle().take(size).map(|byte| byte.wrapping_add(first)));
        }
        if !own && random.below(10) == 0 {
            request.truncate(random.below(request.len()));
        }
        let (ends, with_trailers) = (random.below(12) == 0, random.below(2) == 0);
        let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
        self.client.put(frame(HEADERS, flags, id, &call_block(method.path())));
        self.client.add(id, if ends { Call::ended() } else { Call::asking(request, with_trailers) });
    }

    /// Something that a client may do.
    fn client_acts(&mut self) {
        let (client, random) = (&mut self.client, &mut self.random);
        let id = client.any_call(random);
        match random.below(if self.calm { 4 } else { 14 }) {
            0 | 1 => client.read(1 + random.below(70_000)),
            2..=4 => client.send_some(id, random),
            5 | 6 => self.open_call(),
            7 if random.below(3) == 0 => client.give_up(id, cancel),
            8 => client.credit(id),
            9 => client.credit(0),
            10 if random.below(4) == 0 => {
                client.put(settings(&[(INITIAL_WINDOW_SIZE, [0, 1, 100, 70_000][random.below(4)])]));
            }
            11 => client.put(frame(PING, 0, 0, &[1; 8])),
            12 if id != 0 => client.put(room(id, 1 + random.below(3_000) as u32)),
            13 => client.put(room(0, 1 + random.below(3_000) as u32)),
            _ => {}
        }
    }

    /// Something that a runtime may do.
    fn runtime_acts(&mut self) {
        if self.runtimes.is_empty() {
            return;
        }
        let (which, random) = (self.random.below(self.runtimes.len()), &mut self.random);
        let runtime = &mut self.runtimes[which];
        let id = runtime.any_call(random);
        match random.below(if self.calm { 5 } else { 16 }) {
            0 | 1 => runtime.read(1 + random.below(70_000)),
            2..=5 => runtime.send_some(id, random),
            6 => runtime.credit(0),
            7 => runtime.credit(id),
            8 if random.below(4) == 0 => {
                let reason = random.below(12) as u32;
                runtime.give_up(id, |id| reset(id, reason));
            }
            9 if random.below(6) == 0 => {
                let window = [0, 1, 1_000, 100_000][random.below(4)];
                let calls = [0, 1, 3, 100][random.below(4)];
                runtime.put(settings(&[(INITIAL_WINDOW_SIZE, window), (MAX_CONCURRENT_STREAMS, calls)]));
            }
            10 => runtime.put(frame(PING, 0, 0, &[2; 8])),
            11 if id != 0 => runtime.put(room(id, 1 + random.below(3_000) as u32)),
            12 => runtime.put(room(0, 1 + random.below(3_000) as u32)),
            13 if random.below(8) == 0 => {
                let fields = block(&[(":status", "200"), ("grpc-status", "5")]);
                let answer = runtime.answers_early(id, &fields, &block(&[("grpc-status", "5")]));
                if answer && random.below(2) == 0 {
                    runtime.give_up(id, |id| reset(id, 0));
                }
            }
            14 if random.below(300) == 0 => runtime.is_gone = true,
            15 if random.below(200) == 0 => {
                let last = [0x7fff_ffff, runtime.last_call()][random.below(2)];
                runtime.put(go_away(last, 0));
            }
            _ => {}
        }
    }

    /// Everybody reads, and gives all the room there is.
    fn calm_down(&mut self) {
        self.calm = true;
        self.client.calm_down();
        self.runtimes.iter_mut().for_each(Side::calm_down);
    }

    async fn live(mut self, crisp: &InProcess, seed: u64, fate: Fate) {
        let steps = 300 + self.random.below(2_000);
        let mut calm_since = Instant::now();
        for step in 0.. {
            if fate == Fate::Ends && step == steps / 2 {
                self.client.is_told_to_leave = true;
                crisp.shutdown.release();
            }
            if step == steps {
                self.calm_down();
                calm_since = Instant::now();
                if fate == Fate::Ends && seed.is_multiple_of(2) {
                    crisp.shutdown.end();
                }
            }
            if self.calm && self.client.waits_for().is_empty() || self.client.is_gone {
                break;
            }
            assert!(
                !self.calm || calm_since.elapsed() < PATIENCE,
                "these hang: {:?}",
                self.client.waits_for()
            );
            self.accept();
            self.client_acts();
            self.client.turn();
            (0..3).for_each(|_| self.runtime_acts());
            self.runtimes.iter_mut().for_each(Side::turn);
            self.runtimes.retain(|runtime| !runtime.is_gone);
            if step % 4 == 0 {
                tokio::task::yield_now().await;
            }
            if self.calm && step % 64 == 0 {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        }
        if fate == Fate::Ends {
            let closed = || {
                self.client.read(70_000);
                self.client.turn();
                self.runtimes.iter_mut().for_each(|runtime| {
                    runtime.read(70_000);
                    runtime.turn();
                });
                self.client.is_gone
            };
            eventually("crisp lays the connection down", closed).await;
            assert!(self.client.waits_for().is_empty(), "without an end: {:?}", self.client.waits_for());
        }
        assert!(!self.client.is_gone || fate == Fate::Ends, "the client's connection is gone");
    }
}

fn worlds() -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("CRISP_WORLD").unwrap_or(0);
    first..first + number("CRISP_WORLDS").unwrap_or(WORLDS)
}

async fn nothing_is_left(crisp: &InProcess) {
    eventually("no call is left", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    eventually("no connection is left", || crisp.metric("crisp_downstream_connections") == 0.0).await;
    eventually("none to the runtime", || crisp.metric("crisp_upstream_connections") == 0.0).await;
}

#[tokio::test]
async fn whatever_both_sides_do_every_call_ends() {
    let crisp = crisp();
    for seed in worlds() {
        eprintln!("world {seed}");
        World::new(&crisp, seed).await.live(&crisp, seed, Fate::Stays).await;
        nothing_is_left(&crisp).await;
    }
}

#[tokio::test]
async fn whatever_both_sides_do_crisp_can_end() {
    for seed in worlds() {
        eprintln!("world {seed}");
        let crisp = crisp();
        World::new(&crisp, seed).await.live(&crisp, seed, Fate::Ends).await;
        nothing_is_left(&crisp).await;
    }
}
