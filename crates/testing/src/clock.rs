//! The clock of the tests: paused, so that no test depends on the speed of the machine.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The step in which a paused clock advances while all tasks wait.
const STEP: Duration = Duration::from_millis(1);

/// See [`tick`].
const TICK: Duration = Duration::from_micros(1);

/// Advances the paused clock step by step while all tasks wait, until this value is dropped.
///
/// A paused clock alone is too fast: whenever all tasks wait, tokio advances it to the next timer, even if bytes in a
/// socket are about to wake a task. A call whose reply is on its way would be late. With the steps, a call is late only
/// if its reply is missing although all tasks have waited once for each millisecond.
pub struct Steps(JoinHandle<()>);

impl Steps {
    /// Pauses the clock of this runtime, unless it is paused, and advances it in steps.
    pub fn begin() -> Steps {
        if !is_paused() {
            tokio::time::pause();
        }
        Steps(tokio::spawn(async {
            loop {
                tokio::time::sleep(STEP).await;
                // A named pipe delivers bytes some time after the write, so on Windows each step takes as long as on a
                // real clock.
                #[cfg(windows)]
                std::thread::park_timeout(STEP);
            }
        }))
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lets other tasks run. If the clock is paused, advances it by one step once all tasks wait.
pub async fn turn() {
    turns(1).await;
}

/// Lets other tasks run. If the clock is paused, advances it by `steps` steps once all tasks wait.
pub async fn turns(steps: u32) {
    if is_paused() {
        tokio::time::sleep(STEP * steps).await
    } else {
        tokio::task::yield_now().await
    }
}

/// Advances the paused clock by this time at once. First lets the file work in progress end, which would otherwise
/// exceed its time limit.
pub async fn later(by: Duration) {
    turn().await;
    tokio::time::advance(by).await;
}

/// Advances a paused clock by less than a step, so that no two calls begin at the same time. criswitch compares the
/// times of calls.
pub fn tick() {
    if is_paused() {
        // The first poll advances the clock, and the rest only yields.
        tokio::time::advance(TICK).now_or_never();
    }
}

fn is_paused() -> bool {
    let (real, shown) = (std::time::Instant::now(), Instant::now());
    while real.elapsed().is_zero() {}
    Instant::now() == shown
}
