//! crisp
