//! crisp: a CRI proxy between the kubelet and the container runtime.

pub mod admin;
pub mod app;
pub mod config;
pub mod cri;
pub mod error;
pub mod intercept;
pub mod metrics;
pub mod proxy;
pub mod shutdown;
pub mod telemetry;
pub mod wire;
