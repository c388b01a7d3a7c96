//! The simulated runtime and the rig, for the tests and the demo.
//!
//! The tests and the demo include this file by path: each of them compiles a separate copy and uses only a part, so
//! unused items are allowed.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]
// These lints keep panics out of the daemon. Here they are off, because a panic only fails a test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod client;
pub mod clock;
mod configs;
pub mod misbehaving;
#[cfg(unix)] // Windows has no socket activation.
mod passed;
mod rig;
mod sim;
pub mod sockets;

pub use client::{
    Client, IMAGE, Images, RawClient, RawReply, Runtime, frame, frame_raw, is_own_agent,
};
pub use configs::{container_config, container_in, image_spec, pod_config};
#[cfg(unix)]
pub use passed::{passing, passing_both};
pub use rig::Rig;
pub use sim::{Call, ImageIds, Journal, Settings, ShowsHandlers, Sim};
pub use sockets::connect;

/// The longest wait of a test for an event that should happen at once. On a busy machine such an event may take a
/// minute.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);
