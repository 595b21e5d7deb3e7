//! Protects: a caller that gives up is heard by the runtime at once, and by nobody else: not by its other calls,
//! however many it gives up and however many wait.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crisp::cri::Method;
use h2::Reason;
use http::HeaderMap;
use tokio::sync::Semaphore;

use crate::support::bytes_on_the_wire::{Reply, framed, receive, request, reset, send};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::in_process::InProcess;
use crate::support::random::field;
use crate::support::raw_frames::{self, GOAWAY, RST_STREAM, RawFrames};
use crate::support::wait::{eventually, soon};

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const UNKNOWN: &str = "/no.such.Service/Method";

type Resets = Arc<Mutex<Vec<Reason>>>;

/// A runtime that answers Version and otherwise notes how its callers left.
/// `talks`: it sends a head and a message first.
fn patient_runtime(crisp: &InProcess, talks: bool) -> (FakeRuntime, Resets) {
    let resets = Resets::default();
    let noted = resets.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let noted = noted.clone();
        async move {
            if incoming.path() == VERSION {
                incoming.answer(&Reply::of(&[b""])).await;
                return;
            }
            let reason = if talks {
                let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
                send(&mut stream, framed(b"\x0a\x01x"), false).await.unwrap();
                reset(&mut stream).await
            } else {
                incoming.reset().await
            };
            noted.lock().unwrap().extend(reason);
        }
    });
    (runtime, resets)
}

#[tokio::test]
async fn a_waiting_call_that_is_cancelled_is_reset_at_the_runtime() {
    for path in [UNKNOWN, Method::PULL_IMAGE.path(), Method::GET_CONTAINER_EVENTS.path()] {
        let crisp = InProcess::start();
        let (runtime, resets) = patient_runtime(&crisp, false);
        let client = crisp.client().await;
        let call = client.ask(path, b"").await;
        eventually("the call waits", || runtime.calls() == 1).await;
        drop(call);
        eventually("the runtime hears of it", || *resets.lock().unwrap() == [Reason::CANCEL]).await;
        eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
        assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
        let cancelled = crisp.metrics.encode().unwrap();
        assert!(cancelled.contains("code=\"CANCELLED\"} 1"), "{cancelled}");
    }
}

#[tokio::test]
async fn a_stream_that_is_cancelled_in_the_middle_is_reset_at_the_runtime() {
    for path in [UNKNOWN, Method::GET_CONTAINER_EVENTS.path()] {
        // The request is whole, or still open.
        for end in [true, false] {
            let crisp = InProcess::start();
            let (_runtime, resets) = patient_runtime(&crisp, true);
            let client = crisp.client().await;
            let mut call = client.open(request(path, &HeaderMap::new()), false).await.unwrap();
            send(&mut call.request, framed(b""), end).await.unwrap();
            let request = (!end).then_some(call.request);
            let (_, mut body) = soon("a head", call.response).await.unwrap().into_parts();
            assert!(soon("a message", body.data()).await.unwrap().is_ok());
            drop((request, body));
            eventually("the runtime hears of it", || *resets.lock().unwrap() == [Reason::CANCEL]).await;
            eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
        }
    }
}

/// The request is not whole yet: the runtime has seen a part of it, or, if crisp reads the message first, nothing.
#[tokio::test]
async fn a_request_that_is_cancelled_in_the_middle_leaves_nothing_behind() {
    let crisp = InProcess::start();
    let (runtime, resets) = patient_runtime(&crisp, false);
    let client = crisp.client().await;
    for (path, reaches_runtime) in [(UNKNOWN, true), (Method::RUN_POD_SANDBOX.path(), false)] {
        let mut call = client.open(request(path, &HeaderMap::new()), false).await.unwrap();
        send(&mut call.request, framed(b"half a message").slice(..9), false).await.unwrap();
        eventually("the call is under way", || crisp.metric("crisp_calls_in_flight") == 1.0).await;
        if reaches_runtime {
            eventually("the runtime has it", || runtime.calls() == 1).await;
        }
        drop(call);
        eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    }
    eventually("the runtime hears of one", || *resets.lock().unwrap() == [Reason::CANCEL]).await;
    assert_eq!(runtime.calls(), 1);
}

#[tokio::test]
async fn a_client_that_vanishes_takes_its_calls_and_connections_along() {
    let crisp = InProcess::start();
    let tasks = crisp.tasks();
    let (runtime, _) = patient_runtime(&crisp, false);
    let other = crisp.client().await;
    let others_call = other.ask(UNKNOWN, b"").await;
    let client = crisp.client().await;
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(client.ask(UNKNOWN, b"").await);
        calls.push(client.ask(Method::PULL_IMAGE.path(), b"").await);
    }
    eventually("all wait", || runtime.running() == 21).await;
    assert_eq!(runtime.connections().len(), 3, "one for images and one for the rest, per client");
    drop(client);
    eventually("its calls are reset", || runtime.running() == 1).await;
    eventually("its connections are closed", || runtime.connections().len() == 1).await;
    eventually("crisp counts so too", || crisp.metric("crisp_upstream_connections") == 1.0).await;
    drop((calls, others_call, other));
    eventually("nothing is left", || runtime.connections().is_empty() && crisp.tasks() == tasks).await;
    assert_eq!(crisp.metric("crisp_downstream_connections"), 0.0);
    assert_eq!(crisp.metric("crisp_calls_in_flight"), 0.0);
}

/// h2's defaults answer this with GOAWAY, and every other call on the connection dies.
#[tokio::test]
async fn a_burst_of_cancelled_calls_harms_no_other() {
    let crisp = InProcess::start();
    let finish = Arc::new(Semaphore::new(0));
    let gate = finish.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let gate = gate.clone();
        async move {
            let seen = incoming.read().await;
            if seen.is_ok_and(|seen| seen.body == framed(b"stays")) {
                let _permit = gate.acquire().await.unwrap();
                incoming.reply(&Reply::of(&[b"done"])).await.unwrap();
            } else {
                let _ = incoming.reset().await;
            }
        }
    });
    let client = crisp.client().await;
    let mut staying = Vec::new();
    let mut leaving = Vec::new();
    for n in 0..1_500 {
        let path = [VERSION, Method::PULL_IMAGE.path(), UNKNOWN][n % 3];
        if n % 3 == 0 {
            staying.push(client.ask(path, b"stays").await);
        } else {
            leaving.push(client.ask(path, b"leaves").await);
        }
    }
    eventually("all 1,500 wait", || runtime.running() == 1_500).await;
    drop(leaving);
    eventually("1,000 are gone", || runtime.running() == 500).await;
    finish.add_permits(500);
    for call in staying {
        assert_eq!(call.reply().await.unwrap().bytes(), framed(b"done"));
    }
    assert!(client.is_open());
    assert_eq!(runtime.connections().len(), 2, "the runtime's connections were kept too");
}

/// The same in one write: crisp meets the cancellations before it has looked at the calls.
#[tokio::test]
async fn calls_cancelled_as_soon_as_opened_harm_no_other() {
    let crisp = InProcess::start();
    let finish = Arc::new(Semaphore::new(0));
    let gate = finish.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
        let gate = gate.clone();
        async move {
            if incoming.read().await.is_ok() {
                let _permit = gate.acquire().await.unwrap();
                let _ = incoming.reply(&Reply::of(&[b"done"])).await;
            }
        }
    });
    let mut connection = RawFrames::connect(&crisp.socket()).await;
    let mut frames = Vec::new();
    let mut waiting = HashSet::new();
    for n in 0..1_500 {
        let stream = 2 * n + 1;
        let path = [UNKNOWN, Method::PULL_IMAGE.path()][n as usize / 3 % 2];
        frames.push(raw_frames::head(stream, path));
        if n % 3 == 0 {
            frames.push(raw_frames::body(stream, &framed(b"")));
            waiting.insert(stream);
        } else {
            frames.push(raw_frames::cancel(stream));
        }
    }
    connection.write(&frames).await;
    eventually("500 wait", || runtime.running() == 500).await;
    finish.add_permits(500);
    while !waiting.is_empty() {
        let frame = soon("500 replies", connection.read()).await;
        assert_ne!(frame.kind, GOAWAY, "{:?}", Bytes::from(frame.payload));
        assert!(frame.kind != RST_STREAM || !waiting.contains(&frame.stream), "{frame:?}");
        if frame.ends() {
            waiting.remove(&frame.stream);
        }
    }
    // Still a connection like any other.
    finish.add_permits(1);
    connection.write(&[raw_frames::head(9_001, VERSION), raw_frames::body(9_001, &framed(b""))]).await;
    loop {
        let frame = soon("one more reply", connection.read()).await;
        assert_ne!(frame.kind, GOAWAY, "{:?}", Bytes::from(frame.payload));
        if frame.ends() && frame.stream == 9_001 {
            break;
        }
    }
}

#[tokio::test]
async fn version_answers_while_a_thousand_pulls_wait() {
    let crisp = InProcess::start();
    let (runtime, _) = patient_runtime(&crisp, false);
    let client = crisp.client().await;
    let mut pulls = Vec::new();
    for _ in 0..1_000 {
        pulls.push(client.ask(Method::PULL_IMAGE.path(), b"").await);
        pulls.push(client.ask(UNKNOWN, b"").await);
    }
    eventually("all wait", || runtime.running() == 2_000).await;
    let started = std::time::Instant::now();
    assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
    println!("Version took {:?}", started.elapsed());
    assert_eq!(crisp.metric("crisp_calls_in_flight{method=\"PullImage\"}"), 1_000.0);
}

/// A reply that comes before the request is all sent ends the call; the rest of the request is nobody's.
#[tokio::test]
async fn an_early_answer_ends_a_call_whose_request_goes_on() {
    let crisp = InProcess::start();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| async move {
        incoming.reply(&Reply::error("8", "enough")).await.unwrap();
    });
    let client = crisp.client().await;
    let mut call = client.open(request(UNKNOWN, &HeaderMap::new()), false).await.unwrap();
    send(&mut call.request, framed(b"more to come").slice(..7), false).await.unwrap();
    let (head, mut body) = soon("the early answer", call.response).await.unwrap().into_parts();
    assert_eq!(head.headers["grpc-status"], "8");
    assert!(receive(&mut body).await.is_ok());
    eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    assert_eq!(runtime.running(), 0);
    assert!(client.is_open());
}

/// The same for a pull that crisp makes itself. Broke: what could not be sent any more was told as a lost connection.
#[tokio::test]
async fn an_early_answer_to_a_pull_reaches_who_asked() {
    let crisp = InProcess::released(&[]);
    let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| async move {
        // Nothing of the request is read, and nothing more of it is wanted.
        incoming.reply(&Reply::error("8", "too large")).await.unwrap();
    });
    // An annotation of 1 MiB: sixteen times what is sent before the runtime makes room.
    let entry = [field(1, b"a"), field(2, &vec![b'x'; 1 << 20])].concat();
    let image = field(1, &[field(1, b"nginx"), field(2, &entry)].concat());
    let reply = crisp.client().await.unary(Method::PULL_IMAGE.path(), &image).await.unwrap();
    assert_eq!((reply.code(), reply.message()), ("8", "too large"));
}

/// A runtime may limit the calls of a connection: the next ones wait their turn, and those that are cancelled
/// meanwhile leave the queue.
#[tokio::test]
async fn calls_beyond_the_runtimes_limit_wait_their_turn() {
    let crisp = InProcess::start();
    let finish = Arc::new(Semaphore::new(0));
    let gate = finish.clone();
    let runtime = FakeRuntime::limited(&crisp.runtime_socket(), Some(1), move |mut incoming| {
        let gate = gate.clone();
        async move {
            if incoming.read().await.is_ok_and(|seen| seen.body != framed(b"first")) {
                gate.acquire().await.unwrap().forget();
            }
            let _ = incoming.reply(&Reply::of(&[b"done"])).await;
        }
    });
    let client = crisp.client().await;
    // The limit is known once the runtime has answered.
    assert_eq!(client.unary(UNKNOWN, b"first").await.unwrap().code(), "0");
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(client.ask(UNKNOWN, b"").await);
    }
    eventually("all are under way", || crisp.metric("crisp_calls_in_flight") == 10.0).await;
    eventually("one is at the runtime", || runtime.calls() == 2).await;
    calls.drain(3..9);
    eventually("the cancelled ones are gone", || crisp.metric("crisp_calls_in_flight") == 4.0).await;
    finish.add_permits(4);
    for call in calls {
        assert_eq!(call.reply().await.unwrap().bytes(), framed(b"done"));
    }
    assert_eq!(runtime.accepted(), 1);
}
