//! Quick tests: crisp between a scripted runtime and a scripted client that both speak raw HTTP/2, and the embedded
//! runtime against a registry in this process. Nothing needs to be installed.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests; clippy's own exemption ends at test functions"
)]

mod back_pressure;
mod byte_identity;
mod cancellation;
mod containerd_api;
mod delegated_calls;
mod drain;
mod embedded_images;
mod embedded_pull;
mod embedded_records;
mod failure_policy;
mod fairness;
mod frame_room;
mod frames;
mod hash_shield;
mod hidden_images;
mod image_spec;
mod kube_api;
mod leaks;
mod mapped_images;
mod module_edges;
mod mutated_frames;
mod operating;
mod own_pulls;
mod pinned_images;
mod pins_give_way;
mod plans;
mod prepull_cli;
mod pull_priority;
mod pulls;
mod random_frames;
mod records;
mod restarts;
mod runtime_away;
mod runtime_frames;
mod service_links;
mod sockets;

#[path = "../support/api_server.rs"]
mod api_server;
#[path = "../support/container_runtime.rs"]
mod container_runtime;
#[path = "../support/cri_messages.rs"]
mod cri_messages;
#[path = "../support/embedded.rs"]
mod embedded;
#[path = "../support/image_list.rs"]
mod image_list;
#[path = "../support/pulling_runtime.rs"]
mod pulling_runtime;
#[path = "../support/registry.rs"]
mod registry;
#[path = "../support/mod.rs"]
mod support;
