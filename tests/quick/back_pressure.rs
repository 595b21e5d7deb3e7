//! Protects: crisp holds no more of a stream than its windows, so a slow reader slows its sender and nobody else; and
//! a slow stream still ends whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use crisp::cri::plan::{OnReply, Step};
use crisp::cri::{Method, Policy};
use crisp::intercept::Feature;
use crisp::wire::Patch;
use http::HeaderMap;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use crate::support::bytes_on_the_wire::{Reply, framed, request, send};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::feature::{everywhere, feature};
use crate::support::in_process::InProcess;
use crate::support::raw_frames::{DATA, INITIAL_WINDOW_SIZE, RawFrames, body, head, reply_head, room};
use crate::support::wait::{eventually, soon};

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const UNKNOWN: &str = "/no.such.Service/Method";
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 1024;
const SLOW_READERS: usize = 60;
const LARGE: usize = 300 << 10;
/// Far above all windows and buffers on the way, far below the stream.
const BOUND: usize = 12 << 20;

/// How far the sender of a stream is ahead of its reader.
#[derive(Debug, Default)]
struct Lead {
    sent: AtomicUsize,
    read: AtomicUsize,
    most: AtomicUsize,
}

impl Lead {
    fn sent(&self, bytes: usize) {
        let sent = self.sent.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most.fetch_max(sent - self.read.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes, Ordering::SeqCst);
    }

    fn assert_bounded(&self) {
        let most = self.most.load(Ordering::SeqCst);
        println!("the sender was at most {} KiB ahead", most >> 10);
        assert!((1..BOUND).contains(&most), "{most} bytes ahead");
    }
}

/// The n-th piece of a stream: a whole message that differs from the others.
fn chunk(n: usize) -> Bytes {
    framed(&vec![n.to_le_bytes()[0]; CHUNK - 5])
}

async fn send_stream(stream: &mut h2::SendStream<Bytes>, lead: &Lead) -> Result<(), h2::Error> {
    for n in 0..CHUNKS {
        send(stream, chunk(n), false).await?;
        lead.sent(CHUNK);
    }
    Ok(())
}

async fn read_stream(body: &mut h2::RecvStream, lead: &Lead) {
    let mut position = 0;
    while let Some(piece) = soon("data", body.data()).await {
        let piece = piece.unwrap();
        let mut expected = chunk(position / CHUNK).slice(position % CHUNK..);
        if expected.len() < piece.len() {
            expected = [expected, chunk(position / CHUNK + 1)].concat().into();
        }
        assert!(expected.starts_with(&piece), "byte {position} changed");
        position += piece.len();
        body.flow_control().release_capacity(piece.len()).unwrap();
        lead.read(piece.len());
    }
    assert_eq!(position, CHUNK * CHUNKS, "the stream ends whole");
}

/// A feature for which each message is held until it is whole, and which changes none.
fn mapping() -> Arc<dyn Feature> {
    feature("mapping", Policy::Closed, |_, forward| {
        let action = OnReply::Map(Box::new(|_| Ok(Patch::new())));
        forward.reply.push(Step { feature: "mapping", policy: Policy::Closed, action });
        Ok(None)
    })
}

#[tokio::test]
async fn a_slow_reader_holds_the_runtime_back_and_nobody_else() {
    let cases = [
        (UNKNOWN, InProcess::start()),
        (Method::STREAM_IMAGES.path(), InProcess::start()),
        (Method::GET_CONTAINER_EVENTS.path(), InProcess::with(|_, _| everywhere(vec![mapping()]))),
    ];
    for (path, crisp) in cases {
        let lead = Arc::new(Lead::default());
        let ahead = lead.clone();
        let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
            let lead = ahead.clone();
            async move {
                if incoming.path() == VERSION {
                    incoming.answer(&Reply::of(&[b""])).await;
                    return;
                }
                let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
                send_stream(&mut stream, &lead).await.unwrap();
                stream.send_trailers(Reply::of(&[]).trailers.unwrap()).unwrap();
            }
        });
        let client = crisp.client().await;
        let (_, mut body) = client.ask(path, b"").await.head().await.unwrap();
        for _ in 0..200 {
            assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
        }
        read_stream(&mut body, &lead).await;
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        lead.assert_bounded();
    }
}

#[tokio::test]
async fn a_slow_runtime_holds_the_client_back_and_nobody_else() {
    for path in [UNKNOWN, Method::PULL_IMAGE.path()] {
        let crisp = InProcess::start();
        let lead = Arc::new(Lead::default());
        let ahead = lead.clone();
        let start_reading = Arc::new(Semaphore::new(0));
        let gate = start_reading.clone();
        let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
            let (lead, gate) = (ahead.clone(), gate.clone());
            async move {
                if incoming.path() == VERSION {
                    incoming.answer(&Reply::of(&[b""])).await;
                    return;
                }
                let _permit = gate.acquire().await.unwrap();
                read_stream(&mut incoming.body, &lead).await;
                incoming.reply(&Reply::of(&[b"read"])).await.unwrap();
            }
        });
        let client = crisp.client().await;
        let mut call = client.open(request(path, &HeaderMap::new()), false).await.unwrap();
        let sending = {
            let lead = lead.clone();
            tokio::spawn(async move {
                send_stream(&mut call.request, &lead).await.unwrap();
                call.request.send_data(Bytes::new(), true).unwrap();
                call.response.await
            })
        };
        for _ in 0..200 {
            assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
        }
        start_reading.add_permits(1);
        let response = soon("the reply", sending).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        lead.assert_bounded();
    }
}

/// Readers that stand still must not use up what the others need. More than 64 of them on one connection do: the connection's
/// window is that many times a stream's.
///
/// Broke: with few left, what others had was credited so late that they used up the rest.
#[tokio::test]
async fn many_slow_readers_do_not_block_other_calls() {
    let crisp = InProcess::start();
    let lead = Arc::new(Lead::default());
    let sent = lead.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let lead = lead.clone();
        async move {
            if incoming.path() == VERSION {
                incoming.answer(&Reply::of(&[&vec![7; LARGE]])).await;
                return;
            }
            let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
            let _ = send_stream(&mut stream, &lead).await;
        }
    });
    let client = crisp.client().await;
    let mut standing = Vec::new();
    for _ in 0..SLOW_READERS {
        standing.push(client.ask(UNKNOWN, b"").await.head().await.unwrap());
    }
    eventually("they stand still", || sent.sent.load(Ordering::SeqCst) >= SLOW_READERS << 20).await;
    for _ in 0..100 {
        let reply = soon("a reply", client.unary(VERSION, b"")).await.unwrap();
        assert_eq!((reply.code(), reply.bytes().len()), ("0", LARGE + 5));
    }
    assert_eq!(runtime.running(), SLOW_READERS);
}

/// The same in the other direction.
#[tokio::test]
async fn requests_that_are_not_read_do_not_block_other_calls() {
    let crisp = InProcess::start();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| async move {
        if incoming.path() == VERSION {
            incoming.answer(&Reply::of(&[b""])).await;
            return;
        }
        std::future::pending::<()>().await;
        drop(incoming);
    });
    let client = crisp.client().await;
    let lead = Arc::new(Lead::default());
    let mut standing = tokio::task::JoinSet::new();
    for _ in 0..SLOW_READERS {
        let mut call = client.open(request(UNKNOWN, &HeaderMap::new()), false).await.unwrap();
        let lead = lead.clone();
        standing.spawn(async move { send_stream(&mut call.request, &lead).await });
    }
    eventually("they stand still", || lead.sent.load(Ordering::SeqCst) >= SLOW_READERS << 20).await;
    for _ in 0..100 {
        let reply = soon("a reply", client.unary(VERSION, &vec![7; LARGE])).await.unwrap();
        assert_eq!(reply.code(), "0");
    }
    assert_eq!(runtime.running(), SLOW_READERS);
}

/// Broke: what waited for room was gone through in the same order each time, and the first took all of it.
#[tokio::test]
async fn who_waits_for_room_gets_a_turn() {
    const FRAME: usize = 16_384;
    let crisp = InProcess::start();
    let listener = UnixListener::bind(crisp.runtime_socket()).unwrap();
    // Room for streams, and little for the connection.
    let mut client =
        RawFrames::connect_with(&crisp.socket(), &[(INITIAL_WINDOW_SIZE, i32::MAX as u32)]).await;
    client.write(&[head(1, UNKNOWN), body(1, b"a"), head(3, UNKNOWN), body(3, b"a")]).await;
    let mut runtime = RawFrames::accept(&listener, &[]).await;
    runtime.until(DATA, 3).await;
    runtime.write(&[reply_head(1), reply_head(3)]).await;
    for _ in 0..20 {
        runtime.write_data(1, 0, &[1; FRAME]).await;
    }
    runtime.write_data(3, 0, &[3; FRAME]).await;
    runtime.settle().await;
    // One that never ends.
    let sending = tokio::spawn(async move {
        loop {
            runtime.write_data(1, 0, &[1; FRAME]).await;
        }
    });
    let mut before = 0;
    loop {
        let frame = client.read().await;
        if frame.kind == DATA {
            if frame.stream == 3 {
                break;
            }
            before += frame.payload.len();
            assert!(before < 1 << 20, "{before} bytes came before the first of the other call");
            client.write(&[room(0, frame.payload.len() as u32)]).await;
        }
    }
    sending.abort();
}
