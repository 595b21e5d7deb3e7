//! A private containerd: own folders, socket, bridge and subnet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::disk::Disk;
use super::network::{Network, plugins};
use super::process::Process;
use super::registry::Registry;
use super::scratch::Scratch;
use super::{client, parts, wait};

/// The names under which critest asks for images; the loopback registry answers for all of them.
pub(crate) const MIRRORED: [&str; 4] = ["docker.io", "gcr.io", "k8s.gcr.io", "registry.k8s.io"];

#[derive(Debug)]
pub(crate) struct Containerd {
    pub(crate) socket: PathBuf,
    binary: PathBuf,
    process: Option<Process>,
    pub(crate) registry: Arc<Registry>,
    // The order matters: the bridge goes after the pods, the folder last.
    _network: Network,
    pub(crate) scratch: Scratch,
}

impl Containerd {
    /// The machine's own containerd.
    pub(crate) fn of_the_machine() -> Self {
        Self::start(&parts::find("containerd").expect("containerd"))
    }

    /// Starts a containerd whose shim is in the same folder as `binary`.
    pub(crate) fn start(binary: &Path) -> Self {
        Self::start_in(Scratch::new(), binary)
    }

    /// The same with its images and containers on a filesystem of so many MiB.
    pub(crate) fn start_on_a_disk(binary: &Path, mebibytes: u64) -> (Self, Disk) {
        let scratch = Scratch::new();
        let disk = Disk::mount(&scratch, "root", mebibytes);
        (Self::start_in(scratch, binary), disk)
    }

    fn start_in(scratch: Scratch, binary: &Path) -> Self {
        let network = Network::claim();
        let registry = Registry::shared();
        network.write_cni(&scratch.join("cni"), true);
        write_mirrors(&scratch, &registry.address);
        scratch.write("config.toml", &config(&scratch, &registry.address));
        let mut containerd = Self {
            socket: scratch.join("containerd.sock"),
            binary: binary.to_owned(),
            process: None,
            registry,
            _network: network,
            scratch,
        };
        containerd.restart();
        containerd
    }

    /// Starts containerd again after [`Self::kill`], and waits until it answers.
    pub(crate) fn restart(&mut self) {
        let mut process = self.spawn();
        let version = wait::try_until(Duration::from_secs(60), || match process.ended() {
            Some(_) => Some(None),
            None => client::version(&self.socket).map(Some),
        });
        assert!(version.flatten().is_some(), "containerd does not answer\n{}", process.log_tail());
        self.process = Some(process);
    }

    fn spawn(&self) -> Process {
        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(self.scratch.join("config.toml"));
        // containerd looks for its shim on the PATH, and it has to be the one of its own version.
        let dirs = [self.binary.parent().expect("a folder").to_owned(), "/usr/sbin".into(), "/sbin".into()];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = dirs.into_iter().chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(path).expect("a PATH"));
        Process::start("containerd", command, &self.scratch.join("containerd.log"))
    }

    /// Ends containerd as a crash would. Its containers go on.
    pub(crate) fn kill(&mut self) {
        self.process.as_mut().expect("a process").kill();
    }

    /// Lets containerd pull from a registry at `host:port` that speaks plain HTTP.
    pub(crate) fn trust(&self, registry: &str) {
        write_mirror(&self.scratch, registry, registry);
    }

    /// `unix://` and the path, as programs want it.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Only containerd itself takes all of a pod away: network, control groups and runc's state. A test that
        // failed while containerd was down gets it back for that.
        if self.process.as_mut().is_some_and(|process| process.ended().is_some()) {
            self.process = Some(self.spawn());
            wait::try_until(Duration::from_secs(10), || client::version(&self.socket));
        }
        client::remove_pods(&self.socket);
        // Shims that are still there, and their containers, go with the folder.
        self.process = None;
    }
}

/// hosts.toml files, because the older `registry.mirrors` keys make containerd 2.1 and newer leave its normal pull path.
fn write_mirrors(scratch: &Scratch, registry: &str) {
    for host in MIRRORED.into_iter().chain([registry]) {
        write_mirror(scratch, host, registry);
    }
    fs::create_dir_all(scratch.join("opt")).expect("make a folder");
}

fn write_mirror(scratch: &Scratch, host: &str, registry: &str) {
    let hosts = format!(
        "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    scratch.write(&format!("hosts/{host}/hosts.toml"), &hosts);
}

fn config(scratch: &Scratch, registry: &str) -> String {
    let dir = scratch.path().display();
    let plugins = plugins();
    // restrict_oom_score_adj: the machine may lack CAP_SYS_RESOURCE. netns_mounts_under_state_dir: they then go with
    // the folder. NRI listens on one socket per machine, so several nodes have to do without it.
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
[grpc]
  address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{registry}/pause:3.9"
  disable_tcp_service = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{dir}/cni/conf"
    bin_dir = "{plugins}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{dir}/runc"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{dir}/hosts"
"#
    )
}
