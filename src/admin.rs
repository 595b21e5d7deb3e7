//! What people and monitoring see of a running crisp: the admin API on a unix socket, health and metrics on TCP,
//! and the commands that use the former.

pub mod cli;
pub mod client;
pub mod health;
pub mod http;
mod limited;
pub mod links;
pub mod prepull;
mod restarts;
pub mod status;
