//! crisp in front of the machine's containerd: what a client sees is what it sees without crisp.
#![expect(clippy::expect_used, clippy::panic, reason = "a test may fail at any point, and says why")]

mod images;
#[path = "../support/lab/mod.rs"]
#[expect(dead_code, reason = "the part that runs nodes is shared with e2e, which uses more of it")]
mod lab;
mod leases;
#[path = "../support/names_and_parking.rs"]
mod names_and_parking;
mod outage;
mod parity;
mod prepulls;
#[path = "../support/prepulls_through_crisp.rs"]
mod prepulls_through_crisp;
mod pulls;
#[path = "../support/pulls_through_crisp.rs"]
#[expect(dead_code, reason = "the long part is that of e2e")]
mod pulls_through_crisp;
#[path = "../support/pulls_under_leases.rs"]
mod pulls_under_leases;
mod queue_crash;
#[path = "../support/random.rs"]
#[expect(dead_code, reason = "fuzzers of messages use more of it")]
mod random;
mod records;
#[path = "../support/records_through_crisp.rs"]
mod records_through_crisp;
#[path = "../support/registry.rs"]
mod registry;
mod rest;
mod streams;
mod suite;
mod transcript;
