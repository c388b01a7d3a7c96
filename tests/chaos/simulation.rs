//! Plays one schedule with the real criswitch on a paused clock, between clients and model runtimes. A judge that knows
//! the truth checks every reply.
#![allow(unreachable_pub, missing_docs)]
// These lints guard the daemon. Here a panic is a failed schedule.
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
    /// The number of reloads that changed nothing because of a mistake.
    pub refused: u64,
}

/// Plays a schedule to its end, or to the first violation, which is the error.
pub fn play(plan: &Plan, sabotage: Option<Sabotage>) -> Result<Played, String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        // The directory outlives the runtime, so the last file operations have ended when it is removed.
        let disk = directory();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing");
        runtime.block_on(world::play(plan, disk.path(), sabotage))
    }));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("?")))
    })
}

/// A directory in memory if the system has a place for that.
fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}
