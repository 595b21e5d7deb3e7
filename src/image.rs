//! How images are named: as one string ([`Reference`]), as a structured [`ImageSpec`], and which of the two a pull
//! means ([`decide()`]).
//!
//! Nothing here keeps state: what a request says of an image is decided by that request alone.

pub mod aci;
pub mod annotation;
pub mod decide;
mod grammar;
pub mod reference;
pub mod spec;

pub use aci::AciNames;
pub use annotation::Specs;
pub use decide::{Format, Requested, Said, check, decide};
pub use reference::{Reference, ReferenceError};
pub use spec::{AciImage, DockerImage, ImageSpec, SpecError};

/// How many characters of somebody else's text an error shows.
const SHOWN: usize = 80;

/// The beginning of a text that may be of any length and hold anything, for an error or a log line.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
