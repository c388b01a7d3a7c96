//! Log lines about what others can cause as often as they like: a limited number, with a count of the omitted ones.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The least time between two such lines.
pub(crate) const LOG_PAUSE: Duration = Duration::from_secs(1);

/// The limit of one kind of line.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    last: Option<Instant>,
    omitted: u64,
}

impl LogLimit {
    /// Whether a line may be logged now, and how many were omitted before it.
    pub(crate) fn line(&self) -> Option<u64> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.last.is_some_and(|last| last.elapsed() < LOG_PAUSE) {
            recent.omitted += 1;
            return None;
        }
        recent.last = Some(Instant::now());
        Some(std::mem::take(&mut recent.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_is_a_line_a_second_with_the_number_of_omitted_ones() {
        let limit = LogLimit::default();
        assert_eq!(limit.line(), Some(0));
        assert_eq!(limit.line(), None);
        assert_eq!(limit.line(), None);
        tokio::time::advance(LOG_PAUSE).await;
        assert_eq!(limit.line(), Some(2));
    }
}
