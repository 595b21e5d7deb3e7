//! Protects: the kubelet's connection outlives the runtime. While the runtime is away every call is told so at once,
//! calls that it breaks off end properly, and the first call after it is back succeeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crisp::cri::Method;
use h2::Reason;
use tokio::sync::Semaphore;

use crate::support::binary::Place;
use crate::support::bytes_on_the_wire::{Reply, framed, receive, reset, send};
use crate::support::fake_runtime::{FakeRuntime, Incoming};
use crate::support::h2_client::Client;
use crate::support::in_process::InProcess;
use crate::support::wait::{eventually, soon};

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const UNKNOWN: &str = "/no.such.Service/Method";

/// The message that the runtime is in the middle of when it breaks off.
const MESSAGE: &[u8] = b"\x0a\x0bhello world";

async fn assert_answers(client: &Client) {
    for path in [VERSION, Method::PULL_IMAGE.path()] {
        assert_eq!(client.unary(path, b"").await.unwrap().code(), "0", "{path}");
    }
    assert!(client.is_open());
}

#[tokio::test]
async fn while_the_runtime_is_away_calls_are_told_so_at_once() {
    for crisp in [InProcess::start(), InProcess::released(&[])] {
        calls_are_told_so_at_once(crisp).await;
    }
}

async fn calls_are_told_so_at_once(crisp: InProcess) {
    let client = crisp.client().await;
    for stale in [false, true] {
        if stale {
            drop(std::os::unix::net::UnixListener::bind(crisp.runtime_socket()).unwrap());
        }
        for path in [VERSION, Method::PULL_IMAGE.path(), Method::GET_CONTAINER_EVENTS.path(), UNKNOWN] {
            let mut quickest = Duration::MAX;
            for _ in 0..10 {
                let started = Instant::now();
                let reply = client.unary(path, b"").await.unwrap();
                quickest = quickest.min(started.elapsed());
                assert_eq!(reply.code(), "14", "{path}");
                let endpoint = format!("unix://{}", crisp.runtime_socket().display());
                assert!(reply.message().contains(&endpoint), "{path}: {}", reply.message());
                assert!(reply.body.is_empty() && reply.trailers.is_none(), "a head alone");
            }
            // The quickest, because the machine may be busy: whatever crisp itself waited for would be in each of them.
            assert!(quickest < Duration::from_millis(100), "{path}: {quickest:?}");
        }
    }
    let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::of(&[b""]));
    assert_answers(&client).await;
}

/// Where a reply breaks off.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    BeforeHead,
    AfterHead,
    InMessage,
    BeforeTrailers,
}

impl Point {
    const ALL: [Self; 4] = [Self::BeforeHead, Self::AfterHead, Self::InMessage, Self::BeforeTrailers];

    /// What has been sent by then.
    fn body(self) -> Bytes {
        match self {
            Self::BeforeHead | Self::AfterHead => Bytes::new(),
            Self::InMessage => framed(MESSAGE).slice(..9),
            Self::BeforeTrailers => framed(MESSAGE),
        }
    }

    /// Plays a reply up to this point. Gives the stream if a head was sent.
    async fn play(self, incoming: &mut Incoming) -> Option<h2::SendStream<Bytes>> {
        incoming.read().await.unwrap();
        if self == Self::BeforeHead {
            return None;
        }
        let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
        if !self.body().is_empty() {
            send(&mut stream, self.body(), false).await.unwrap();
        }
        Some(stream)
    }
}

#[tokio::test]
async fn a_connection_lost_at_any_point_ends_the_call_and_nothing_else() {
    for path in [VERSION, Method::PULL_IMAGE.path(), Method::GET_CONTAINER_EVENTS.path()] {
        for point in Point::ALL {
            let crisp = InProcess::start();
            let client = crisp.client().await;
            let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| async move {
                let stream = point.play(&mut incoming).await;
                incoming.connection.cut();
                match stream {
                    Some(mut stream) => reset(&mut stream).await,
                    None => incoming.reset().await,
                }
                .unwrap_err();
            });
            let reply = client.unary(path, b"").await;
            let reply = reply.unwrap_or_else(|error| panic!("{path} {point:?}: {error:?}"));
            assert_eq!(reply.code(), "14", "{path} {point:?}");
            assert_eq!(reply.bytes(), point.body(), "{path} {point:?}: what came before is not lost");
            assert_eq!(reply.trailers.is_some(), point != Point::BeforeHead, "{path} {point:?}");
            drop(runtime);
            let _runtime = FakeRuntime::answering(&crisp.runtime_socket(), Reply::of(&[b""]));
            assert_answers(&client).await;
        }
    }
}

#[tokio::test]
async fn a_reset_goes_on_as_it_came() {
    let reasons = [
        Reason::REFUSED_STREAM,
        Reason::CANCEL,
        Reason::INTERNAL_ERROR,
        Reason::ENHANCE_YOUR_CALM,
        Reason::PROTOCOL_ERROR,
        Reason::NO_ERROR,
        Reason::from(0xdead),
    ];
    for path in [VERSION, Method::PULL_IMAGE.path(), Method::GET_CONTAINER_EVENTS.path()] {
        for (point, reason) in Point::ALL.into_iter().flat_map(|p| reasons.map(|reason| (p, reason))) {
            let crisp = InProcess::start();
            let client = crisp.client().await;
            // A reset discards what is still queued, so it waits until the client has what was sent before.
            let received = Arc::new(Semaphore::new(0));
            let gate = received.clone();
            let _runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| {
                let gate = gate.clone();
                async move {
                    match point.play(&mut incoming).await {
                        None => incoming.respond.send_reset(reason),
                        Some(mut stream) => {
                            let _permit = gate.acquire().await.unwrap();
                            stream.send_reset(reason);
                        }
                    }
                }
            });
            let call = client.ask(path, b"").await;
            let error = match call.head().await {
                Err(error) => error,
                Ok((_, mut body)) => {
                    let mut length = 0;
                    while length < point.body().len() {
                        length += soon("data", body.data()).await.unwrap().unwrap().len();
                    }
                    received.add_permits(1);
                    soon("the reset", receive(&mut body)).await.unwrap_err()
                }
            };
            assert!(error.is_reset() && error.is_remote(), "{path} {point:?} {reason:?}: {error:?}");
            assert_eq!(error.reason(), Some(reason), "{path} {point:?}");
            assert!(client.is_open());
            eventually("the call is over", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_runtime_lays_down_is_replaced() {
    let crisp = InProcess::start();
    let client = crisp.client().await;
    let finish = Arc::new(Semaphore::new(0));
    let gate = finish.clone();
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |incoming| {
        let gate = gate.clone();
        async move {
            if incoming.path() != VERSION {
                let _permit = gate.acquire().await.unwrap();
            }
            incoming.answer(&Reply::of(&[b"x"])).await;
        }
    });
    let waiting = client.ask(UNKNOWN, b"").await;
    eventually("the call waits", || runtime.calls() == 1).await;
    runtime.connections()[0].go_away();
    // Whichever connection a call meets, it is answered.
    while runtime.accepted() < 2 {
        assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
    }
    finish.add_permits(1);
    assert_eq!(waiting.reply().await.unwrap().code(), "0", "the call on the old connection ends there");
    eventually("the old connection is gone", || runtime.connections().len() == 1).await;
}

#[tokio::test]
async fn a_connection_that_the_runtime_throws_away_ends_its_calls_only() {
    let crisp = InProcess::start();
    let client = crisp.client().await;
    let runtime = FakeRuntime::start(&crisp.runtime_socket(), move |mut incoming| async move {
        if incoming.path() == VERSION || incoming.path() == Method::PULL_IMAGE.path() {
            incoming.answer(&Reply::of(&[b""])).await;
        } else {
            let _ = incoming.reset().await;
        }
    });
    let waiting = client.ask(UNKNOWN, b"").await;
    eventually("the call waits", || runtime.calls() == 1).await;
    runtime.connections()[0].abort(Reason::ENHANCE_YOUR_CALM);
    let reply = waiting.reply().await.unwrap();
    assert_eq!(reply.code(), "14");
    assert!(reply.message().contains("lost%20the%20connection"), "{}", reply.message());
    assert_answers(&client).await;
}

/// A separate image service has the calls of the image service, and its loss is no other call's.
#[tokio::test]
async fn image_calls_go_to_the_image_endpoint() {
    let place = Place::new();
    let images = place.path("images.sock");
    let endpoint = format!("unix://{}", images.display());
    let _crisp = place.start("log", &["--image-endpoint", &endpoint]).await;
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::of(&[b"runtime"]));
    let client = place.client().await;
    let away = client.unary(Method::PULL_IMAGE.path(), b"").await.unwrap();
    assert_eq!(away.code(), "14");
    assert!(away.message().contains(&endpoint), "{}", away.message());
    let _images = FakeRuntime::answering(&images, Reply::of(&[b"images"]));
    for (path, answer) in [
        (VERSION, "runtime"),
        (UNKNOWN, "runtime"),
        (Method::PULL_IMAGE.path(), "images"),
        ("/runtime.v1.ImageService/NotYetInvented", "images"),
        ("/runtime.v1alpha2.ImageService/PullImage", "images"),
    ] {
        assert_eq!(client.unary(path, b"").await.unwrap().bytes(), framed(answer.as_bytes()), "{path}");
    }
}
