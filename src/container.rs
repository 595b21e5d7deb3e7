//! What crisp knows and decides about containers and the pods they are of.

pub mod census;
pub mod hash;
pub mod links;
pub mod service_links;
pub mod shield;

/// Something that is told to the owner of a pod as an Event on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub uid: String,
    /// One word in CamelCase for machines.
    pub reason: &'static str,
    /// What happened and what to do.
    pub message: String,
    /// Whether somebody should look at it.
    pub warning: bool,
}
