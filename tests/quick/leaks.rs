//! Protects: whatever callers and the runtime break off, and wherever, nothing of it stays behind: no call, no task,
//! no connection, no file descriptor.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::task::{JoinSet, yield_now};

use crate::support::binary::{Place, free_address};
use crate::support::bytes_on_the_wire::{Reply, framed, headers, receive, request, reset, send};
use crate::support::fake_runtime::{FakeRuntime, Incoming};
use crate::support::h2_client::Client;
use crate::support::http_get::get;
use crate::support::in_process::{InProcess, sum};
use crate::support::random::Random;
use crate::support::wait::{eventually, soon};

/// How many calls are cancelled, and how many connections cut.
const TIMES: usize = 1_000;
const CLIENTS: usize = 10;
const PATHS: [&str; 5] = [
    "/runtime.v1.RuntimeService/Status",
    "/no.such.Service/Method",
    "/runtime.v1.ImageService/PullImage",
    "/runtime.v1.RuntimeService/GetContainerEvents",
    "/runtime.v1.RuntimeService/Version",
];

/// A runtime that gets as far with a call as the caller asked for in `until`, then waits, or cuts the connection.
fn moody_runtime(socket: &Path) -> (FakeRuntime, Arc<AtomicUsize>) {
    let cuts = Arc::new(AtomicUsize::new(0));
    let counted = cuts.clone();
    let runtime = FakeRuntime::start(socket, move |incoming| {
        let counted = counted.clone();
        async move {
            let _ = play(incoming, &counted).await;
        }
    });
    (runtime, cuts)
}

async fn play(mut incoming: Incoming, cuts: &AtomicUsize) -> Result<(), h2::Error> {
    let asked = |name: &str| incoming.head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (until, cut) = (asked("until"), asked("cut").is_some());
    let Some(until) = until else {
        incoming.answer(&Reply::of(&[b""])).await;
        return Ok(());
    };
    let connection = incoming.connection.clone();
    let stop = || {
        if cut {
            cuts.fetch_add(1, Ordering::SeqCst);
            connection.cut();
        }
    };
    if until == "nothing" {
        stop();
        incoming.reset().await?;
    }
    incoming.read().await?;
    if until == "request" {
        stop();
        incoming.reset().await?;
    }
    let mut stream = incoming.head(&Reply::of(&[]), false)?;
    let bytes = framed(b"\x0a\x08somewhat");
    for (part, next) in [("head", bytes.slice(..8)), ("half", bytes.slice(8..)), ("message", Bytes::new())] {
        if until == part {
            stop();
            reset(&mut stream).await?;
        }
        send(&mut stream, next, false).await?;
    }
    stream.send_trailers(Reply::of(&[]).trailers.unwrap())
}

async fn dawdle(random: &mut Random) {
    for _ in 0..random.below(30) {
        yield_now().await;
    }
}

/// Calls that their caller gives up at random points.
async fn cancel_calls(socket: &Path, seed: u64) {
    let mut random = Random::seeded(seed);
    let client = Client::connect(socket).await;
    for _ in 0..TIMES / CLIENTS {
        let path = PATHS[random.below(PATHS.len())];
        let until = ["nothing", "request", "head", "half", "message", "end"][random.below(6)];
        let head = request(path, &headers(&[("until", until)]));
        let Ok(mut call) = client.open(head, false).await else { panic!("the connection was lost") };
        let patience = random.below(5);
        let give_up = async {
            dawdle(&mut random).await;
            if patience > 0 {
                send(&mut call.request, framed(b"\x0a\0"), patience > 1).await.unwrap();
                dawdle(&mut random).await;
            }
            if patience > 2 && !matches!(until, "nothing" | "request") {
                let (_, mut body) = call.response.await.unwrap().into_parts();
                // Half a message of a call that crisp changes stays with it.
                if patience > 3 && !matches!(until, "head" | "half") {
                    let _ = body.data().await;
                }
                dawdle(&mut random).await;
            }
        };
        soon("a call that is given up", give_up).await;
    }
    assert!(client.is_open());
    let head = request(PATHS[0], &headers(&[]));
    let last = client.start(head, &[framed(b"")], None).await.unwrap().reply().await.unwrap();
    assert_eq!(last.code(), "0", "the connection is as good as ever");
}

/// Calls whose connection to the runtime is cut at random points.
async fn lose_connections(socket: &Path, cuts: &AtomicUsize, seed: u64) {
    let mut random = Random::seeded(seed);
    let client = Client::connect(socket).await;
    while cuts.load(Ordering::SeqCst) < TIMES {
        let path = PATHS[random.below(PATHS.len())];
        let until = ["nothing", "request", "head", "half", "message"][random.below(5)];
        let head = request(path, &headers(&[("until", until), ("cut", "yes")]));
        let bystander = client.ask(PATHS[1], b"").await;
        let lost = client.start(head, &[framed(b"\x0a\0")], None).await.unwrap().reply().await.unwrap();
        assert_eq!(lost.code(), "14", "{path} {until}: {lost:?}");
        let code = bystander.reply().await.unwrap();
        assert!(["0", "14"].contains(&code.code()), "{code:?}");
    }
    assert!(client.is_open());
    let head = request(PATHS[0], &headers(&[]));
    let mut last = client.start(head, &[framed(b"")], None).await.unwrap().head().await.unwrap();
    assert!(receive(&mut last.1).await.is_ok());
}

/// Everything at once, from several clients. Nobody is left when it returns.
async fn batter(socket: &Path, cuts: &Arc<AtomicUsize>) {
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (path, cuts) = (socket.to_owned(), cuts.clone());
        clients.spawn(async move { cancel_calls(&path, n as u64).await });
        let path = socket.to_owned();
        clients.spawn(async move { lose_connections(&path, &cuts, 1_000 + n as u64).await });
    }
    clients.join_all().await;
    println!("{} connections were cut", cuts.load(Ordering::SeqCst));
}

#[tokio::test]
async fn no_call_task_or_connection_stays_behind() {
    let crisp = InProcess::start();
    let tasks = crisp.tasks();
    let (runtime, cuts) = moody_runtime(&crisp.runtime_socket());
    batter(&crisp.socket(), &cuts).await;
    eventually("no call is under way", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
    eventually("no client is connected", || crisp.metric("crisp_downstream_connections") == 0.0).await;
    eventually("the runtime is left alone", || crisp.metric("crisp_upstream_connections") == 0.0).await;
    eventually("no task is left", || crisp.tasks() == tasks).await;
    eventually("the runtime agrees", || runtime.connections().is_empty() && runtime.running() == 0).await;
}

/// The same with the features of the release, which make calls of their own on connections that stay.
#[tokio::test]
async fn features_leave_nothing_behind() {
    let crisp = InProcess::released(&[("pull.grace", "0s")]);
    let (runtime, cuts) = moody_runtime(&crisp.runtime_socket());
    let mut before = None;
    for _ in 0..3 {
        cuts.store(0, Ordering::SeqCst);
        batter(&crisp.socket(), &cuts).await;
        eventually("no call is under way", || crisp.metric("crisp_calls_in_flight") == 0.0).await;
        eventually("no pull is", || crisp.metric("crisp_pulls_under_way") == 0.0).await;
        eventually("no client is connected", || crisp.metric("crisp_downstream_connections") == 0.0).await;
        let own = || crisp.metric("crisp_upstream_connections");
        eventually("crisp's own connections are left", || own() <= 4.0 && runtime.connections().len() <= 4)
            .await;
        let tasks = *before.get_or_insert_with(|| crisp.tasks().max(4));
        eventually("no task is left", || crisp.tasks() <= tasks).await;
    }
}

#[tokio::test]
async fn no_file_descriptor_stays_behind() {
    let place = Place::new();
    let (_runtime, cuts) = moody_runtime(&place.runtime());
    let metrics = free_address();
    // Without the queue, which opens its files when it gets there, and without the census, which connects when it does.
    let quiet = ["--metrics-listen", &metrics, "--prepull-enabled", "false", "--hash-shield-mode", "off"];
    let crisp = place.start("log", &quiet).await;
    // crisp's own connection to the runtime is part of both counts.
    let scrape = get(&metrics, "/metrics").await.1;
    let gauges = ["crisp_calls_in_flight", "crisp_downstream_connections", "crisp_upstream_connections"];
    let before = gauges.map(|gauge| sum(&scrape, gauge));
    let descriptors = crisp.descriptors();
    batter(&place.socket(), &cuts).await;
    eventually("all are closed", || crisp.descriptors() <= descriptors).await;
    let scrape = get(&metrics, "/metrics").await.1;
    assert_eq!(gauges.map(|gauge| sum(&scrape, gauge)), before);
}
