//! Tests that need nothing but this process.

mod embedded_images;
mod embedded_pull;
mod embedded_records;

#[path = "../support/embedded.rs"]
mod embedded;
#[path = "../support/registry.rs"]
mod registry;
