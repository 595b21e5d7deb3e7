//! Processes that are started, watched through /proc and stopped.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::UnixStream;
use tokio::time::sleep;

/// The kernel counts CPU time for user space in hundredths of a second, on every architecture.
const TICK: Duration = Duration::from_millis(10);
/// How long a process has to listen, and to end when asked.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);

/// A process of ours. It is asked to end, then made to, when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program and waits until something listens on its socket.
    pub(crate) async fn start(command: &mut Command, socket: &Path) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // The stub ends with its input; the others do not read it.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut process = Self { child: child.with_context(|| format!("cannot start {name}"))? };
        for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
            if UnixStream::connect(socket).await.is_ok() {
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("{name} ended at its start: {status}");
            }
            sleep(STEP).await;
        }
        bail!("{name} does not listen on {}", socket.display())
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The id of its only child process. It may come a little later than the socket.
    pub(crate) async fn worker(&self) -> anyhow::Result<u32> {
        let id = self.id();
        for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
            if let Some(child) = children.split_whitespace().next() {
                return child.parse().context("not a process id");
            }
            sleep(STEP).await;
        }
        bail!("no worker process")
    }

    fn stop(&mut self) -> std::io::Result<()> {
        if let Some(id) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        }
        for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(STEP);
        }
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Err(error) = self.stop()
        {
            eprintln!("passthrough: cannot stop process {}: {error}", self.child.id());
        }
    }
}

/// CPU time of a process so far, user and system.
pub(crate) fn cpu(id: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name in brackets may hold anything; utime and stime are fields 14 and 15, the state after the name is 3.
    let after_name = stat.rsplit_once(')').context("unexpected form of /proc/…/stat")?.1;
    let ticks: u32 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
    Ok(TICK * ticks)
}

/// A memory figure of a process in MiB: `VmRSS` is now, `VmHWM` the most so far.
pub(crate) fn memory(id: u32, field: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    let kib: f64 = line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse()?;
    Ok(kib / 1024.0)
}

/// The machine's load averages over 1, 5 and 15 minutes.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
