use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;
use crate::cri::Method;
use crate::intercept::Features;
use crate::metrics::Metrics;
use crate::proxy::router::Router;
use crate::proxy::upstream::{Client, Endpoint, Endpoints};
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

/// Whether a call has a head of a reply.
fn is_answered(bytes: &[u8], call: u8) -> bool {
    frames(bytes).iter().any(|(kind, stream, _)| (*kind, *stream) == (1, call))
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
    assert!(is_answered(&heard, 1), "{heard:?}");
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

/// Broke: a runtime that took a connection and never said a word on it kept its calls, and all that came after them, for ever;
/// and then the log said every time that it was there again.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_says_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runtime.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let (mut client, accepted) = UnixStream::pair().unwrap();
    let proxy = proxy(path.to_str().unwrap());
    let session = tokio::spawn(serve(1, accepted, proxy.clone(), Shutdown::default()));
    client.write_all(&CALL[..2].concat()).await.unwrap();
    let mut heard = Vec::new();
    for stream in [1, 3] {
        client
            .write_all(&[b"\0\0\x03\x01\x05\0\0\0", &[stream][..], b"\x83\x86\x84"].concat())
            .await
            .unwrap();
        let begun = tokio::time::Instant::now();
        while !is_answered(&heard, stream) {
            assert!(stream == 1 || proxy.endpoints.runtime.is_away(), "it has not come back");
            assert_ne!(client.read_buf(&mut heard).await.unwrap(), 0);
        }
        assert_eq!(begun.elapsed().as_secs(), 5);
        assert!(proxy.endpoints.runtime.is_away());
    }
    drop(client);
    session.await.unwrap();
    let told = proxy.metrics.encode().unwrap();
    assert!(told.contains("code=\"UNAVAILABLE\"} 2"), "{told}");
    assert!(told.contains("upstream_up{endpoint=\"runtime\"} 0"), "{told}");
}

/// Broke: crisp's own calls, and so every pull, waited for such a runtime for ever.
#[tokio::test(start_paused = true)]
async fn own_calls_do_not_wait_for_a_runtime_that_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runtime.sock");
    let silent = UnixListener::bind(&path).unwrap();
    let proxy = proxy(path.to_str().unwrap());
    let own = Client::new(&proxy.endpoints, &proxy.metrics);
    let ask = async || {
        let begun = tokio::time::Instant::now();
        let error = own.call(Method::PULL_IMAGE, http::HeaderMap::new(), b"").await.unwrap_err();
        (begun.elapsed().as_secs(), error)
    };
    for _ in 0..2 {
        let (seconds, error) = ask().await;
        assert_eq!((seconds, error.code()), (5, tonic::Code::Unavailable), "{error}");
        assert!(proxy.endpoints.image.is_away());
    }
    tokio::task::yield_now().await;
    let told = proxy.metrics.encode().unwrap();
    assert!(told.contains("upstream_connections 0"), "nothing is left of it: {told}");
    // One that is gone is not waited for.
    drop(silent);
    assert_eq!(ask().await.0, 0);
}

/// Broke: a runtime that had spoken at once was taken for one that hangs, while the client did not read an answer to
/// something else. One that hangs is given up all the same.
#[tokio::test(start_paused = true)]
async fn a_runtime_is_heard_while_the_client_does_not_read() {
    for speaks in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runtime.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (mut client, accepted) = UnixStream::pair().unwrap();
        let proxy = proxy(path.to_str().unwrap());
        tokio::spawn(serve(1, accepted, proxy.clone(), Shutdown::default()));
        // With all the room there is, so that what it does not read waits to be written.
        let room = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x70\0\0\0";
        client.write_all(&[CALL[0], room, CALL[2]].concat()).await.unwrap();
        let (mut runtime, _) = listener.accept().await.unwrap();
        runtime.write_all(&[CALL[1], b"\0\0\x01\x01\x04\0\0\0\x01\x88"].concat()).await.unwrap();
        let piece = [b"\0\x40\0\0\0\0\0\0\x01".to_vec(), vec![7; 0x4000]].concat();
        let more = tokio::spawn(async move { runtime.write_all(&piece.repeat(64)).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!more.is_finished(), "all are full");
        // A call to the image service, on a connection of its own.
        let image = b"/runtime.v1.ImageService/X";
        let head = [&b"\0\0\x1e\x01\x05\0\0\0\x03\x83\x86\x04\x1a"[..], image].concat();
        client.write_all(&head).await.unwrap();
        let (mut images, _) = listener.accept().await.unwrap();
        if speaks {
            images.write_all(CALL[1]).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(proxy.endpoints.image.is_away(), !speaks);
        let _ = images.write_all(b"\0\0\x01\x01\x05\0\0\0\x01\x88").await;
        let mut heard = Vec::new();
        while !is_answered(&heard, 3) {
            assert_ne!(client.read_buf(&mut heard).await.unwrap(), 0);
        }
        assert_eq!(frames(&heard).contains(&(1, 3, &[0x88])), speaks, "whose answer it is");
    }
}
