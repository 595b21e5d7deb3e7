//! What crisp knows of containers.

pub mod census;
pub mod hash;
pub mod keys;
pub mod record;
pub mod restart;
pub mod shield;

/// Something to be told of a pod, where the API server can be reached: an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid, as the API server knows it.
    pub uid: String,
    /// One word, in the form `ContainerRestarted`.
    pub reason: String,
    /// What happened, in a sentence.
    pub message: String,
    /// Something is wrong, rather than worth knowing.
    pub warning: bool,
}
