//! What the test registry does wrong when it is told to, and the pace at which it sends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Shared;

const CHUNK: usize = 16 << 10;

/// How a body is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) bytes_per_second: Option<u64>,
    pub(super) piece: Option<usize>,
}

/// One way to misbehave.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answers with this status.
    Status(u16),
    /// Sends the client elsewhere.
    Redirect(String),
    /// The right length, but one byte is wrong.
    WrongByte,
    /// Half of the body, with a proper end.
    Half,
    /// Half of the body, then the connection breaks.
    Cut,
    /// The body, and then zeros without end.
    Endless,
    /// Answers when the [`Hold`] is dropped.
    Held(Arc<watch::Sender<usize>>, watch::Receiver<()>),
}

/// Keeps requests waiting; made by `Registry::hold`.
#[derive(Debug)]
pub(crate) struct Hold {
    waiting: watch::Receiver<usize>,
    /// Dropped with the hold, which is what the requests wait for.
    _release: watch::Sender<()>,
}

pub(super) fn hold() -> (Hold, Fault) {
    let (count, waiting) = watch::channel(0);
    let (release, released) = watch::channel(());
    (Hold { waiting, _release: release }, Fault::Held(Arc::new(count), released))
}

// === impl Hold ===

impl Hold {
    /// Returns when at least `count` requests have come.
    pub(crate) async fn reached(&mut self, count: usize) {
        self.waiting.wait_for(|waiting| *waiting >= count).await.unwrap();
    }
}

// === impl Fault ===

impl Fault {
    pub(super) async fn wait(&self) {
        if let Self::Held(count, released) = self {
            count.send_modify(|count| *count += 1);
            // The error is the release: the sender is gone.
            let _ = released.clone().changed().await;
        }
    }

    /// Whether a content-length is sent; without one only the receiver's own count can tell that something is wrong.
    pub(super) fn tells_length(&self) -> bool {
        !matches!(self, Self::Half | Self::Endless)
    }
}

/// The body, as the fault has it, at this pace.
pub(super) fn body(
    data: Bytes,
    fault: Option<Fault>,
    pace: Pace,
    shared: Arc<Shared>,
    entry: usize,
) -> impl Stream<Item = io::Result<Bytes>> {
    let data = match fault {
        Some(Fault::WrongByte) if !data.is_empty() => {
            let mut wrong = data.to_vec();
            wrong[data.len() / 2] ^= 1;
            wrong.into()
        }
        Some(Fault::Half | Fault::Cut) => data.slice(..data.len() / 2),
        _ => data,
    };
    let start = Instant::now();
    let over = Over(Arc::clone(&shared), entry);
    stream::unfold((data, 0_u64, over), move |(mut rest, sent, over)| {
        let (fault, shared) = (fault.clone(), Arc::clone(&shared));
        async move {
            let chunk = match (rest.is_empty(), fault) {
                (false, _) => rest.split_to(rest.len().min(pace.piece.unwrap_or(CHUNK))),
                (true, Some(Fault::Endless)) => Bytes::from_static(&[0; CHUNK]),
                (true, Some(Fault::Cut)) => return Some((Err(io::Error::other("cut")), (rest, sent, over))),
                (true, _) => return None,
            };
            let sent = sent + chunk.len() as u64;
            if let Some(speed) = pace.bytes_per_second {
                sleep_until(start + Duration::from_secs_f64(sent as f64 / speed as f64)).await;
            }
            let turn = shared.lock().line.take(chunk.len());
            if let Some(turn) = turn {
                sleep_until(turn).await;
            }
            shared.sent(entry, chunk.len() as u64);
            Some((Ok(chunk), (rest, sent, over)))
        }
    })
}

/// Notes the end of a body, whoever has ended it.
struct Over(Arc<Shared>, usize);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over(self.1);
    }
}
