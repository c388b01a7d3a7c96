//! The watch over the configuration's files: which changes it reports, how often, and which events it ignores.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "watch/drop_ins.rs"]
mod drop_ins;
#[path = "watch/links.rs"]
mod links;
#[path = "watch/main_file.rs"]
mod main_file;
#[path = "watch/silent.rs"]
mod silent;
#[path = "watch/site.rs"]
mod site;
#[path = "watch/writing.rs"]
mod writing;
