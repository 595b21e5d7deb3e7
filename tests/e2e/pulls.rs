//! Pulls through crisp on other runtimes, and the long ones on each containerd.

use crate::lab::node::{Kind, Node};
use crate::lab::parts;
use crate::{pulls_through_crisp, report};

const NEWEST: Kind = Kind::Containerd("containerd-2.4.2");
const OLDER: Kind = Kind::Containerd("containerd-1.7.30");

#[test]
fn pulls_on_containerd_2_4() {
    run(NEWEST, pulls_through_crisp::run);
}

#[test]
#[ignore = "part of make e2e-all"]
fn pulls_on_containerd_1_7() {
    run(OLDER, pulls_through_crisp::run);
}

#[test]
#[ignore = "part of make e2e-all"]
fn pulls_on_crio_1_36() {
    run(Kind::Crio, pulls_through_crisp::run);
}

#[test]
#[ignore = "part of make e2e-all"]
fn long_pulls_on_the_machines_containerd() {
    run(Kind::MachineContainerd, pulls_through_crisp::run_long);
}

#[test]
#[ignore = "part of make e2e-all"]
fn long_pulls_on_containerd_1_7() {
    run(OLDER, pulls_through_crisp::run_long);
}

#[test]
#[ignore = "part of make e2e-all"]
fn long_pulls_on_containerd_2_4() {
    run(NEWEST, pulls_through_crisp::run_long);
}

fn run(kind: Kind, suite: impl AsyncFnOnce(Node) -> Vec<String>) {
    if let Some(reason) = kind.missing(&[]) {
        return parts::skip(&format!("pulls: {kind:?}"), &reason);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for figure in runtime.block_on(suite(kind.start())) {
        report::add_note(&figure);
    }
}
