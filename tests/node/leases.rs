//! Leases and progress on the machine's containerd.

use crate::lab::containerd::Containerd;
use crate::lab::parts;
use crate::pulls_under_leases;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_under_leases_on_the_machines_containerd() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: leases", &reason);
    }
    pulls_under_leases::run(Containerd::of_the_machine()).await;
}
