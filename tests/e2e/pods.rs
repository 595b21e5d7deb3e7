//! Kubelets run pods through crisp, and their containers outlive crashes of crisp and of the runtime.

use std::time::{Duration, Instant};

use crate::lab::crisp::Crisp;
use crate::lab::images::BUSYBOX;
use crate::lab::kubelet::{Kubelet, Running};
use crate::lab::node::{Kind, Node};
use crate::lab::{client, parts, process, wait};
use crate::report;

const NEWEST: Kind = Kind::Containerd("containerd-2.4.2");

/// The kubelet tries again after at most 15 s when a call for a pod failed.
const POD_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    /// All of CRI goes through crisp.
    Full,
    /// Only the image service does.
    ImagesOnly,
}

#[test]
fn kubelet_1_36_full() {
    run_pods("kubelet-1.36.3", Mode::Full, NEWEST);
}

#[test]
fn kubelet_1_36_images_only() {
    run_pods("kubelet-1.36.3", Mode::ImagesOnly, NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn kubelet_1_31_full() {
    run_pods("kubelet-1.31.0", Mode::Full, NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn kubelet_1_31_images_only() {
    run_pods("kubelet-1.31.0", Mode::ImagesOnly, NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn kubelet_1_37_full() {
    run_pods("kubelet-1.37.0", Mode::Full, NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn kubelet_1_37_images_only() {
    run_pods("kubelet-1.37.0", Mode::ImagesOnly, NEWEST);
}

#[test]
#[ignore = "part of make e2e-all"]
fn kubelet_1_36_full_on_crio() {
    run_pods("kubelet-1.36.3", Mode::Full, Kind::Crio);
}

fn run_pods(peer: &str, mode: Mode, kind: Kind) {
    if let Some(reason) = kind.missing(&[peer]) {
        return parts::skip(&format!("{peer}, {mode:?}"), &reason);
    }
    let began = Instant::now();
    let mut node = kind.start();
    let mut crisp = Crisp::start(&node.endpoint());
    let mut kubelet = match mode {
        Mode::Full => Kubelet::start(peer, &crisp.endpoint(), None),
        Mode::ImagesOnly => Kubelet::start(peer, &node.endpoint(), Some(&crisp.endpoint())),
    };
    let image = node.registry().image(BUSYBOX);
    let start = |kubelet: &mut Kubelet, name: &str| {
        kubelet.add_pod(name, &image);
        kubelet.wait_running(name, POD_LIMIT)
    };
    let first = start(&mut kubelet, "first");
    let second = start(&mut kubelet, "second");
    let pid = client::container_pid(node.socket(), &first.container).expect("the container's process");

    crisp.kill();
    if mode == Mode::Full {
        await_complaint(&kubelet);
    }
    assert!(process::is_alive(pid), "the container went with crisp");
    crisp.restart();
    start(&mut kubelet, "after-crisp");
    assert_untouched(&mut kubelet, &node, "first", &first, pid);

    node.kill();
    await_complaint(&kubelet);
    assert!(process::is_alive(pid), "the container went with the runtime");
    node.restart();
    start(&mut kubelet, "after-runtime");
    assert_untouched(&mut kubelet, &node, "first", &first, pid);

    // Ending a pod is a matter of many calls, too.
    kubelet.remove_pod("second");
    kubelet.wait_gone("second", POD_LIMIT);
    wait::until("the container goes", POD_LIMIT, || {
        client::container_pid(node.socket(), &second.container).is_none_or(|pid| pid == 0).then_some(())
    });
    let runtime = client::version(node.socket()).expect("the runtime's version");
    let runtime = format!("{} {}", runtime.runtime_name, runtime.runtime_version);
    let mode = if mode == Mode::Full { "full" } else { "image endpoint only" };
    report::add_kubelet(peer.trim_start_matches("kubelet-"), mode, &runtime, began.elapsed());
}

/// Waits until the kubelet has met the outage: a call of its own failed for want of a runtime.
fn await_complaint(kubelet: &Kubelet) {
    let before = kubelet.log().len();
    wait::until("the kubelet notices the outage", Duration::from_secs(60), || {
        let log = kubelet.log();
        log.get(before..).is_some_and(|new| new.contains("Unavailable")).then_some(())
    });
}

/// The same container as before, in the kubelet's eyes and by its process.
fn assert_untouched(kubelet: &mut Kubelet, node: &Node, name: &str, before: &Running, pid: u32) {
    assert_eq!(before.restarts, 0);
    assert_eq!(&kubelet.wait_running(name, POD_LIMIT), before, "the container was restarted");
    assert_eq!(
        client::container_pid(node.socket(), &before.container),
        Some(pid),
        "the container has a new process"
    );
    assert!(process::is_alive(pid), "the container's process is gone");
}
