//! What is counted of containers.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The families.
#[derive(Debug)]
pub struct Containers {
    shielded: Gauge,
    refuted: Gauge,
}

impl Containers {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let containers = Self { shielded: Gauge::default(), refuted: Gauge::default() };
        registry.register(
            "hash_shield_containers",
            "Containers with a foreign hash that have not changed: shown with the kubelet's own hash (or would be, in \
             dry-run)",
            containers.shielded.clone(),
        );
        registry.register(
            "hash_shield_refuted",
            "1 if a kubelet computes hashes in a way unknown to crisp, so that the shield has switched itself off",
            containers.refuted.clone(),
        );
        containers
    }

    /// Notes how many containers have an answer.
    pub fn shielded(&self, count: usize) {
        self.shielded.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Notes that the shield has switched itself off.
    pub fn shield_refuted(&self) {
        self.refuted.set(1);
    }
}
