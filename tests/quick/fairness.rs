//! Protects: who says much does not keep others from having their turn.

use std::sync::Arc;

use crisp::metrics::Metrics;
use crisp::proxy::router::Router;
use crisp::proxy::upstream::{Endpoint, Endpoints};
use crisp::proxy::{self, Proxy};
use crisp::shutdown::Shutdown;
use tokio::net::{UnixListener, UnixStream};

use crate::support::raw_frames::{PING, PREFACE, RawFrames, frame, settings};

/// Broke: all that one client had said was gone through before anybody else was looked at.
///
/// Everything runs on this one thread, so that nothing happens between two awaits.
#[tokio::test]
async fn a_flood_of_one_client_leaves_others_their_turn() {
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
    let ping = frame(PING, 0, 0, &[7; 8]);
    flood.writable().await.unwrap();
    flood.try_write(&[PREFACE.to_vec(), settings(&[])].concat()).unwrap();
    flood.readable().await.unwrap();
    let first_words = flood.try_read(&mut [0; 1024]).unwrap();
    assert!(first_words > 0);

    let sent = flood.try_write(&ping.repeat(20_000)).unwrap();
    assert!(sent > 100_000, "{sent}");
    other.settle().await;

    let mut answered = vec![0; sent];
    let answered = flood.try_read(&mut answered).unwrap_or(0);
    assert!(answered < sent / 2, "{answered} of {sent} bytes were answered first");
}
