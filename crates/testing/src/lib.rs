//! Simulated runtimes, their clients, and what else the tests, the benchmarks and the demo share. `criswitch-rig` puts
//! the real criswitch in front of the runtimes.
#![allow(missing_docs, unreachable_pub)]
// These lints keep panics out of the daemon. Here they are off, because a panic only fails a test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod client;
pub mod clock;
mod config_files;
mod configs;
pub mod misbehaving;
mod native;
#[cfg(unix)] // Windows has no socket activation.
mod passed;
#[cfg(unix)] // Windows has no permission to execute.
mod programs;
mod sim;
pub mod sockets;
#[cfg(unix)] // systemd runs on Linux only.
mod systemd;

pub use client::{
    Client, IMAGE, Images, RawClient, RawReply, Runtime, frame, frame_raw, is_own_agent,
};
pub use config_files::ConfigFiles;
pub use configs::{container_config, container_in, image_spec, pod_config};
pub use native::{native, portable};
#[cfg(unix)]
pub use passed::{passing, passing_both};
#[cfg(unix)]
pub use programs::write_program;
pub use sim::{Call, ImageIds, Journal, Settings, ShowsHandlers, Sim};
pub use sockets::connect;
#[cfg(unix)]
pub use systemd::Systemd;

/// The longest wait of a test for an event that should happen at once. On a busy machine such an event may take a
/// minute.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);
