//! crisp itself, as a process of its own in front of a runtime.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::network::free_ports;
use super::process::Process;
use super::scratch::Scratch;
use super::wait;

#[derive(Debug)]
pub(crate) struct Crisp {
    pub(crate) socket: PathBuf,
    pub(crate) admin: PathBuf,
    /// Address of its metrics.
    pub(crate) metrics: String,
    runtime: String,
    process: Option<Process>,
    scratch: Scratch,
}

impl Crisp {
    /// Starts crisp in front of `runtime` (`unix://PATH`), which need not be there yet.
    pub(crate) fn start(runtime: &str) -> Self {
        let scratch = Scratch::new();
        let [port] = free_ports();
        let mut crisp = Self {
            socket: scratch.join("crisp.sock"),
            admin: scratch.join("admin.sock"),
            metrics: format!("127.0.0.1:{port}"),
            runtime: runtime.to_owned(),
            process: None,
            scratch,
        };
        crisp.restart();
        crisp
    }

    /// Starts crisp again after [`Self::kill`] or [`Self::stop`], and waits until it listens.
    pub(crate) fn restart(&mut self) {
        let mut command = Command::new(binary());
        command.arg("serve").arg("--listen").arg(self.endpoint());
        command.arg("--runtime-endpoint").arg(&self.runtime);
        command.arg("--state-dir").arg(self.scratch.join("state"));
        command.arg("--admin-listen").arg(format!("unix://{}", self.admin.display()));
        command.arg("--metrics-listen").arg(&self.metrics);
        let mut process = Process::start("crisp", command, &self.scratch.join("crisp.log"));
        let listens = wait::try_until(Duration::from_secs(10), || match process.ended() {
            Some(_) => Some(false),
            None => std::os::unix::net::UnixStream::connect(&self.socket).is_ok().then_some(true),
        });
        assert!(listens == Some(true), "crisp does not listen\n{}", process.log_tail());
        self.process = Some(process);
    }

    /// Ends crisp as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.as_mut().expect("a process").kill();
    }

    /// Ends crisp in order; nothing when it had to be killed.
    pub(crate) fn stop(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().expect("a process").stop()
    }

    /// `unix://` and the path, as programs want it.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The last lines of crisp's log.
    pub(crate) fn log_tail(&self) -> String {
        self.process.as_ref().map(Process::log_tail).unwrap_or_default()
    }
}

/// The binary under test: the one that cargo built beside the tests, or another that `CRISP_BIN` names.
fn binary() -> PathBuf {
    std::env::var_os("CRISP_BIN")
        .map_or_else(|| Path::new(env!("CARGO_BIN_EXE_crisp")).to_owned(), PathBuf::from)
}
