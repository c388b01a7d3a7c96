//! One schedule, played: the real switch on a paused clock, model runtimes behind it, clients in front of it, and a
//! judge of every reply who knows what is so.
#![allow(unreachable_pub, missing_docs)]
// The lints that guard the daemon: here a panic is a failed schedule.
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

/// How long after its last fault a backend may take until it must be back in service.
pub const RECOVERY: Duration = Duration::from_secs(12);

/// What a schedule that passed has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    pub reloads: u64,
    /// How many of them changed nothing because of a mistake.
    pub refused: u64,
}

/// Plays a schedule to its end or to the first violation, which it tells.
pub fn play(plan: &Plan, sabotage: Option<Sabotage>) -> Result<Played, String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        // Outlives the runtime, whose last work on files is over then.
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

/// For files, in memory where the system has a place for that.
fn directory() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}
