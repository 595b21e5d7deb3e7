//! Log lines on standard error, for people or for machines.
//!
//! A thread of its own writes them: standard error may be a pipe that nobody reads or a journal that hangs, and a call
//! must not wait for that. Lines that find the queue full are lost and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// How many lines may wait to be written.
const QUEUE: usize = 4096;
/// How long the last lines have to be written when crisp ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Logging, until dropped: then what is queued is written.
#[derive(Debug)]
pub struct Log {
    queue: SyncSender<Item>,
}

/// Puts lines into the queue, or drops them.
#[derive(Debug, Clone)]
struct Lines {
    queue: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// Answered when everything before it has been written.
    Flush(SyncSender<()>),
}

/// Starts logging. The filter has been checked when the configuration was read.
pub fn init(format: LogFormat, level: &str) -> io::Result<Log> {
    let (queue, queued) = sync_channel(QUEUE);
    let lost = Arc::new(AtomicU64::new(0));
    let lines = Lines { queue: queue.clone(), lost: lost.clone() };
    std::thread::Builder::new().name("crisp-log".into()).spawn(move || write(&queued, &lost))?;

    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || lines.clone());
    match format {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(Log { queue })
}

fn write(queued: &Receiver<Item>, lost: &AtomicU64) {
    for item in queued {
        match item {
            // A standard error that is closed has nobody to tell of it.
            Item::Line(line) => _ = io::stderr().write_all(&line),
            Item::Flush(done) => _ = done.try_send(()),
        }
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lines => tracing::warn!(lines, "standard error was too slow; log lines are lost"),
        }
    }
}

// === impl Log ===

impl Drop for Log {
    fn drop(&mut self) {
        let (done, written) = sync_channel(1);
        // A full queue means that standard error is blocked; then there is nothing to wait for.
        if self.queue.try_send(Item::Flush(done)).is_ok() {
            let _ = written.recv_timeout(LAST_LINES);
        }
    }
}

// === impl Lines ===

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Item::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Line(_) => "Line",
            Self::Flush(_) => "Flush",
        })
    }
}
