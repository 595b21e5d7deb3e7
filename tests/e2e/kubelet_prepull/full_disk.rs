//! The disk of images runs full: what is kept goes before any pod does.
