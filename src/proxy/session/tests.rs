use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;
use crate::intercept::Features;
use crate::metrics::Metrics;
use crate::proxy::router::Router;
use crate::proxy::upstream::{Endpoint, Endpoints};
use crate::proxy::usage::Usage;

/// What a client says first, and a call on stream 1 (POST http /).
const CALL: [&[u8]; 3] =
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x03\x01\x05\0\0\0\x01\x83\x86\x84"];
/// That it has heard what it will be told.
const HEARD: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0crisp...";

fn proxy(runtime: &str) -> Arc<Proxy> {
    let runtime = Arc::new(Endpoint::unix(runtime));
    Arc::new(Proxy {
        endpoints: Endpoints { runtime: runtime.clone(), image: runtime },
        router: Router::new(Features::default()),
        metrics: Metrics::new(),
        usage: Arc::new(Usage::default()),
    })
}

/// Kinds, streams and payloads of the frames that are whole.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>()
        && let Some((payload, rest)) =
            rest.split_at_checked(usize::from(head[1]) * 256 + usize::from(head[2]))
    {
        frames.push((head[3], head[8], payload));
        bytes = rest;
    }
    frames
}

/// Whether call 1 has a head of a reply.
fn is_answered(bytes: &[u8]) -> bool {
    frames(bytes).iter().any(|(kind, stream, _)| (*kind, *stream) == (1, 1))
}

/// Broke: of a connection that was accepted just before the end nothing was read, though its call was there already.
#[tokio::test]
async fn who_came_just_before_the_end_is_heard() {
    let shutdown = Shutdown::default();
    shutdown.release();
    let (mut client, accepted) = UnixStream::pair().unwrap();
    client.write_all(&[CALL.concat(), HEARD.to_vec()].concat()).await.unwrap();
    serve(1, accepted, proxy("/nowhere/runtime.sock"), shutdown).await;
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    assert!(is_answered(&heard), "{heard:?}");
}

/// Broke: who had not said a word by the end was left to think that its call, on the way at that moment, had been looked at.
#[tokio::test]
async fn who_said_nothing_hears_that_nothing_was_looked_at() {
    let shutdown = Shutdown::default();
    shutdown.release();
    let (mut client, accepted) = UnixStream::pair().unwrap();
    serve(1, accepted, proxy("/nowhere/runtime.sock"), shutdown).await;
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    let last = frames(&heard).pop();
    assert_eq!(last, Some((7, 0, &[0; 8][..])), "GOAWAY 0, without a reason");
}

/// Broke: a runtime that took a connection and never said a word on it kept its calls, and all that came after them, for ever.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_says_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runtime.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let (mut client, accepted) = UnixStream::pair().unwrap();
    let proxy = proxy(path.to_str().unwrap());
    let session = tokio::spawn(serve(1, accepted, proxy.clone(), Shutdown::default()));
    client.write_all(&CALL.concat()).await.unwrap();
    let begun = tokio::time::Instant::now();
    let mut heard = Vec::new();
    while !is_answered(&heard) {
        assert_ne!(client.read_buf(&mut heard).await.unwrap(), 0);
    }
    assert_eq!(begun.elapsed().as_secs(), 20);
    drop(client);
    session.await.unwrap();
    let told = proxy.metrics.encode().unwrap();
    assert!(told.contains("code=\"UNAVAILABLE\"} 1"), "{told}");
}
