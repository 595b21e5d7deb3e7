//! A subnet and bridge name for one node that no other node on this machine has.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::parts::cni_bin_dir;
use super::process::run_quietly;

/// Holds a /24 below 10.88.0.0/16 until dropped. The claim is a file lock, so that it also ends with the process.
#[derive(Debug)]
pub(crate) struct Network {
    number: u8,
    _lock: File,
}

impl Network {
    pub(crate) fn claim() -> Self {
        let dir = std::env::temp_dir();
        for number in 1..=250_u8 {
            let lock =
                File::options().create(true).append(true).open(dir.join(format!(".crisp-subnet-{number}")));
            let lock = lock.expect("open the subnet's lock");
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let network = Self { number, _lock: lock };
            // A bridge without a holder of its lock was left by a test program that was killed.
            network.remove_bridge();
            return network;
        }
        panic!("all subnets are in use");
    }

    pub(crate) fn bridge(&self) -> String {
        format!("crisp{}", self.number)
    }

    pub(crate) fn subnet(&self) -> String {
        format!("10.88.{}.0/24", self.number)
    }

    /// Writes the CNI configuration; `host_ports` adds the plugin that maps them.
    pub(crate) fn write_cni(&self, dir: &Path, host_ports: bool) {
        let port_map = r#",{"type":"portmap","capabilities":{"portMappings":true}}"#;
        let config = format!(
            r#"{{"cniVersion":"0.4.0","name":"{bridge}","plugins":[{{"type":"bridge","bridge":"{bridge}",
"isGateway":true,"ipMasq":false,"hairpinMode":true,"ipam":{{"type":"host-local","dataDir":"{ipam}",
"ranges":[[{{"subnet":"{subnet}"}}]],"routes":[{{"dst":"0.0.0.0/0"}}]}}}}{port_map}]}}"#,
            bridge = self.bridge(),
            subnet = self.subnet(),
            ipam = dir.join("ipam").display(),
            port_map = if host_ports { port_map } else { "" },
        );
        fs::create_dir_all(dir.join("conf")).expect("make the CNI folder");
        fs::write(dir.join("conf/10-crisp.conflist"), config).expect("write the CNI configuration");
    }

    /// The name of an nft table that belongs to the bridge.
    pub(crate) fn table(&self) -> String {
        format!("{}-lab", self.bridge())
    }

    fn remove_bridge(&self) {
        if Path::new("/sys/class/net").join(self.bridge()).exists() {
            run_quietly("ip", &["link", "delete", &self.bridge()]);
            run_quietly("nft", &["delete", "table", "ip", &self.table()]);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove_bridge();
    }
}

/// The CNI plugins' folder, of a machine that was found to have it.
pub(crate) fn plugins() -> &'static str {
    cni_bin_dir().expect("CNI plugins")
}

/// A TCP port of the loopback interface that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind a loopback port");
    listener.local_addr().expect("its address").port()
}
