//! The real crisp program, with its sockets in a directory of its own.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::h2_client::Client;
use super::wait::eventually;

/// A directory with the sockets of one crisp, or of one after the other.
#[derive(Debug)]
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// A running crisp. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Binary {
    child: Child,
    log: PathBuf,
}

// === impl Place ===

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where crisp listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("crisp.sock")
    }

    pub(crate) fn admin(&self) -> PathBuf {
        self.path("admin.sock")
    }

    /// Where crisp expects the runtime.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("runtime.sock")
    }

    /// The arguments of `crisp serve` in this place.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let unix = |path: PathBuf| format!("unix://{}", path.display());
        let pairs = [
            ("--listen", unix(self.socket())),
            ("--admin-listen", unix(self.admin())),
            ("--runtime-endpoint", unix(self.runtime())),
            ("--state-dir", self.path("state").display().to_string()),
            ("--log-format", "json".to_owned()),
        ];
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        arguments
    }

    /// Starts crisp and waits until it listens. `name` is that of its log.
    pub(crate) async fn start(&self, name: &str, more: &[&str]) -> Binary {
        let mut command = crisp();
        command.args(self.arguments()).args(more);
        let running = self.spawn(name, command);
        running.serving().await;
        running
    }

    /// Starts a command with its standard error in a log.
    pub(crate) fn spawn(&self, name: &str, mut command: Command) -> Binary {
        command.stdin(Stdio::null());
        self.spawn_with_input(name, command)
    }

    /// The same for a command that has its standard input already.
    pub(crate) fn spawn_with_input(&self, name: &str, mut command: Command) -> Binary {
        let log = self.path(name);
        command.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Binary { child: command.spawn().unwrap(), log }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.socket()).await
    }
}

/// A command that runs crisp.
pub(crate) fn crisp() -> Command {
    Command::new(env!("CARGO_BIN_EXE_crisp"))
}

/// An address on which nobody listens.
pub(crate) fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

// === impl Binary ===

impl Binary {
    /// Waits until crisp says that it serves.
    pub(crate) async fn serving(&self) {
        eventually("crisp serves", || self.log().contains("\"message\":\"serving\"")).await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Open file descriptors of the process.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The same, once crisp has opened what it opens by itself: what it asks at the start, and its files.
    pub(crate) async fn settled_descriptors(&self) -> usize {
        let mut last = (self.descriptors(), std::time::Instant::now());
        eventually("crisp has settled", || {
            let now = self.descriptors();
            if now != last.0 {
                last = (now, std::time::Instant::now());
            }
            last.1.elapsed() > std::time::Duration::from_millis(500)
        })
        .await;
        last.0
    }

    /// The most memory that the process has had so far, in KiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Everything on standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end of the process.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("crisp ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
