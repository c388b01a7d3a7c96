//! How a backend's streams of events end: when that says that it has none, and how long to wait for the next.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tonic::Code;

use crate::backend::Backend;
use crate::call::Failed;
use crate::errors;

/// A stream that brings no event and ends sooner than this has ended at once.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So many that end at once, one after the other, say that there are no events: CRI-O without `enable_pod_events` ends
/// each of them well.
const IN_A_ROW: u32 = 3;
/// The wait before a stream that has ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// The same where the last ones have ended at once.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// When a stream was asked for, and over which connection.
pub(super) struct StreamStart {
    at: Instant,
    /// How many connections had failed until then.
    pub failures: u64,
}

impl StreamStart {
    pub(super) fn now(backend: &Backend) -> StreamStart {
        StreamStart {
            at: Instant::now(),
            failures: backend.link().failures,
        }
    }
}

/// The streams that have ended at once, one after the other and over one connection.
#[derive(Default)]
pub(super) struct Ends {
    count: u32,
    failures: u64,
}

impl Ends {
    /// Counts a stream that has ended; if that says that the backend has no events, what those who listen are told.
    pub(super) fn note(
        &mut self,
        backend: &Backend,
        opened: &StreamStart,
        ended: Result<(), Failed>,
        heard: bool,
    ) -> Option<HeaderMap> {
        self.count(backend, opened, heard);
        let lacks = match ended {
            Err(failed) if failed.code() == Code::Unimplemented => failed.named(backend),
            // A full memory is no word of the backend's.
            Err(Failed::Status(status)) if status.code() == Code::ResourceExhausted => return None,
            // It may come yet.
            Err(failed) if failed.code() == Code::Unavailable => return None,
            _ if self.count < IN_A_ROW => return None,
            ended => {
                let end = ended.err().map(|failed| failed.told());
                Failed::Status(errors::no_events(
                    &backend.name(),
                    &backend.socket,
                    end.as_deref(),
                ))
            }
        };
        *self = Ends::default();
        Some(lacks.into_trailers())
    }

    fn count(&mut self, backend: &Backend, opened: &StreamStart, heard: bool) {
        // One that ends with its connection says nothing; that may be known a little later.
        if opened.failures != self.failures {
            *self = Ends {
                count: 0,
                failures: opened.failures,
            };
        }
        let stands = backend.link().failures == opened.failures;
        let at_once = !heard && stands && opened.at.elapsed() < AT_ONCE;
        self.count = if at_once { self.count + 1 } else { 0 };
    }

    /// The wait before the next one is asked for.
    pub(super) fn pause(&self) -> Duration {
        let doubled = 1 << self.count.saturating_sub(1).min(5);
        (PAUSE * doubled).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_ends_come_at_once() {
        let pause = |count| Ends { count, failures: 0 }.pause().as_millis();
        assert_eq!(
            [0, 1, 2, 3, 5, 6, u32::MAX].map(pause),
            [100, 100, 200, 400, 1600, 3000, 3000]
        );
    }
}
