//! An image registry on the loopback interface, filled with the stand-in images.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::network::free_ports;
use super::process::{Process, run};
use super::scratch::Scratch;
use super::wait::try_until;
use super::{images, parts};

#[derive(Debug)]
pub(crate) struct Registry {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    _process: Process,
    _scratch: Scratch,
}

/// The registry that the tests of one program share for as long as one of them holds it.
static SHARED: Mutex<Weak<Registry>> = Mutex::new(Weak::new());

impl Registry {
    pub(crate) fn shared() -> Arc<Self> {
        // A test that panicked here has left nothing behind that could be wrong.
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let registry = Arc::new(Self::start(&images::storage()));
            *shared = Arc::downgrade(&registry);
            registry
        })
    }

    /// Starts a registry on a copy of `storage`.
    pub(crate) fn start(storage: &Path) -> Self {
        let scratch = Scratch::new();
        let own = scratch.join("storage");
        run(Command::new("cp").arg("-a").arg(storage).arg(&own));
        Self::serve(scratch, &own)
    }

    /// Starts a registry that keeps its images in `storage` itself.
    pub(crate) fn fill(storage: &Path) -> Self {
        Self::serve(Scratch::new(), storage)
    }

    fn serve(scratch: Scratch, storage: &Path) -> Self {
        // Another process may take the port before the registry does: then the next one is tried.
        for _ in 0..5 {
            let [port] = free_ports();
            let address = format!("127.0.0.1:{port}");
            let config = format!(
                "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n\
                 storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
                storage.display()
            );
            let config = scratch.write("registry.yml", &config);
            let mut command = Command::new(parts::find("docker-registry").expect("docker-registry"));
            command.arg("serve").arg(config);
            let mut process = Process::start("docker-registry", command, &scratch.join("registry.log"));
            let answers = try_until(Duration::from_secs(10), || match process.ended() {
                Some(_) => Some(false),
                None => (http_status(&address, "/v2/") == Some(200)).then_some(true),
            });
            if answers == Some(true) {
                return Self { address, _process: process, _scratch: scratch };
            }
        }
        panic!("the registry does not start");
    }

    /// The full name of one of the stand-in images.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }
}

/// The status of a plain HTTP GET, or nothing when nobody answers.
pub(crate) fn http_status(address: &str, path: &str) -> Option<u16> {
    http_get(address, path).map(|(status, _)| status)
}

/// A plain HTTP GET: status and body.
pub(crate) fn http_get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    // HTTP/1.0: the body ends with the connection, in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
