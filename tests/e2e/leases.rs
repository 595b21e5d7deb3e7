//! Leases and progress on other versions of containerd.

use crisp::containerd::Containerd as Client;

use crate::lab::containerd::Containerd;
use crate::lab::node::Kind;
use crate::lab::parts::{self, peer_dir};
use crate::pulls_under_leases;

#[test]
fn leases_on_containerd_2_4() {
    run("containerd-2.4.2");
}

#[test]
#[ignore = "part of make e2e-all"]
fn leases_on_containerd_1_7() {
    run("containerd-1.7.30");
}

#[test]
#[ignore = "part of make e2e-all"]
fn crio_has_no_leases() {
    let kind = Kind::Crio;
    if let Some(reason) = kind.missing(&[]) {
        return parts::skip("leases: CRI-O", &reason);
    }
    let node = kind.start();
    let supported = async { Client::new(node.socket()).supported().await };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    assert!(!runtime.block_on(supported).expect("CRI-O answers"));
}

fn run(peer: &'static str) {
    if let Some(reason) = parts::missing_for_peers(&[peer]) {
        return parts::skip(&format!("leases: {peer}"), &reason);
    }
    let node = Containerd::start(&peer_dir(peer).join("containerd"));
    tokio::runtime::Runtime::new().expect("a runtime").block_on(pulls_under_leases::run(node));
}
