//! The signals that crisp listens to.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that end crisp.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            // Its terminal is gone. There is nothing to read anew: settings are read at start only.
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
