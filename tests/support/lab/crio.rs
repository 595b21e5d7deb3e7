//! A private CRI-O.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::network::{Network, plugins};
use super::parts::peer_dir;
use super::process::{Process, run};
use super::registry::Registry;
use super::scratch::Scratch;
use super::{client, containerd, parts, wait};

/// The Go peers that it is made of.
pub(crate) const PEERS: [&str; 2] = ["crio-1.36.3", "runc-1.4.0"];

#[derive(Debug)]
pub(crate) struct Crio {
    pub(crate) socket: PathBuf,
    process: Option<Process>,
    pub(crate) registry: Arc<Registry>,
    _network: Network,
    pub(crate) scratch: Scratch,
}

impl Crio {
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        let network = Network::claim();
        let registry = Registry::shared();
        network.write_cni(&scratch.join("cni"), false);
        open_host_ports(&network);
        write_config(&scratch, &registry.address);
        let mut crio =
            Self { socket: scratch.join("crio.sock"), process: None, registry, _network: network, scratch };
        crio.restart();
        crio
    }

    /// Starts CRI-O again after [`Self::kill`], and waits until it answers.
    pub(crate) fn restart(&mut self) {
        let mut process = self.spawn();
        let version = wait::try_until(Duration::from_secs(60), || match process.ended() {
            Some(_) => Some(None),
            None => client::version(&self.socket).map(Some),
        });
        assert!(version.flatten().is_some(), "CRI-O does not answer\n{}", process.log_tail());
        self.process = Some(process);
    }

    fn spawn(&self) -> Process {
        let _ = fs::remove_file(&self.socket);
        let mut command = Command::new(peer_dir(PEERS[0]).join("crio"));
        command.env("CONTAINERS_STORAGE_CONF", self.scratch.join("storage.conf"));
        command.arg("--config").arg(self.scratch.join("crio.conf"));
        command.arg("--config-dir").arg(self.scratch.join("none"));
        command.arg("--registries-conf").arg(self.scratch.join("registries.conf"));
        command.arg("--registries-conf-dir").arg(self.scratch.join("none"));
        Process::start("crio", command, &self.scratch.join("crio.log"))
    }

    /// Ends CRI-O as a crash would. Its containers go on.
    pub(crate) fn kill(&mut self) {
        self.process.as_mut().expect("a process").kill();
    }

    /// Lets CRI-O pull from a registry at `host:port` that speaks plain HTTP. It reads that when it starts.
    pub(crate) fn trust(&mut self, registry: &str) {
        let path = self.scratch.join("registries.conf");
        let mut registries = fs::read_to_string(&path).expect("read registries.conf");
        registries += &mirror(registry, registry);
        fs::write(path, registries).expect("write registries.conf");
        self.kill();
        self.restart();
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

impl Drop for Crio {
    fn drop(&mut self) {
        // Only CRI-O itself takes all of a pod away. A test that failed while it was down gets it back for that.
        if self.process.as_mut().is_some_and(|process| process.ended().is_some()) {
            self.process = Some(self.spawn());
            wait::try_until(Duration::from_secs(10), || client::version(&self.socket));
        }
        client::remove_pods(&self.socket);
        // Monitors that are still there, and their containers, go with the folder.
        self.process = None;
    }
}

/// Lets the machine itself reach host ports over the loopback interface. CRI-O maps them; 127.0.0.1 as a source needs
/// a route and an address of the bridge. Both go with the network.
fn open_host_ports(network: &Network) {
    let (bridge, table) = (network.bridge(), network.table());
    run(Command::new("ip").args(["link", "add", &bridge, "type", "bridge"]));
    fs::write(format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"), "1").expect("route_localnet");
    run(Command::new(parts::find("nft").expect("nft")).arg(format!(
        "table ip {table} {{ chain post {{ type nat hook postrouting priority 100; \
         oifname \"{bridge}\" ip saddr 127.0.0.0/8 masquerade; }}; }}"
    )));
}

fn mirror(prefix: &str, registry: &str) -> String {
    format!("[[registry]]\nprefix = \"{prefix}\"\nlocation = \"{registry}\"\ninsecure = true\n")
}

fn write_config(scratch: &Scratch, registry: &str) {
    let dir = scratch.path().display();
    for folder in ["hooks", "ns", "policies", "none"] {
        fs::create_dir_all(scratch.join(folder)).expect("make a folder");
    }
    // In memory: CRI-O syncs its storage to disk for every pod, and waits for every other writer of the machine.
    let root = scratch.join("root");
    fs::create_dir_all(&root).expect("make a folder");
    run(Command::new("mount").args(["-t", "tmpfs", "crisp-lab"]).arg(&root));
    scratch.write("policy.json", r#"{"default":[{"type":"insecureAcceptAnything"}]}"#);
    scratch.write(
        "storage.conf",
        &format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"{dir}/root\"\nrunroot = \"{dir}/run\"\n"),
    );
    let mut registries =
        "short-name-mode = \"disabled\"\nunqualified-search-registries = [\"docker.io\"]\n".to_owned();
    for prefix in containerd::MIRRORED.into_iter().chain(["docker.io/library", registry]) {
        registries += &mirror(prefix, registry);
    }
    scratch.write("registries.conf", &registries);
    let wrapper = write_wrapper(scratch);
    scratch.write("crio.conf", &config(scratch, registry, &wrapper));
}

/// The machine may lack CAP_SYS_RESOURCE. CRI-O gives negative OOM scores to sandboxes and that capability to
/// privileged containers; both are taken out of what runc gets to see. So are the limits on huge pages, which a kubelet
/// always sends and which fail where that controller is not mounted.
fn write_wrapper(scratch: &Scratch) -> PathBuf {
    let runc = peer_dir(PEERS[1]).join("runc");
    let wrapper = scratch.write(
        "runc",
        &format!(
            r#"#!/bin/sh
file=; previous=
for argument; do
  case $previous in -b|--bundle) file=$argument/config.json;; -p|--process) file=$argument;; esac
  previous=$argument
done
[ -f "$file" ] && sed -z -i -E -e 's/"oomScoreAdj": *-[0-9]+/"oomScoreAdj": 0/g; s/"CAP_SYS_RESOURCE", *//g; s/,[[:space:]]*"CAP_SYS_RESOURCE"//g; s/,[[:space:]]*"hugepageLimits": *\[[^]]*\]//; s/"hugepageLimits": *\[[^]]*\],//' "$file"
exec {runc} "$@"
"#,
            runc = runc.display()
        ),
    );
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("make the wrapper executable");
    wrapper
}

fn config(scratch: &Scratch, registry: &str, runc: &Path) -> String {
    let dir = scratch.path().display();
    let runc = runc.display();
    let pinns = peer_dir(PEERS[0]).join("pinns");
    let pinns = pinns.display();
    let conmon = parts::find("conmon").expect("conmon");
    let conmon = conmon.display();
    let plugins = plugins();
    format!(
        r#"[crio]
root = "{dir}/root"
runroot = "{dir}/run"
storage_driver = "overlay"
log_dir = "{dir}/podlogs"
version_file = "{dir}/version"
version_file_persist = "{dir}/version.persist"
clean_shutdown_file = "{dir}/clean.shutdown"
[crio.api]
listen = "{dir}/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
conmon = "{conmon}"
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "{pinns}"
namespaces_dir = "{dir}/ns"
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
hooks_dir = ["{dir}/hooks"]
drop_infra_ctr = true
irqbalance_config_restore_file = "disable"
enable_pod_events = true
log_level = "info"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_type = "oci"
runtime_root = "{dir}/runc-root"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{registry}/pause:3.10.1"
pause_command = ""
signature_policy = "{dir}/policy.json"
signature_policy_dir = "{dir}/policies"
short_name_mode = "disabled"
namespaced_auth_dir = "{dir}/auth"
[crio.network]
network_dir = "{dir}/cni/conf"
plugin_dirs = ["{plugins}"]
[crio.nri]
enable_nri = false
"#
    )
}
