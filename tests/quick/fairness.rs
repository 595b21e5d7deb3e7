//! Protects: who says much does not keep others from having their turn.

use std::sync::Arc;

use crisp::metrics::Metrics;
use crisp::proxy::router::Router;
use crisp::proxy::upstream::{Endpoint, Endpoints};
use crisp::proxy::{self, Proxy};
use crisp::shutdown::Shutdown;
use tokio::net::{UnixListener, UnixStream};

use crate::support::raw_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING, PREFACE, RawFrames, call_block,
    cancel, frame, head, room, settings,
};

const PATH: &str = "/no.such.Service/Method";

/// crisp without a runtime, a client that is to have its turn, and one that floods.
///
/// Everything runs on the thread of the test, so that nothing happens between two awaits.
async fn scene() -> (tempfile::TempDir, RawFrames, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("crisp.sock");
    let endpoint = Arc::new(Endpoint::unix(dir.path().join("runtime.sock")));
    let proxy = Proxy {
        endpoints: Endpoints { runtime: endpoint.clone(), image: endpoint },
        router: Router::default(),
        metrics: Metrics::new(),
        usage: Arc::default(),
    };
    tokio::spawn(proxy::serve(UnixListener::bind(&socket).unwrap(), proxy, Shutdown::default()));
    let mut other = RawFrames::connect(&socket).await;
    other.settle().await;
    let flood = UnixStream::connect(&socket).await.unwrap();
    flood.writable().await.unwrap();
    flood.try_write(&[PREFACE.to_vec(), settings(&[])].concat()).unwrap();
    flood.readable().await.unwrap();
    let first_words = flood.try_read(&mut [0; 1024]).unwrap();
    assert!(first_words > 0);
    (dir, other, flood)
}

/// Broke: all that one client had said was gone through before anybody else was looked at.
#[tokio::test]
async fn a_flood_of_one_client_leaves_others_their_turn() {
    let (_dir, mut other, flood) = scene().await;
    let sent = flood.try_write(&frame(PING, 0, 0, &[7; 8]).repeat(20_000)).unwrap();
    assert!(sent > 100_000, "{sent}");
    other.settle().await;

    let mut answered = vec![0; sent];
    let answered = flood.try_read(&mut answered).unwrap_or(0);
    assert!(answered < sent / 2, "{answered} of {sent} bytes were answered first");
}

/// Broke: a head that opened no call cost a turn nothing, though a few bytes of it can stand for 16 MiB.
#[tokio::test]
async fn heads_of_no_call_leave_others_their_turn() {
    for what in ["calls", "closed", "trailers", "too large", "no path"] {
        let (_dir, mut other, flood) = scene().await;
        // A field of 4,000 bytes that later heads name with one byte each.
        let large = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'y'; 4_000]].concat();
        let first = frame(HEADERS, END_HEADERS, 1, &[call_block(PATH), large].concat());
        flood.try_write(&[first, cancel(1)].concat()).unwrap();
        other.settle().await;
        let many = |times: usize| vec![0xbe; times];
        let heads = (0..15u32).flat_map(|number| {
            let next = 3 + 2 * number;
            match what {
                "calls" => frame(HEADERS, END_HEADERS, next, &[call_block(PATH), many(4_000)].concat()),
                "closed" => frame(HEADERS, END_HEADERS, 1, &many(4_100)),
                "trailers" => frame(HEADERS, END_HEADERS | END_STREAM, 1, &many(4_100)),
                "too large" => frame(HEADERS, END_HEADERS, next, &many(4_200)),
                _ => frame(HEADERS, END_HEADERS, next, &many(4_100)),
            }
        });
        let heads: Vec<u8> = heads.chain(frame(PING, 0, 0, b"the last")).collect();
        let mut said = vec![0; 1 << 20];
        let _ = flood.try_read(&mut said);
        assert_eq!(flood.try_write(&heads).unwrap(), heads.len());
        other.settle().await;
        let length = flood.try_read(&mut said).unwrap_or(0);
        let all = said[..length].windows(8).any(|text| text == b"the last");
        assert!(!all, "{what}: all were gone through before another had two turns");
    }
}

/// Broke: room for requests went to those that came in the same turn, and never to those that had waited for it.
#[tokio::test]
async fn who_waits_for_the_runtimes_room_comes_before_newcomers() {
    let (dir, mut client, _) = scene().await;
    let listener = UnixListener::bind(dir.path().join("runtime.sock")).unwrap();
    client.write(&[head(1, PATH)]).await;
    let mut runtime = RawFrames::accept(&listener, &[(INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    for _ in 0..5 {
        client.write_data(1, 0, &[7; 16_384]).await;
    }
    client.settle().await;
    // All the room that a connection has at first is taken by now.
    let mut first_words = Vec::new();
    for turn in 0..30 {
        // Written and granted before crisp has its turn.
        for number in 0..3 {
            let stream = 3 + 2 * (3 * turn + number);
            client.write(&[head(stream, PATH)]).await;
            client.write_data(stream, END_STREAM, &[1; 16_384]).await;
        }
        runtime.write(&[room(0, 16_384)]).await;
        let came = runtime.settle().await;
        for frame in came.into_iter().filter(|frame| frame.kind == DATA && frame.stream != 1) {
            if !first_words.contains(&frame.stream) {
                first_words.push(frame.stream);
            }
        }
    }
    let expected: Vec<u32> = (1..=first_words.len() as u32).map(|number| 2 * number + 1).collect();
    assert!(first_words.len() > 10, "{first_words:?}");
    assert_eq!(first_words, expected, "in the order in which they came");
}
