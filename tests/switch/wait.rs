//! Waiting for a condition.

use crate::support::{PATIENCE, clock};

/// Waits until the condition holds; panics when the wait takes too long.
#[track_caller]
pub fn until(condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let waited = tokio::time::timeout(PATIENCE, ask(condition)).await;
        waited.unwrap_or_else(|_| panic!("waited in vain at {place}"));
    }
}

async fn ask(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        clock::turn().await;
    }
}
