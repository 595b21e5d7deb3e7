//! The one thread that writes: whatever waits when it gets to it goes into one transaction.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::store::batch::Batch;
use crate::store::engine::Engine;
use crate::store::error::CommitError;

/// How many commits wait before others wait to be let in.
const QUEUE: usize = 256;

/// From how many bytes on a transaction takes no further batch, so that the first of them is not kept waiting.
const GROUP_BYTES: usize = 4 << 20;

/// How long the last handle waits for the file to be let go: for an fsync, not for a disk that hangs.
const GRACE: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Request {
    Commit { batch: Batch, answer: oneshot::Sender<Result<(), CommitError>> },
    Close(oneshot::Sender<()>),
}

/// The thread, for who waits for its end.
#[derive(Debug)]
pub(super) struct Writer {
    /// Ends when the thread has let go of the file. In a mutex only because a receiver cannot be shared.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

// === impl Writer ===

impl Writer {
    /// Starts the thread. It ends when it is told to, or when all senders are gone.
    pub(super) fn spawn(engine: Arc<Mutex<Engine>>) -> io::Result<(mpsc::Sender<Request>, Self)> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (running, ended) = std_mpsc::channel();
        std::thread::Builder::new().name("crisp-store".into()).spawn(move || {
            run(&engine, receiver);
            drop(engine);
            drop(running);
        })?;
        Ok((sender, Self { ended: Mutex::new(ended) }))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(GRACE);
    }
}

fn run(engine: &Mutex<Engine>, mut requests: mpsc::Receiver<Request>) {
    let lock = || engine.lock().unwrap_or_else(PoisonError::into_inner);
    let mut close = None;
    while close.is_none()
        && let Some(first) = requests.blocking_recv()
    {
        let (batches, answers);
        (batches, answers, close) = gather(first, &mut requests);
        if batches.is_empty() {
            continue;
        }
        let result = lock().write(&batches);
        for answer in answers {
            // Who asked may have left.
            let _ = answer.send(result.clone());
        }
    }
    lock().close();
    if let Some(done) = close {
        let _ = done.send(());
    }
    requests.close();
    while let Some(request) = requests.blocking_recv() {
        match request {
            Request::Commit { answer, .. } => drop(answer.send(Err(CommitError::Closed))),
            Request::Close(done) => drop(done.send(())),
        }
    }
}

type Answer = oneshot::Sender<Result<(), CommitError>>;

/// Takes what waits: batches for one transaction, up to a request to close.
fn gather(
    first: Request,
    requests: &mut mpsc::Receiver<Request>,
) -> (Vec<Batch>, Vec<Answer>, Option<oneshot::Sender<()>>) {
    let (mut batches, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut next = Some(first);
    while let Some(request) = next {
        match request {
            Request::Commit { batch, answer } => {
                bytes += batch.bytes();
                batches.push(batch);
                answers.push(answer);
            }
            Request::Close(done) => return (batches, answers, Some(done)),
        }
        // What comes while this is gathered waits for the next transaction.
        let room = bytes < GROUP_BYTES && batches.len() < QUEUE;
        next = if room { requests.try_recv().ok() } else { None };
    }
    (batches, answers, None)
}
