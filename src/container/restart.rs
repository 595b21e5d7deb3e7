//! Why a container was made again: what is different about it ([`differences`]), and what happened to the one before it
//! ([`classify`]). Pure: everything needed is handed in.

mod cause;
mod compare;
mod difference;

pub use cause::{Cause, Created, Exit, Previous, classify, sentence};
pub use compare::differences;
pub use difference::{Difference, MAX_DIFFERENCES, Shown};
