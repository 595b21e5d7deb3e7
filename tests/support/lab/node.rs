//! A runtime of any kind that runs for real.

use std::fs;
use std::path::Path;

use super::containerd::Containerd;
use super::crio::Crio;
use super::critest;
use super::parts::{self, peer_dir};
use super::registry::Registry;

/// Which runtime a node has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The machine's own containerd: 1.6 on Debian bookworm.
    MachineContainerd,
    /// A containerd built as a Go peer.
    Containerd(&'static str),
    Crio,
}

#[derive(Debug)]
pub(crate) enum Node {
    Containerd(Containerd),
    Crio(Crio),
}

impl Kind {
    /// Why this kind of node, or `peers` beside it, cannot run here, if so.
    pub(crate) fn missing(self, peers: &[&str]) -> Option<String> {
        let mut needed = vec![critest::PEER];
        needed.extend(peers);
        match self {
            Self::MachineContainerd => {}
            Self::Containerd(peer) => needed.push(peer),
            Self::Crio => {
                needed.extend(super::crio::PEERS);
                if let Some(program) = ["conmon", "nft"].into_iter().find(|p| parts::find(p).is_none()) {
                    return Some(format!("not installed: {program}"));
                }
            }
        }
        parts::missing_for_peers(&needed)
    }

    pub(crate) fn start(self) -> Node {
        match self {
            Self::MachineContainerd => Node::Containerd(Containerd::of_the_machine()),
            Self::Containerd(peer) => Node::Containerd(Containerd::start(&peer_dir(peer).join("containerd"))),
            Self::Crio => Node::Crio(Crio::start()),
        }
    }
}

impl Node {
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> &Path {
        match self {
            Self::Containerd(node) => &node.socket,
            Self::Crio(node) => &node.socket,
        }
    }

    pub(crate) fn registry(&self) -> &Registry {
        match self {
            Self::Containerd(node) => &node.registry,
            Self::Crio(node) => &node.registry,
        }
    }

    /// Lets the runtime pull from a registry at `host:port` that speaks plain HTTP.
    pub(crate) fn trust(&mut self, registry: &str) {
        match self {
            Self::Containerd(node) => node.trust(registry),
            Self::Crio(node) => node.trust(registry),
        }
    }

    /// What the runtime has logged.
    pub(crate) fn log(&self) -> String {
        let path = match self {
            Self::Containerd(node) => node.scratch.join("containerd.log"),
            Self::Crio(node) => node.scratch.join("crio.log"),
        };
        fs::read_to_string(path).expect("read the log")
    }

    /// Ends the runtime as a crash would. Its containers go on.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Containerd(node) => node.kill(),
            Self::Crio(node) => node.kill(),
        }
    }

    /// Starts the runtime again and waits until it answers.
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Containerd(node) => node.restart(),
            Self::Crio(node) => node.restart(),
        }
    }
}
