//! The signals that crisp listens to.

use anyhow::Context;
use futures_util::future::OptionFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end crisp.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Nothing if it was started to outlive its terminal, as by nohup.
    hangup: Option<Signal>,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot watch for signals");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = (!ignores(&status, SignalKind::hangup())).then(|| on(SignalKind::hangup()));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: hangup.transpose()?,
        })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        let hangup = OptionFuture::from(self.hangup.as_mut().map(Signal::recv));
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            // Its terminal is gone. There is nothing to read anew: settings are read at start only.
            Some(_) = hangup => "SIGHUP",
        }
    }
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        let status = "Name:\tcrisp\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SignalKind::hangup()) && ignores(status, SignalKind::pipe()));
        assert!(!ignores(status, SignalKind::interrupt()) && !ignores("", SignalKind::hangup()));
    }
}
