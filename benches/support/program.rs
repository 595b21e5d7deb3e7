//! The crisp that is measured.

use std::env;
use std::path::PathBuf;

/// The program that `CRISP_BIN` names: `make bench` names the one that is delivered. cargo builds another one beside the
/// benches, with what they want of libraries, and it takes more memory.
pub(crate) fn crisp() -> PathBuf {
    env::var_os("CRISP_BIN").map_or_else(|| env!("CARGO_BIN_EXE_crisp").into(), PathBuf::from)
}
