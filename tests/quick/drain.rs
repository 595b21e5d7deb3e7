//! Protects: an orderly end. The sockets are free at once, calls under way finish, endless streams end with
//! UNAVAILABLE when their time is over, and the process ends with 0.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::sync::Semaphore;

use crate::support::binary::Place;
use crate::support::bytes_on_the_wire::{Reply, framed, send};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::{eventually, soon};

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const PULL: &str = "/runtime.v1.ImageService/PullImage";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

/// A runtime whose pulls wait, and whose events come one per permit.
struct SlowRuntime {
    fake: FakeRuntime,
    steps: Arc<Semaphore>,
    /// Pulls that have arrived. crisp's own first look at the runtime is not among them.
    pulls: Arc<AtomicUsize>,
}

fn slow_runtime(place: &Place) -> SlowRuntime {
    let (steps, pulls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (gate, arrived) = (steps.clone(), pulls.clone());
    let fake = FakeRuntime::start(&place.runtime(), move |mut incoming| {
        let (gate, arrived) = (gate.clone(), arrived.clone());
        async move {
            match incoming.path() {
                PULL => {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    incoming.answer(&Reply::of(&[b"pulled"])).await;
                }
                EVENTS => {
                    incoming.read().await.unwrap();
                    let mut stream = incoming.head(&Reply::of(&[]), false).unwrap();
                    loop {
                        tokio::select! {
                            _ = std::future::poll_fn(|cx| stream.poll_reset(cx)) => return,
                            permit = gate.acquire() => permit.unwrap().forget(),
                        }
                        send(&mut stream, framed(b""), false).await.unwrap();
                    }
                }
                _ => drop(incoming.answer(&Reply::of(&[b""])).await),
            }
        }
    });
    SlowRuntime { fake, steps, pulls }
}

#[tokio::test]
async fn a_successor_takes_the_socket_while_calls_finish() {
    let place = Place::new();
    let SlowRuntime { fake: _fake, steps, pulls } = slow_runtime(&place);
    let mut first = place.start("first", &["--drain-max", "10m"]).await;
    let client = place.client().await;
    let waiting = client.ask(PULL, b"").await;
    eventually("the pull waits", || pulls.load(Ordering::SeqCst) == 1).await;
    first.signal(Signal::TERM);
    eventually("the sockets are released", || !place.socket().exists() && !place.admin().exists()).await;
    let second = place.start("second", &[]).await;
    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0", "the successor serves");
    assert!(!first.has_ended());
    steps.add_permits(1);
    assert_eq!(waiting.reply().await.unwrap().bytes(), framed(b"pulled"));
    assert_eq!(soon("the first to end", first.exit()).await.code(), Some(0));
    assert!(place.socket().exists() && place.admin().exists(), "they are the successor's");
    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0");
    drop(second);
}

#[tokio::test]
async fn a_stream_lives_until_the_drain_time_is_over() {
    let place = Place::new();
    let SlowRuntime { fake: _fake, steps, pulls } = slow_runtime(&place);
    let mut running = place.start("log", &["--drain-max", "1s"]).await;
    let client = place.client().await;
    let (_, mut body) = client.ask(EVENTS, b"").await.head().await.unwrap();
    let pull = client.ask(PULL, b"").await;
    eventually("the pull waits", || pulls.load(Ordering::SeqCst) == 1).await;
    let started = Instant::now();
    running.signal(Signal::TERM);
    eventually("the socket is released", || !place.socket().exists()).await;
    while let Some(piece) = {
        steps.add_permits(1);
        soon("an event or the end", body.data()).await
    } {
        assert_eq!(piece.unwrap(), Bytes::from_static(&[0; 5]));
    }
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "14");
    assert!(trailers["grpc-message"].to_str().unwrap().starts_with("crisp:%20"), "{trailers:?}");
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    let code = pull.reply().await.unwrap();
    assert!(["0", "14"].contains(&code.code()), "{code:?}");
    assert_eq!(running.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let SlowRuntime { fake: _fake, pulls, .. } = slow_runtime(&place);
        let mut running = place.start("log", &["--drain-max", "10m"]).await;
        let client = place.client().await;
        let waiting = client.ask(PULL, b"").await;
        eventually("the pull waits", || pulls.load(Ordering::SeqCst) == 1).await;
        running.signal(Signal::TERM);
        eventually("the first is heard", || running.log().contains("draining calls")).await;
        running.signal(signal);
        assert_eq!(waiting.reply().await.unwrap().code(), "14");
        assert_eq!(soon("the end", running.exit()).await.code(), Some(0));
    }
}

/// Nothing is waited for that has already happened.
#[tokio::test]
async fn an_idle_crisp_ends_without_delay() {
    let place = Place::new();
    let _runtime = slow_runtime(&place);
    let mut running = place.start("log", &["--drain-max", "10m", "--log-level", "debug"]).await;
    let client = place.client().await;
    assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
    let started = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(soon("the end", running.exit()).await.code(), Some(0));
    println!("ended after {:?}", started.elapsed());
    assert!(!running.log().contains("did not take their last replies"), "{}", running.log());
}

/// A caller that does not read its last words must not keep crisp.
#[tokio::test]
async fn a_client_that_is_deaf_does_not_keep_crisp() {
    let place = Place::new();
    let _runtime = slow_runtime(&place);
    // Without the queue, which opens its files when it gets there.
    let mut running = place.start("log", &["--drain-max", "1ms", "--prepull-enabled", "false"]).await;
    let before = running.settled_descriptors().await;
    let silent = tokio::net::UnixStream::connect(place.socket()).await.unwrap();
    let deaf = crate::support::raw_frames::RawFrames::connect(&place.socket()).await;
    eventually("both are accepted", || running.descriptors() == before + 2).await;
    running.signal(Signal::TERM);
    assert_eq!(soon("the end", running.exit()).await.code(), Some(0));
    drop((silent, deaf));
}

/// Broke: one that waited for another's store took five seconds to end, and said that it would not give that store up.
#[tokio::test]
async fn who_waits_for_anothers_store_ends_at_once() {
    let (one, other) = (Place::new(), Place::new());
    let _one = one.start("log", &[]).await;
    let listed = crisp::admin::client::get::<serde_json::Value>(&one.admin(), "/v1/prepull").await;
    assert!(listed.is_ok(), "it has its store: {listed:?}");
    std::os::unix::fs::symlink(one.path("state"), other.path("state")).unwrap();
    let mut waiting = other.start("log", &[]).await;
    eventually("it waits", || waiting.log().contains("another crisp still uses the store")).await;
    waiting.signal(Signal::TERM);
    assert_eq!(soon("the end", waiting.exit()).await.code(), Some(0));
    assert!(!waiting.log().contains("in time"), "{}", waiting.log());
}
