//! What is counted of containers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The families.
#[derive(Debug)]
pub struct Containers {
    restarts: Family<CauseLabel, Counter>,
    records: Family<FormLabel, Counter>,
    /// Bytes of labels with records on the node, as far as it is known.
    pub label_bytes: Gauge,
    /// Created containers that nobody had time to look at.
    pub overlooked: Counter,
    shielded: Gauge,
    unknown: Gauge,
    refuted: Gauge,
}

/// In which form a container got its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All of it is in the label.
    Inline,
    /// Its digest is in the label.
    Digest,
    /// It got none.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormLabel {
    form: &'static str,
}

impl Containers {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let containers = Self {
            restarts: Family::default(),
            records: Family::default(),
            label_bytes: Gauge::default(),
            overlooked: Counter::default(),
            shielded: Gauge::default(),
            unknown: Gauge::default(),
            refuted: Gauge::default(),
        };
        registry.register(
            "container_restarts",
            "Containers that were made again, by cause",
            containers.restarts.clone(),
        );
        registry.register(
            "records",
            "Containers to be created, by the form of the record they got",
            containers.records.clone(),
        );
        registry.register(
            "record_label_bytes",
            "Bytes of the labels that hold records, on the whole node",
            containers.label_bytes.clone(),
        );
        registry.register(
            "containers_overlooked",
            "Created containers that were not looked at, because too many came at once",
            containers.overlooked.clone(),
        );
        registry.register(
            "hash_shield_containers",
            "Containers with a foreign hash that have not changed: shown with the kubelet's own hash (or would be, in \
             dry-run)",
            containers.shielded.clone(),
        );
        registry.register(
            "hash_shield_unknown",
            "Containers of which it is not known whether they have changed: they are shown as they are",
            containers.unknown.clone(),
        );
        registry.register(
            "hash_shield_refuted",
            "1 if a kubelet computes hashes in a way unknown to crisp, so that the shield has switched itself off",
            containers.refuted.clone(),
        );
        containers
    }

    /// Counts a restart.
    pub fn restarted(&self, cause: &'static str) {
        self.restarts.get_or_create(&CauseLabel { cause }).inc();
    }

    /// Counts a container to be created.
    pub fn recorded(&self, form: Form) {
        let form = match form {
            Form::Inline => "inline",
            Form::Digest => "digest",
            Form::None => "none",
        };
        self.records.get_or_create(&FormLabel { form }).inc();
    }

    /// Notes how many containers have an answer, and of how many nothing is known.
    pub fn shielded(&self, answered: usize, unknown: usize) {
        self.shielded.set(i64::try_from(answered).unwrap_or(i64::MAX));
        self.unknown.set(i64::try_from(unknown).unwrap_or(i64::MAX));
    }

    /// Notes that the shield has switched itself off.
    pub fn shield_refuted(&self) {
        self.refuted.set(1);
    }
}
