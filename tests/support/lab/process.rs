//! A child process with its own log file that ends when its value is dropped.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait::try_until;

/// How long a process gets to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `command` with its output going to `log`, which is appended to: a restarted process keeps its history.
    pub(crate) fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).expect("open the log");
        let err = out.try_clone().expect("share the log");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // A process group of its own: Ctrl-C reaches the test program, which then ends its children in order.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name: name.to_owned(), log: log.to_owned(), child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The status with which the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the child's state")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("send a signal");
    }

    /// Ends the process at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to end, and makes it end when it does not.
    pub(crate) fn stop(&mut self) -> Option<ExitStatus> {
        if self.ended().is_none() {
            let pid = Pid::from_child(&self.child);
            let _ = kill_process(pid, Signal::TERM);
            try_until(GRACE, || self.ended());
        }
        let status = self.ended();
        self.kill();
        status
    }

    /// The last lines of the log, for the message of a failed test.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.log, &self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}

/// Runs a command to its end and returns what it printed; panics with its output when it fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs a command whose failure does not matter, as for removing what may not be there.
pub(crate) fn run_quietly(program: &str, args: &[&str]) {
    let _ = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Ends processes that are not children of ours, by their ids.
pub(crate) fn kill_all(pids: &[u32]) {
    for &pid in pids {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    try_until(GRACE, || pids.iter().all(|pid| !is_alive(*pid)).then_some(()));
}

/// Whether a process runs; one that has ended and only waits for its parent does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}

/// The processes whose command line contains `text`, which has to be as unique as a temporary folder's name.
pub(crate) fn with_command_line(text: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .collect()
}

/// All processes below the given ones.
pub(crate) fn descendants_of(parents: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = parents.to_vec();
    while let Some(parent) = next.pop() {
        let children = children_of(parent);
        found.extend(&children);
        next.extend(children);
    }
    found
}

fn children_of(parent: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn tail(log: &Path, name: &str) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].iter();
    // Some lines are whole configurations.
    let last: Vec<String> = last.map(|line| line.chars().take(400).collect()).collect();
    format!("--- last lines of {name}:\n{}", last.join("\n"))
}
