//! Leases and progress on other versions of containerd.

use crate::lab::containerd::Containerd;
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

fn run(peer: &'static str) {
    if let Some(reason) = parts::missing_for_peers(&[peer]) {
        return parts::skip(&format!("leases: {peer}"), &reason);
    }
    let node = Containerd::start(&peer_dir(peer).join("containerd"));
    tokio::runtime::Runtime::new().expect("a runtime").block_on(pulls_under_leases::run(node));
}
