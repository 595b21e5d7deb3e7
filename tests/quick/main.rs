//! Tests that need nothing but this process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

mod embedded_images;
mod embedded_pull;
mod embedded_records;

#[path = "../support/embedded.rs"]
mod embedded;
#[path = "../support/registry.rs"]
mod registry;
