//! The crisp program as a child process.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How long crisp may take to become ready, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `crisp serve`; killed when dropped.
#[derive(Debug)]
pub(crate) struct Crisp {
    pub(crate) program: PathBuf,
    child: Child,
    log: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) admin: PathBuf,
    pub(crate) metrics: SocketAddr,
    pub(crate) started: Instant,
}

// === impl Crisp ===

impl Crisp {
    /// Starts it with everything under `dir`.
    pub(crate) fn start(dir: &Path) -> anyhow::Result<Self> {
        let program = program()?;
        let (socket, admin, log) = (dir.join("crisp.sock"), dir.join("admin.sock"), dir.join("crisp.log"));
        // The port is free now; that nobody takes it in the next moment is good enough for a demo.
        let metrics = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let output = std::fs::File::create(&log)?;
        let child = Command::new(&program)
            .arg("serve")
            .args(["--runtime-endpoint", "embedded"])
            .args(["--listen", &format!("unix://{}", socket.display())])
            .args(["--admin-listen", &format!("unix://{}", admin.display())])
            .args(["--state-dir", &dir.join("state").display().to_string()])
            .args(["--metrics-listen", &metrics.to_string()])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for us: we end it, and look at how it ends.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { program, child, log, socket, admin, metrics, started: Instant::now() })
    }

    /// Returns when `/readyz` says yes.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        while self.get("/readyz").await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("crisp ended with {status}; its log:\n{}", self.log());
            }
            ensure!(self.started.elapsed() < PATIENCE, "crisp is not ready; its log:\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The body of a successful GET from the metrics port.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.metrics).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: crisp\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
        ensure!(head.lines().next().is_some_and(|line| line.contains(" 200")), "{path}: {head}");
        Ok(body.to_owned())
    }

    /// What `crisp status` prints.
    pub(crate) fn status(&self) -> anyhow::Result<String> {
        let admin = format!("unix://{}", self.admin.display());
        let output = Command::new(&self.program).args(["status", "--admin-listen", &admin]).output()?;
        ensure!(output.status.success(), "crisp status: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<Option<i32>> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            ensure!(asked.elapsed() < PATIENCE, "crisp does not end; its log:\n{}", self.log());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Crisp {
    fn drop(&mut self) {
        // An error means that it has ended already, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The crisp program of the same build: examples are one directory below it.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.parent().and_then(Path::parent).map(|dir| dir.join("crisp"));
    let program = program.context("no build directory")?;
    ensure!(program.exists(), "{} is not there: run `cargo build --bin crisp` first", program.display());
    Ok(program)
}
