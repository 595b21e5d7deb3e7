//! What crisp knows of containers.

pub mod hash;
