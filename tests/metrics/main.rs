//! What Prometheus is served, and how.
// No crate could reach it, and what panics is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]

#[path = "../support/support.rs"]
mod support;

mod door;
mod page;
mod values;
