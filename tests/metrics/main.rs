//! The page of metrics, its server, and the shipped files that use the metrics.
// No other crate can reach these items. A panic fails the test, as it should.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    windows,
    allow(dead_code, unused_imports, reason = "some tests are for Unix only")
)]

mod address;
mod held;
#[path = "../switch/logged.rs"]
mod logged;
mod page;
mod prometheus;
mod used;
mod values;
mod verdict;
#[cfg(windows)]
mod windows;

use criswitch_rig as support;
