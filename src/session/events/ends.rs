//! Judges how a backend's streams of events end: whether the backend supports events, and how long to wait before the
//! next stream.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tonic::Code;

use crate::backend::Backend;
use crate::call::Failed;
use crate::errors;

/// A stream that ends within this time is short. A short stream without an event counts as ended at once.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);
/// If this many streams in a row end at once, the backend has no events. CRI-O without `enable_pod_events` ends each
/// stream at once, and with success.
const IN_A_ROW: u32 = 3;
/// The wait before a stream that has ended is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest wait before a stream is opened again, after several short streams.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The moment when a stream was requested, and the connection that it uses.
pub(super) struct StreamStart {
    at: Instant,
    /// How many connections to the backend had failed or ended when the stream was requested.
    pub failures: u64,
}

impl StreamStart {
    pub(super) fn now(backend: &Backend) -> StreamStart {
        StreamStart {
            at: Instant::now(),
            failures: backend.connection.link().failures,
        }
    }

    fn is_recent(&self) -> bool {
        self.at.elapsed() < AT_ONCE
    }
}

/// Counts the streams in a row on one connection that have ended at once, those that were short, and those that the
/// backend broke off at once.
#[derive(Default)]
pub(super) struct Ends {
    count: u32,
    short: u32,
    broken: u32,
    failures: u64,
}

impl Ends {
    /// Counts a stream that has ended. If the backend has no events, returns the trailers that end the subscribers'
    /// streams. Records it if the backend breaks off its streams again and again, although it answers other calls.
    pub(super) fn note(
        &mut self,
        backend: &Backend,
        opened: &StreamStart,
        ended: Result<(), Failed>,
        had_events: bool,
    ) -> Option<HeaderMap> {
        // The end of the connection ended the stream, so the stream proves nothing.
        let stands = backend.connection.link().failures == opened.failures;
        let is_broken = ended.as_ref().is_err_and(Failed::is_unavailable);
        self.count(opened, stands, had_events, is_broken);
        if self.broken >= IN_A_ROW
            && let Err(failed) = &ended
        {
            backend.record.note_broken_events(&failed.code_and_text());
        } else if self.broken == 0 && stands {
            backend.record.clear_broken_events();
        }
        let lacks = match ended {
            Err(failed) if failed.code() == Code::Unimplemented => failed.named(backend),
            // This error comes from criswitch's own memory limit, not from the backend.
            Err(Failed::Status(status)) if status.code() == Code::ResourceExhausted => return None,
            // The backend is away. It may send events when it is back.
            Err(failed) if failed.is_unavailable() => return None,
            _ if self.count < IN_A_ROW => return None,
            ended => Failed::Status(errors::no_events(
                &backend.name(),
                &backend.socket,
                ended.err().map(|failed| failed.code_and_text()).as_deref(),
            )),
        };
        *self = Ends::default();
        Some(lacks.into_trailers())
    }

    fn count(&mut self, opened: &StreamStart, stands: bool, had_events: bool, is_broken: bool) {
        // criswitch may notice the end of a connection only after the stream was counted, so the count starts again on
        // each new connection.
        if opened.failures != self.failures {
            *self = Ends {
                failures: opened.failures,
                ..Ends::default()
            };
        }
        self.add(stands && opened.is_recent(), had_events, is_broken);
    }

    fn add(&mut self, is_short: bool, had_events: bool, is_broken: bool) {
        let next = |count: u32, counts: bool| if counts { count.saturating_add(1) } else { 0 };
        self.short = next(self.short, is_short);
        self.count = next(self.count, is_short && !had_events);
        self.broken = next(self.broken, is_short && !had_events && is_broken);
    }

    /// The wait before the next stream is opened. Each stream makes criswitch ask for the state of each pod.
    pub(super) fn pause(&self) -> Duration {
        let doubled = 1 << self.short.saturating_sub(1).min(5);
        (PAUSE * doubled).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_event_streams_end_immediately_with_or_without_an_event() {
        for had_events in [false, true] {
            let mut ends = Ends::default();
            let pauses = [100, 100, 200, 400, 800, 1600, 3000, 3000];
            for (number, pause) in (0..).zip(pauses) {
                assert_eq!(ends.pause().as_millis(), pause);
                assert_eq!(ends.count, if had_events { 0 } else { number });
                ends.add(true, had_events, false);
            }
            ends.add(false, had_events, false);
            assert_eq!(ends.pause().as_millis(), 100);
        }
    }
}
