//! Pulls: one flight for all who ask for the same image at the same time, kubelets before everyone else.
//!
//! A pull is read as a [`Request`], which tells what makes it equal to others ([`key`]) and how urgent it is
//! ([`class`]). The [`Coordinator`] keeps the flights; [`schedule`] is the pure part that says which of them start and
//! which give way. A flight runs in a task of its own, so that no caller that leaves takes it down, and under a
//! containerd lease where there is one ([`lease`]), so that a flight that gave way resumes where it stopped and its
//! progress can be told ([`progress`]).
//!
//! crisp's own pulls ([`own`]) take part as callers do, and hear more: their stage, their progress, and the lease.
//!
//! Nothing is remembered of a flight that has ended: neither its reply nor its error reaches anybody who came later.

mod attempt;
pub mod class;
pub mod coordinator;
mod flight;
pub mod key;
pub mod lease;
pub mod own;
pub mod progress;
pub mod request;
pub mod schedule;

pub use class::Class;
pub use coordinator::Coordinator;
pub use own::{Landed, LeaseGuard, OwnPull, OwnRequest, OwnStage};
pub use request::Request;
