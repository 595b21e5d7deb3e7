//! Log lines on standard error, for people or for machines.
//!
//! A thread of its own writes them: standard error may be a pipe that nobody reads or a journal that hangs, and a call
//! must not wait for that. Lines that find the queue full are lost.

use std::io;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// How many lines may wait to be written.
const QUEUE: usize = 1024;

/// Starts logging, until the guard is dropped: then what is queued is written. The filter has been checked when the
/// configuration was read.
pub fn init(format: LogFormat, level: &str) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUE)
        .thread_name("crisp-log")
        .finish(io::stderr());
    let filter: Targets = level.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let log = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Text => log.with(lines.with_ansi(io::IsTerminal::is_terminal(&io::stderr()))).init(),
        LogFormat::Json => log.with(lines.json().flatten_event(true)).init(),
    }
    guard
}
