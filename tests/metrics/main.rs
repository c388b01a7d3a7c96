//! What Prometheus is served, how, and whether what is shipped to use it fits.
// No crate could reach it, and what panics is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]

#[path = "../support/support.rs"]
mod support;

mod door;
mod held;
#[path = "../switch/logged.rs"]
mod logged;
mod page;
mod prometheus;
mod used;
mod values;
