//! critest, crictl and kubelets through crisp, on real runtimes. `make e2e` runs the subset that CI has time for,
//! `make e2e-all` also the tests that are marked as ignored.
#![expect(clippy::expect_used, clippy::panic, reason = "a test may fail at any point, and says why")]

mod conformance;
mod crictl;
mod images;
mod kubelet_prepull;
mod kubelet_pulls;
#[path = "../support/lab/mod.rs"]
#[expect(dead_code, reason = "the part that runs nodes is shared with the tests of one node")]
mod lab;
mod leases;
mod member;
#[path = "../support/names_and_parking.rs"]
mod names_and_parking;
mod pods;
mod prepulls;
#[path = "../support/prepulls_through_crisp.rs"]
mod prepulls_through_crisp;
mod pulls;
#[path = "../support/pulls_through_crisp.rs"]
mod pulls_through_crisp;
#[path = "../support/pulls_under_leases.rs"]
mod pulls_under_leases;
mod records;
#[path = "../support/records_through_crisp.rs"]
mod records_through_crisp;
mod references;
#[path = "../support/registry.rs"]
mod registry;
mod report;
mod restarts;
mod service_links;
#[path = "../support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "shared with the quick tests, which use more of it")]
mod support;
mod upgrade;
