//! Properties that hold for any bytes. Each fuzz target has a module with a `check` that panics if its property does
//! not hold.
//!
//! The fuzz targets and the test that replays their corpora share these modules. An oracle is prost's result for the
//! same bytes, or the result of slow code that is too simple to be wrong.
#![allow(unreachable_pub, missing_docs)]
// These lints keep panics out of the daemon. Here they are off, because a panic reports a finding.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod config;
pub mod filter;
pub mod frames;
pub mod gate;
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
#[path = "../../interface/proto.rs"]
mod proto;

/// The name of a target, and its check.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("config", config::check),
    ("filter", filter::check),
    ("frames", frames::check),
    ("gate", gate::check),
    ("images", images::check),
    ("lists", lists::check),
    ("owners", owners::check),
    ("route", route::check),
    ("status", status::check),
    ("wire", wire::check),
];
