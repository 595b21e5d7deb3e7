//! What this machine has of the parts that tests need, and how a test says that it cannot run.

#[path = "../skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use self::skip::skip;

/// The reason why a private containerd cannot run here, if there is one.
pub(crate) fn missing_for_node() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if !has_capabilities() {
        return Some(
            "needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, not that of a plain container".to_owned(),
        );
    }
    let mut missing: Vec<&str> =
        ["containerd", "runc", "docker-registry", "umoci", "skopeo", "busybox", "ip", "umount", "iptables"]
            .into_iter()
            .filter(|program| find(program).is_none())
            .collect();
    if cni_bin_dir().is_none() {
        missing.push("CNI plugins");
    }
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
}

/// Whether root may do here what root may do on a machine: in an unprivileged container it may not.
fn has_capabilities() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default();
    effective & NET_ADMIN != 0 && effective & SYS_ADMIN != 0
}

/// The same for the programs of one or more Go peers, which `make e2e` builds.
pub(crate) fn missing_for_peers(peers: &[&str]) -> Option<String> {
    missing_for_node().or_else(|| not_built(peers))
}

/// The same for peers that need nothing else.
pub(crate) fn not_built(peers: &[&str]) -> Option<String> {
    let missing: Vec<_> = peers.iter().copied().filter(|peer| !peer_dir(peer).is_dir()).collect();
    (!missing.is_empty()).then(|| format!("not built: {}", missing.join(", ")))
}

/// The folder of a Go peer's programs, see tests/peers/build.sh.
pub(crate) fn peer_dir(peer: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/build.sh");
    super::process::run(Command::new(script).args(["--where", peer])).trim_end().into()
}

/// Looks a program up on the PATH and in the folders of system programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Where the CNI plugins are: Debian's folder, or the customary one.
pub(crate) fn cni_bin_dir() -> Option<&'static str> {
    ["/usr/lib/cni", "/opt/cni/bin"].into_iter().find(|dir| Path::new(dir).join("bridge").exists())
}
