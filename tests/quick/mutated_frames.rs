//! Protects: whatever bytes come from either side, crisp does not panic, does not hang, and serves everybody else.

use std::path::Path;

use tokio::net::UnixListener;

use crate::support::bytes_on_the_wire::Reply;
use crate::support::fake_runtime::FakeRuntime;
use crate::support::in_process::InProcess;
use crate::support::random::Random;
use crate::support::raw_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS,
    PADDED, PING, PREFACE, RawFrames, body, call_block, cancel, frame, go_away, head, padded, reply_end,
    reply_head, reset, room, settings, whole_reply,
};
use crate::support::wait::eventually;

const ROUNDS: u64 = 600;
const PATHS: [&str; 3] =
    ["/no.such.Service/Method", "/runtime.v1.ImageService/ListImages", "/runtime.v1.RuntimeService/Version"];

/// Changes frames at a few places: what they say, their order, their number, their length.
fn mutated(random: &mut Random, mut frames: Vec<Vec<u8>>) -> Vec<u8> {
    for _ in 0..random.below(4) {
        let (one, other) = (random.below(frames.len()), random.below(frames.len()));
        match random.below(6) {
            0 => frames.swap(one, other),
            1 => {
                let again = frames[one].clone();
                frames.insert(other, again);
            }
            2 if frames.len() > 1 => {
                frames.remove(one);
            }
            3 => {
                let length = frames[one].len();
                frames[one].truncate(random.below(length.max(1)));
            }
            _ if !frames[one].is_empty() => {
                // Mostly in the nine bytes that matter most.
                let among = if random.below(3) > 0 { frames[one].len().min(9) } else { frames[one].len() };
                let place = random.below(among);
                frames[one][place] = random.next().to_le_bytes()[0] & [0xff, 0x0f, 0x01][random.below(3)];
            }
            _ => {}
        }
        if frames.is_empty() {
            break;
        }
    }
    frames.concat()
}

fn requests(random: &mut Random) -> Vec<Vec<u8>> {
    let path = PATHS[random.below(PATHS.len())];
    let fields = call_block(path);
    let (first, rest) = fields.split_at(random.below(fields.len()));
    vec![
        settings(&[(INITIAL_WINDOW_SIZE, [0, 3, 65_535][random.below(3)])]),
        head(1, path),
        body(1, b"\0\0\0\0\x03\x0a\x01a"),
        frame(HEADERS, 0, 3, first),
        frame(CONTINUATION, END_HEADERS, 3, rest),
        frame(DATA, PADDED, 3, &padded(b"\0\0\0\0\x03", 7)),
        frame(PING, 0, 0, &[1; 8]),
        frame(DATA, END_STREAM, 3, b"\x0a\x01a"),
        room(0, 1_000),
        head(5, path),
        cancel(5),
        room(3, 9),
        settings(&[(INITIAL_WINDOW_SIZE, 65_535)]),
        head(7, path),
        frame(DATA, 0, 7, b"\0\0"),
        frame(HEADERS, END_HEADERS | END_STREAM, 7, b"\0\x01a\x01b"),
    ]
}

fn replies() -> Vec<Vec<u8>> {
    vec![
        settings(&[(INITIAL_WINDOW_SIZE, 5), (MAX_CONCURRENT_STREAMS, 1)]),
        frame(HEADERS, END_HEADERS, 1, b"\0\x07:status\x03100"),
        reply_head(1),
        frame(DATA, PADDED, 1, &padded(b"\0\0\0\0\x03", 7)),
        frame(PING, 0, 0, &[1; 8]),
        room(1, 100),
        frame(DATA, 0, 1, b"\x0a\x01a"),
        reply_end(1),
        reset(1, 0),
        settings(&[(INITIAL_WINDOW_SIZE, 50), (MAX_CONCURRENT_STREAMS, 7)]),
        go_away(3, 0),
        whole_reply(3, b"\0\0\0\0\0"),
        room(0, 1_000),
    ]
}

fn answering(socket: &Path) -> FakeRuntime {
    FakeRuntime::answering(socket, Reply::of(&[b"\x0a\x01a"]))
}

#[tokio::test]
async fn a_clients_mutated_frames_hurt_nobody_else() {
    let crisp = InProcess::start();
    let _runtime = answering(&crisp.runtime_socket());
    let good = crisp.client().await;
    for seed in 0..ROUNDS {
        let mut random = Random::seeded(seed);
        let frames = requests(&mut random);
        let bytes = mutated(&mut random, frames);
        let mut client = RawFrames::bare(&crisp.socket()).await;
        client.try_write(&[PREFACE, &bytes].concat()).await;
        if seed % 3 == 0 {
            assert_eq!(good.unary(PATHS[1], b"").await.unwrap().code(), "0", "seed {seed}");
        }
        // Either it is told what it did, or it leaves with whatever it left unfinished.
        client.leave().await;
        if seed % 3 == 1 {
            client.last_words().await;
        }
    }
    assert_eq!(good.unary(PATHS[0], b"").await.unwrap().code(), "0");
    // A panic would have left its connection counted.
    eventually("they are gone", || crisp.metric("crisp_downstream_connections") == 1.0).await;
    eventually("so are their calls", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
}

#[tokio::test]
async fn a_runtimes_mutated_frames_end_every_call_they_belong_to() {
    let crisp = InProcess::start();
    for seed in 0..ROUNDS {
        let mut random = Random::seeded(seed);
        let _ = std::fs::remove_file(crisp.runtime_socket());
        let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
        let client = crisp.client().await;
        let path = PATHS[random.below(PATHS.len())];
        let calls = (client.ask(path, b"").await, client.ask(path, b"").await);
        let mut runtime = RawFrames::accept(&listener, &[]).await;
        runtime.until(HEADERS, 3).await;
        drop(listener);

        runtime.try_write(&mutated(&mut random, replies())).await;
        drop(runtime);
        // With an answer or without, they end.
        let _ = calls.0.reply().await;
        let _ = calls.1.reply().await;
        let _ = std::fs::remove_file(crisp.runtime_socket());
        let _next = answering(&crisp.runtime_socket());
        assert_eq!(client.unary(path, b"").await.unwrap().code(), "0", "seed {seed}");
    }
    eventually("all are gone", || crisp.metric("crisp_downstream_connections") == 0.0).await;
    eventually("so are the calls", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    eventually("so are the connections", || crisp.metric("crisp_upstream_connections") == 0.0).await;
}
