//! Records and restarts on the machine's containerd.

use crate::lab::node::Kind;
use crate::lab::parts;
use crate::records_through_crisp;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_through_crisp_on_the_machines_containerd() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: records", &reason);
    }
    records_through_crisp::run(Kind::MachineContainerd.start()).await;
}
