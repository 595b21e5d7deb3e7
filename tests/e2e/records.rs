//! Records and restarts on other runtimes.

use crate::lab::node::Kind;
use crate::lab::parts;
use crate::{records_through_crisp, report};

#[test]
fn records_on_containerd_2_4() {
    run(Kind::Containerd("containerd-2.4.2"));
}

#[test]
#[ignore = "part of make e2e-all"]
fn records_on_containerd_1_7() {
    run(Kind::Containerd("containerd-1.7.30"));
}

#[test]
#[ignore = "part of make e2e-all"]
fn records_on_crio_1_36() {
    run(Kind::Crio);
}

fn run(kind: Kind) {
    if let Some(reason) = kind.missing(&[]) {
        return parts::skip(&format!("records: {kind:?}"), &reason);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for figure in runtime.block_on(records_through_crisp::run(kind.start())) {
        report::add_note(&figure);
    }
}
