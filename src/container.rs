//! What crisp knows of containers.

pub mod census;
pub mod hash;
pub mod shield;
