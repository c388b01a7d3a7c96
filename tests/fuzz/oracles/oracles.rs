//! What must hold for any bytes: one module a fuzz target, each with a `check` that panics where it does not.
//!
//! The fuzz targets and the test that replays their corpora share them. An oracle is what prost says of the same bytes,
//! or a slow version that is too simple to be wrong.
#![allow(unreachable_pub, missing_docs)]
// The lints that guard the daemon: here a panic is a finding.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod config;
pub mod filter;
pub mod frames;
pub mod images;
pub mod lists;
pub mod owners;
pub mod route;
pub mod status;
pub mod wire;

mod asked;
mod messages;
mod model;
mod projection;

/// A target's name, and its check.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("config", config::check),
    ("filter", filter::check),
    ("frames", frames::check),
    ("images", images::check),
    ("lists", lists::check),
    ("owners", owners::check),
    ("route", route::check),
    ("status", status::check),
    ("wire", wire::check),
];
