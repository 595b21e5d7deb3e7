//! Image records on other versions of containerd.

use crate::lab::containerd::Containerd;
use crate::lab::parts::{self, peer_dir};
use crate::names_and_parking;

#[test]
fn names_and_parking_on_containerd_2_4() {
    run("containerd-2.4.2");
}

#[test]
#[ignore = "part of make e2e-all"]
fn names_and_parking_on_containerd_1_7() {
    run("containerd-1.7.30");
}

fn run(peer: &'static str) {
    if let Some(reason) = parts::missing_for_peers(&[peer]) {
        return parts::skip(&format!("images: {peer}"), &reason);
    }
    let node = Containerd::start(&peer_dir(peer).join("containerd"));
    tokio::runtime::Runtime::new().expect("a runtime").block_on(names_and_parking::run(node));
}
