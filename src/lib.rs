//! crisp

pub mod wire;
