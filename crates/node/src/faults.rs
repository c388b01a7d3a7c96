//! Ends or stops this process between two changes of the machine, for tests of interruptions.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use criswitch_client::terminal::print;
use criswitch_platform::process;

static FAULTS: OnceLock<Faults> = OnceLock::new();
/// The numbers of moments and of boundaries that have passed.
static MOMENTS: AtomicUsize = AtomicUsize::new(0);
static BOUNDARIES: AtomicUsize = AtomicUsize::new(0);

#[derive(Args, Clone)]
pub(super) struct Faults {
    /// End after this number of changes of the machine, as a crash would.
    #[arg(long, hide = true)]
    end_at: Option<usize>,
    /// Show the boundaries between steps, and stop at the one of this number until SIGCONT.
    #[arg(long, hide = true)]
    stop_at: Option<usize>,
}

pub(super) fn set(faults: &Faults) {
    FAULTS.get_or_init(|| faults.clone());
}

/// Marks a boundary between two steps. `next` is the step after the boundary.
pub(super) fn boundary(next: &str) {
    let Some(stop) = FAULTS.get().and_then(|faults| faults.stop_at) else {
        return;
    };
    let number = BOUNDARIES.fetch_add(1, Ordering::Relaxed);
    print(format!("boundary {number}: {next}\n")).ok();
    if number == stop {
        process::stop();
    }
}

/// Marks a moment between two changes of the machine.
pub(super) fn moment() {
    let end = FAULTS.get().and_then(|faults| faults.end_at);
    if end == Some(MOMENTS.fetch_add(1, Ordering::Relaxed)) {
        process::kill();
    }
}
