//! Plays one schedule on a paused clock: clients call the real criswitch, and criswitch calls models of runtimes. A
//! judge checks every reply against the true state of these models.
#![allow(unreachable_pub, missing_docs)]
// These lints keep panics out of the daemon. Here they are off, because a panic only fails the schedule.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod client;
pub mod disk;
pub mod files;
pub mod filter;
pub mod judge;
pub mod lacking;
pub mod offers;
pub mod pipe;
pub mod plan;
pub mod runtime;
pub mod sabotage;
pub mod tables;
pub mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use plan::Plan;
use sabotage::Sabotage;
use tempfile::TempDir;

/// The longest time from a backend's last fault until the backend is in service again.
pub const RECOVERY: Duration = Duration::from_secs(12);

/// The counts of a schedule that passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    pub reloads: u64,
    /// The number of reloads whose files have a mistake. Such a reload must change nothing.
    pub rejected: u64,
}

/// Plays a schedule. The error is the first violation, which ends the schedule.
pub fn play(plan: &Plan, sabotage: Option<Sabotage>) -> Result<Played, String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        // The directory is declared before the runtime, so it is removed after the runtime's last file operation.
        let disk = directory();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing");
        runtime.block_on(world::play(plan, disk.path(), sabotage))
    }));
    played.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("?")))
    })
}

/// A temporary directory: in memory (`/dev/shm`) if possible, otherwise on disk.
fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}
