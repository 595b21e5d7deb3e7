//! The crisp program.

fn main() {}
