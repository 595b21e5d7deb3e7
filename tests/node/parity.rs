//! The whole suite, directly and through crisp, with equal results.

use crate::lab::containerd::Containerd;
use crate::lab::crisp::Crisp;
use crate::lab::parts;
use crate::suite;

/// Runs the suite on one containerd in three ways: directly, through crisp, and directly again. The third run tells
/// a difference that crisp makes from one that the runtime makes by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_directly_and_through_crisp() {
    if let Some(reason) = parts::missing_for_node() {
        return parts::skip("node: containerd", &reason);
    }
    let node = Containerd::of_the_machine();
    let mut crisp = Crisp::start(&node.endpoint());

    let direct = suite::run(&node.socket, &node.registry, "a").await;
    let proxied = suite::run(&crisp.socket, &node.registry, "b").await;
    let again = suite::run(&node.socket, &node.registry, "c").await;

    assert_eq!(direct.len(), again.len(), "the runtime itself answers differently from run to run");
    for ((direct, proxied), again) in direct.iter().zip(&proxied).zip(&again) {
        assert_eq!(direct, again, "the runtime itself answers differently from run to run");
        assert_eq!(direct, proxied, "crisp makes a difference\n{}", crisp.log_tail());
    }
    assert_eq!(direct.len(), proxied.len());
    let status = crisp.stop();
    assert!(status.is_some_and(|status| status.success()), "crisp ended with {status:?}");
}
