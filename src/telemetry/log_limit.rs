//! Limits the rate of log lines that clients or backends can cause, and counts the omitted lines.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The shortest time between two lines that one [`LogLimit`] allows.
const LOG_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    last: Option<Instant>,
    omitted: u64,
}

impl LogLimit {
    /// Returns the number of lines omitted since the last logged line if a line may be logged now. Otherwise returns
    /// `None` and counts the line as omitted.
    pub(crate) fn line(&self) -> Option<u64> {
        let mut recent = self.0.lock();
        if recent.last.is_some_and(|last| last.elapsed() < LOG_PAUSE) {
            recent.omitted += 1;
            return None;
        }
        recent.last = Some(Instant::now());
        Some(std::mem::take(&mut recent.omitted))
    }
}

/// Limits log lines about failed accepts to one line until an accept succeeds, and to one line a second. The limit per
/// second is needed if file descriptors run out, because then each connection that ends lets one accept succeed.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    reported: bool,
    limit: LogLimit,
}

impl AcceptFailures {
    /// Records a failed accept. If it must be logged, returns the number of lines omitted since the last line.
    pub(crate) fn failed(&mut self) -> Option<u64> {
        let line = (!self.reported).then(|| self.limit.line()).flatten();
        self.reported |= line.is_some();
        line
    }

    /// Records a successful accept.
    pub(crate) fn succeeded(&mut self) {
        self.reported = false;
    }
}

/// The shortest time between two lines about repeated failures of one RPC.
pub(crate) const FAILING_PAUSE: Duration = Duration::from_secs(60);

/// Limits lines about calls that clients repeat, such as lists: the first failure, then one line a minute, then the
/// recovery.
#[derive(Debug, Default)]
pub(crate) struct RepeatedFailures(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// When the first call of the current series of failures ended; `None` if the last call succeeded.
    since: Option<Instant>,
    /// When the last line about a failure was logged.
    last: Option<Instant>,
    /// Whether a line about the current failures was logged, so that the recovery is logged too.
    is_reported: bool,
    /// The number of failures since the last line.
    failed: u64,
}

/// The end of a series of failures, for a log line. Only a series with a logged failure has a recovery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// How long calls failed.
    pub(crate) after: Duration,
    /// The number of failures since the last line.
    pub(crate) failed: u64,
}

impl RepeatedFailures {
    /// Counts a failure. Returns the number of failures since the last line if a line may be logged now.
    pub(crate) fn failed(&self) -> Option<u64> {
        let mut failures = self.0.lock();
        failures.since.get_or_insert_with(Instant::now);
        failures.failed += 1;
        if failures
            .last
            .is_some_and(|last| last.elapsed() < FAILING_PAUSE)
        {
            return None;
        }
        failures.last = Some(Instant::now());
        failures.is_reported = true;
        Some(std::mem::take(&mut failures.failed))
    }

    /// Records that a call succeeded. Returns the recovery if it must be logged.
    pub(crate) fn succeeded(&self) -> Option<Recovery> {
        let mut failures = self.0.lock();
        let after = failures.since.take()?.elapsed();
        if !std::mem::take(&mut failures.is_reported) {
            return None;
        }
        let failed = std::mem::take(&mut failures.failed);
        Some(Recovery { after, failed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_is_logged_with_the_number_of_omitted_lines() {
        let limit = LogLimit::default();
        assert_eq!(limit.line(), Some(0));
        assert_eq!(limit.line(), None);
        assert_eq!(limit.line(), None);
        tokio::time::advance(LOG_PAUSE).await;
        assert_eq!(limit.line(), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_reported_once_a_minute_with_their_number_and_so_is_the_recovery() {
        let failing = RepeatedFailures::default();
        assert_eq!(failing.succeeded(), None);
        assert_eq!(failing.failed(), Some(1));
        assert_eq!(failing.failed(), None);
        tokio::time::advance(FAILING_PAUSE).await;
        assert_eq!(failing.failed(), Some(2));
        assert_eq!(failing.failed(), None);
        let (after, failed) = (FAILING_PAUSE, 1);
        assert_eq!(failing.succeeded(), Some(Recovery { after, failed }));
        assert_eq!(failing.succeeded(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_fail_and_succeed_by_turns_are_reported_once_a_minute() {
        let failing = RepeatedFailures::default();
        assert_eq!(failing.failed(), Some(1));
        assert!(failing.succeeded().is_some());
        for _ in 0..9 {
            assert_eq!(failing.failed(), None);
            assert_eq!(failing.succeeded(), None);
        }
        tokio::time::advance(FAILING_PAUSE).await;
        assert_eq!(failing.failed(), Some(10));
        assert!(failing.succeeded().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_every_connection_reaches_is_reported_once_a_second() {
        let mut failing = AcceptFailures::default();
        let reports = |failing: &mut AcceptFailures| {
            let reported = (0..100).filter_map(|_| {
                failing.succeeded();
                failing.failed()
            });
            reported.collect::<Vec<_>>()
        };
        assert_eq!(reports(&mut failing), [0]);
        tokio::time::advance(LOG_PAUSE).await;
        assert_eq!(reports(&mut failing), [99]);
    }

    #[tokio::test(start_paused = true)]
    async fn accepts_that_fail_for_long_are_reported_once() {
        let mut failing = AcceptFailures::default();
        assert_eq!(failing.failed(), Some(0));
        tokio::time::advance(10 * LOG_PAUSE).await;
        assert_eq!(failing.failed(), None);
    }
}
