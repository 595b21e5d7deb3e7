//! Image records on the machine's containerd.

use crate::lab::containerd::Containerd;
use crate::lab::parts;
use crate::names_and_parking;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_parking_on_the_machines_containerd() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: images", &reason);
    }
    names_and_parking::run(Containerd::of_the_machine()).await;
}
