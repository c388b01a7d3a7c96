//! Waiting for a condition.

use crate::support::{PATIENCE, clock};

/// After each `QUESTIONS` checks of the condition, the pause grows by one step.
const QUESTIONS: u32 = 10;

/// Waits until the condition holds; panics when the wait takes too long.
#[track_caller]
pub fn until(condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let waited = tokio::time::timeout(PATIENCE, ask(condition)).await;
        waited.unwrap_or_else(|_| panic!("waited in vain at {place}"));
    }
}

/// Checks the condition until it holds. The pauses grow, because each check takes processor time.
pub async fn ask(mut condition: impl AsyncFnMut() -> bool) {
    let mut asked = 0;
    while !condition().await {
        asked += 1;
        clock::turns(1 + asked / QUESTIONS).await;
    }
}
