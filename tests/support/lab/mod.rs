//! Real peers for tests: a loopback registry, private runtimes, an API server, kubelets, critest, and crisp itself.
//!
//! Everything lives below one temporary folder per node ([`scratch::Scratch`]) and goes away when its value is
//! dropped, also when the test fails: processes by their ids, pods, mounts, bridges, folders. Several nodes may run at
//! once, in one test program or in several, so nothing here uses a fixed port, subnet, socket or name.

pub(crate) mod cgroup;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod containerd;
pub(crate) mod crio;
pub(crate) mod crisp;
pub(crate) mod critest;
pub(crate) mod disk;
pub(crate) mod images;
pub(crate) mod kubelet;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod parts;
pub(crate) mod process;
pub(crate) mod registry;
pub(crate) mod scratch;
pub(crate) mod wait;
