//! Pre-pull: images that come to the node before the pods that need them.
//!
//! The parts that decide are pure and know nothing of each other: [`secret`] is who may pull (credentials, which of
//! them apply to an image, and how the store keeps them), [`overrider`] is where an image comes from on this node,
//! [`check`] is whether a pull may start now and who gives way when space runs short.

pub mod check;
pub mod overrider;
pub mod secret;

/// How many characters of somebody else's text an error shows.
const SHOWN: usize = 80;

/// The beginning of a text that may be of any length and hold anything, for an error.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
