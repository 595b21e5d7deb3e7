//! Images that come to the node before the pods do.
//!
//! [`sight`] is what the kubelet is told of them: which are pinned, which are not to be seen yet, and under which other
//! name one is found.

pub mod sight;

pub use sight::{Pin, Sight};
