//! Pre-pull: images that come to the node before the pods that need them.
//!
//! ```text
//! admin, kube ─▶ Prepull (handle) ─▶ actor ─▶ queue: what is to be done (pure)
//!                                      │  ├─▶ store: on disk before anybody is told
//!                                      │  └─▶ attempt: checks, pulls through crate::pull, parks or publishes
//!                                      └─▶ sight: what kubelets are told ◀── crate::intercept
//! ```
//!
//! An item ([`item`]) is one image for one owner; [`spec`] is what can be asked for. [`queue`] decides when which item is
//! tried, and what is kept; `attempt` tries; `park` keeps private images private; `keeper` lets what is kept give way
//! before the disk is full. The parts that decide are pure and know nothing of each other: [`secret`] is who may pull,
//! [`overrider`] is where an image comes from on this node, [`check`] is whether a pull may start now.

mod actor;
mod attempt;
pub mod check;
mod cri;
pub mod dry;
mod handle;
pub mod item;
mod keeper;
mod node;
mod notes;
mod opening;
pub mod overrider;
mod park;
pub mod queue;
mod record;
pub mod secret;
pub mod sight;
pub mod spec;
mod verdict;
pub mod view;

pub use handle::{Parts, Prepull, Refusal};
pub use item::{Id, Item};
pub use sight::{Pin, Sight};
pub use spec::Spec;

pub use crate::time;

use crate::image::shown;
