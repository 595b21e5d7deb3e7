//! crisp itself, as a process of its own in front of a runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crisp::pull::progress::{Pull, Pulls};

use rustix::process::Signal;

use super::network::free_ports;
use super::process::{Process, run};
use super::registry::http_get;
use super::scratch::Scratch;
use super::wait;

#[derive(Debug)]
pub(crate) struct Crisp {
    pub(crate) socket: PathBuf,
    pub(crate) admin: PathBuf,
    /// Address of the metrics.
    metrics_address: String,
    runtime: String,
    options: Vec<String>,
    process: Option<Process>,
    scratch: Scratch,
}

impl Crisp {
    /// Starts crisp in front of `runtime` (`unix://PATH`), which need not be there yet.
    pub(crate) fn start(runtime: &str) -> Self {
        Self::start_with(runtime, &[])
    }

    /// The same with more options.
    pub(crate) fn start_with(runtime: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let [port] = free_ports();
        let mut crisp = Self {
            socket: scratch.join("crisp.sock"),
            admin: scratch.join("admin.sock"),
            metrics_address: format!("127.0.0.1:{port}"),
            runtime: runtime.to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            process: None,
            scratch,
        };
        crisp.restart();
        crisp
    }

    /// Starts crisp again after [`Self::kill`] or [`Self::stop`], and waits until it listens.
    pub(crate) fn restart(&mut self) {
        self.spawn();
        let process = self.process.as_mut().expect("a process");
        let listens = wait::try_until(Duration::from_secs(10), || match process.ended() {
            Some(_) => Some(false),
            None => std::os::unix::net::UnixStream::connect(&self.socket).is_ok().then_some(true),
        });
        assert!(listens == Some(true), "crisp does not listen\n{}", process.log_tail());
    }

    /// Uses other options from the next start on.
    pub(crate) fn set_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
    }

    /// Starts crisp, and does not wait for anything.
    pub(crate) fn spawn(&mut self) {
        let mut command = Command::new(binary());
        command.arg("serve").arg("--listen").arg(self.endpoint());
        command.arg("--runtime-endpoint").arg(&self.runtime);
        command.arg("--state-dir").arg(self.scratch.join("state"));
        command.arg("--admin-listen").arg(format!("unix://{}", self.admin.display()));
        command.arg("--metrics-listen").arg(&self.metrics_address).args(&self.options);
        self.process = Some(Process::start("crisp", command, &self.scratch.join("crisp.log")));
    }

    /// Ends crisp in order, and starts it with other options.
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.stop();
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self.restart();
    }

    /// Lets crisp do nothing any more, as if it had crashed, until [`Self::kill`] or [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        self.process.as_ref().expect("a process").signal(Signal::STOP);
    }

    /// Lets crisp go on.
    pub(crate) fn thaw(&self) {
        self.process.as_ref().expect("a process").signal(Signal::CONT);
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

    /// The text of a path of the admin API.
    pub(crate) async fn ask_admin(&self, path: &str) -> String {
        let answer = crisp::admin::client::get::<serde_json::Value>(&self.admin, path).await;
        answer.expect("the admin API answers").to_string()
    }

    /// What a command of crisp's says of this one, as JSON.
    pub(crate) fn command(&self, arguments: &[&str]) -> serde_json::Value {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--output", "json", "--admin-listen"]);
        let said = run(command.arg(format!("unix://{}", self.admin.display())));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// All pulls under way.
    pub(crate) async fn pulls(&self) -> Vec<Pull> {
        let pulls: Pulls = serde_json::from_str(&self.ask_admin("/v1/pulls").await).expect("pulls");
        pulls.pulls
    }

    /// The text of /metrics.
    pub(crate) fn metrics(&self) -> String {
        // The port may still be taken when crisp starts; it then tries again.
        let scrape = || http_get(&self.metrics_address, "/metrics").filter(|(status, _)| *status == 200);
        wait::until("the metrics", Duration::from_secs(10), scrape).1
    }

    /// One metric, all its labels together.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.metrics();
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
            rest.rsplit(' ').next()?.parse::<u64>().ok()
        });
        values.sum()
    }

    /// Everything that crisp has written: its log, and the files of its state folder.
    pub(crate) fn written(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut folders = vec![self.scratch.join("state")];
        let mut files = vec![self.scratch.join("crisp.log")];
        while let Some(folder) = folders.pop() {
            // The folder is not there as long as there is nothing to keep.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let list = if entry.path().is_dir() { &mut folders } else { &mut files };
                list.push(entry.path());
            }
        }
        files.into_iter().map(|file| (file.clone(), fs::read(file).expect("read a file"))).collect()
    }

    /// All of crisp's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("crisp.log")).expect("read the log")
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
