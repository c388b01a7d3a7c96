//! The criswitch binary.
fn main() {}
