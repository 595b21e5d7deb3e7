//! What a full queue costs the program itself: items are sent over the admin socket in batches, each of which is on disk
//! when it is answered; the list is read; the process is killed and started again.
//!
//! The queue is paused, so that nothing but the queue is measured, and no runtime is needed. Medians of several runs, each
//! with a new store, are held against the goals.

#[path = "support/program.rs"]
mod program;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

const ITEMS: usize = 10_000;
const BATCH: usize = 1000;
const RUNS: usize = 5;
/// How often the list is read in one run.
const LISTS: usize = 10;
/// How long crisp has to answer after its start before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A figure of each run.
struct Figure {
    name: &'static str,
    unit: &'static str,
    goal: f64,
    /// Whether more is better.
    more: bool,
    values: Vec<f64>,
}

/// A running crisp, killed when dropped.
struct Crisp {
    child: Child,
    admin: PathBuf,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("queue_process: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints. `false`: a goal was missed.
fn run() -> anyhow::Result<bool> {
    let figure = |name, unit, goal, more| Figure { name, unit, goal, more, values: Vec::new() };
    let mut figures = [
        figure("enqueued, 1,000 to a request", "items/s", 20_000.0, true),
        figure("list, the slowest of 10", "ms", 100.0, false),
        figure("memory added by the items", "MiB", 20.0, false),
        figure("the same after 10 lists", "MiB", 20.0, false),
        figure("list after kill -9 and a start", "ms", 1000.0, false),
        figure("memory added after that start", "MiB", 20.0, false),
    ];
    for _ in 0..RUNS {
        for (figure, value) in figures.iter_mut().zip(measure()?) {
            figure.values.push(value);
        }
    }
    println!("\nA queue of {ITEMS} items in the running program, {RUNS} runs:\n");
    println!("| figure | median | least | most | goal |\n|---|---:|---:|---:|---:|");
    let mut reached = true;
    for figure in &mut figures {
        figure.values.sort_by(f64::total_cmp);
        let Figure { name, unit, goal, more, values } = figure;
        let median = values[values.len() / 2];
        let fine = if *more { median >= *goal } else { median <= *goal };
        reached &= fine;
        let (least, most) = (values[0], values[values.len() - 1]);
        let (sign, word) = (if *more { '≥' } else { '≤' }, if fine { "" } else { ", missed" });
        println!("| {name} | {median:.1} {unit} | {least:.1} | {most:.1} | {sign} {goal}{word} |");
    }
    Ok(reached)
}

/// One run: the figures in their order.
fn measure() -> anyhow::Result<[f64; 6]> {
    let dir = tempfile::tempdir()?;
    let crisp = Crisp::start(dir.path())?;
    crisp.until_listed(0)?;
    crisp.ask("POST", "/v1/prepull/pause", "")?;
    let empty = crisp.memory()?;
    let batches: Vec<String> = (0..ITEMS).step_by(BATCH).map(|start| batch(start..start + BATCH)).collect();
    let began = Instant::now();
    for batch in &batches {
        crisp.ask("POST", "/v1/prepull", batch)?;
    }
    let rate = ITEMS as f64 / began.elapsed().as_secs_f64();
    let full = crisp.memory()? - empty;
    let mut slowest = Duration::ZERO;
    for _ in 0..LISTS {
        let began = Instant::now();
        let listed = crisp.ask("GET", "/v1/prepull", "")?;
        slowest = slowest.max(began.elapsed());
        ensure!(count(&listed) == ITEMS, "{} items are listed", count(&listed));
    }
    let listed = crisp.memory()? - empty;
    // Killed, as a crash would.
    drop(crisp);
    let began = Instant::now();
    let crisp = Crisp::start(dir.path())?;
    crisp.until_listed(ITEMS)?;
    let start = began.elapsed();
    let again = crisp.memory()? - empty;
    Ok([rate, milliseconds(slowest), full, listed, milliseconds(start), again])
}

fn batch(numbers: std::ops::Range<usize>) -> String {
    let item =
        |number| format!(r#"{{"image":"registry.example/team/app-{number}:v1.2.3","owner":"team/job"}}"#);
    format!(r#"{{"items":[{}]}}"#, numbers.map(item).collect::<Vec<_>>().join(","))
}

fn count(listed: &str) -> usize {
    listed.matches(r#"{"id":"#).count()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

// === impl Crisp ===

impl Crisp {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        let unix = |name: &str| format!("unix://{}", dir.join(name).display());
        let mut command = Command::new(program::crisp());
        command.args(["serve", "--listen", &unix("crisp.sock"), "--admin-listen", &unix("admin.sock")]);
        command.args(["--runtime-endpoint", &unix("nobody.sock"), "--log-level", "error"]);
        command.arg("--state-dir").arg(dir.join("state"));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start crisp")?;
        Ok(Self { child, admin: dir.join("admin.sock") })
    }

    /// Waits until the queue answers, with that many items.
    fn until_listed(&self, items: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.ask("GET", "/v1/prepull", "") {
                Ok(listed) => {
                    ensure!(count(&listed) == items, "{} items are listed", count(&listed));
                    return Ok(());
                }
                Err(error) if began.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// The body of an answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(&self.admin)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: crisp\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        if !head.starts_with("HTTP/1.1 200") {
            bail!("{method} {path}: {}: {body}", head.lines().next().unwrap_or_default());
        }
        Ok(body.to_owned())
    }

    /// Resident memory in MiB.
    fn memory(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Crisp {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
