//! What is measured: the stub itself, and proxies in front of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context;

use crate::support::client::Client;
use crate::support::load::Caller;
use crate::support::messages::{self, Call};
use crate::support::options::Options;
use crate::support::process::{self, Process};
use crate::support::program;
use crate::support::stub;

/// Names of the targets, as they appear in tables.
pub(crate) const DIRECT: &str = "direct";
/// crisp itself.
pub(crate) const CRISP: &str = "crisp";
/// nginx with `grpc_pass`.
pub(crate) const NGINX: &str = "nginx";
const OTHER: &str = "other crisp";

/// Everything that runs. The fields are dropped in this order: proxies first, the directory last.
#[derive(Debug)]
pub(crate) struct Bench {
    /// What can be called.
    pub(crate) calls: [Call; 5],
    /// Direct first.
    pub(crate) targets: Vec<Target>,
    _stub: Process,
    _directory: tempfile::TempDir,
}

/// One way to the stub.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// For what only a client on h2 alone can do.
    pub(crate) client: Client,
    /// For the load.
    pub(crate) caller: Caller,
    proxy: Option<Proxy>,
}

#[derive(Debug)]
struct Proxy {
    _process: Process,
    /// The process that does the work.
    id: u32,
}

impl Bench {
    /// Starts the stub and the proxies, and connects to each.
    pub(crate) async fn start(options: &Options) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("crisp-bench-").tempdir()?;
        let stub_socket = directory.path().join("stub.sock");
        let calls = messages::calls();
        for call in &calls {
            fs::write(stub::reply_file(&stub_socket, call), &call.reply)?;
        }
        let stub =
            Process::start(Command::new(env::current_exe()?).arg("--stub").arg(&stub_socket), &stub_socket)
                .await?;

        let mut targets = vec![Target::connect(DIRECT, &stub_socket, None, options).await?];
        targets.push(crisp(CRISP, &program::crisp(), directory.path(), &stub_socket, options).await?);
        if let Some(program) = &options.other {
            targets.push(crisp(OTHER, program, directory.path(), &stub_socket, options).await?);
        }
        match nginx_program() {
            Some(program) => targets.push(nginx(&program, directory.path(), &stub_socket, options).await?),
            None => eprintln!(
                "nginx is not installed: its columns are left out (Debian: apt install nginx-light)"
            ),
        }
        Ok(Self { calls, targets, _stub: stub, _directory: directory })
    }
}

impl Target {
    async fn connect(
        name: &'static str,
        socket: &Path,
        proxy: Option<Proxy>,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let client = Client::connect(socket).await?;
        let caller = if options.tonic { Caller::tonic(socket).await? } else { Caller::H2(client.clone()) };
        Ok(Self { name, client, caller, proxy })
    }

    /// CPU time of the proxy so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Option<std::time::Duration>> {
        self.proxy.as_ref().map(|proxy| process::cpu(proxy.id)).transpose()
    }

    /// A memory figure of the proxy.
    pub(crate) fn memory(&self, field: &str) -> anyhow::Result<Option<f64>> {
        self.proxy.as_ref().map(|proxy| process::memory(proxy.id, field)).transpose()
    }
}

async fn crisp(
    name: &'static str,
    program: &Path,
    directory: &Path,
    stub: &Path,
    options: &Options,
) -> anyhow::Result<Target> {
    let directory = directory.join(name.replace(' ', "-"));
    fs::create_dir(&directory)?;
    let socket = directory.join("crisp.sock");
    let unix = |path: &Path| format!("unix://{}", path.display());
    // As it is deployed: settings in a file, metrics, and JSON in the log.
    let settings = directory.join("crisp.yaml");
    let yaml = format!(
        "listen: {}\nruntimeEndpoint: {}\nadminListen: {}\nstateDir: {}\nmetricsListen: 127.0.0.1:0\nlog:\n  format: json\n  \
         level: warn\ndrain:\n  max: 1s\n",
        unix(&socket),
        unix(stub),
        unix(&directory.join("admin.sock")),
        directory.join("state").display()
    );
    fs::write(&settings, yaml)?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(&settings);
    let process = Process::start(&mut command, &socket).await?;
    let proxy = Proxy { id: process.id(), _process: process };
    Target::connect(name, &socket, Some(proxy), options).await
}

async fn nginx(program: &Path, directory: &Path, stub: &Path, options: &Options) -> anyhow::Result<Target> {
    let directory = directory.join("nginx");
    fs::create_dir(&directory)?;
    let socket = directory.join("nginx.sock");
    let config = directory.join("nginx.conf");
    fs::write(&config, nginx_config(&directory, &socket, stub))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(&directory).arg("-c").arg(&config).args(["-e", "stderr"]);
    let process = Process::start(&mut command, &socket).await?;
    let id = process.worker().await.context("nginx")?;
    Target::connect(NGINX, &socket, Some(Proxy { _process: process, id }), options).await
}

/// One worker, and nothing that would make it close a connection or write to disk. Without `user root` the worker
/// may not reach the stub and answers 502 by itself, which is fast and wrong.
fn nginx_config(directory: &Path, socket: &Path, stub: &Path) -> String {
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let (directory, socket, stub) = (directory.display(), socket.display(), stub.display());
    format!(
        "{user}
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    http2_max_concurrent_streams 1024;
    upstream stub {{
        server unix:{stub};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 1h;
    }}
    server {{
        listen unix:{socket} http2;
        location / {{
            grpc_pass grpc://stub;
            grpc_buffer_size 64k;
            grpc_read_timeout 1h;
            grpc_send_timeout 1h;
        }}
    }}
}}
"
    )
}

fn nginx_program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.map(|place| place.join("nginx")).find(|program| program.is_file())
}
