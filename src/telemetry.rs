//! What is told of a call: its lines in the log, of which the last, at the level of its row, says how it ended, and what
//! it adds to the counts. Never what it carried.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;
use tonic::Code;
use tracing::Span;
use tracing::field::{Empty, display};

use crate::backend::Backend;
use crate::counts::{Counts, Rpc};
use crate::live::Live;
use crate::owners::BackendId;
use crate::route::Target;
use crate::rpc::{Kind, Log, Row};
use crate::status;

/// The header that names the trace which a call is part of (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// A call under way; its line is written when it ends, as `CANCELLED` if it is dropped before.
#[derive(Debug)]
pub struct CallLog {
    row: &'static Row,
    started: Instant,
    span: Span,
    ended: bool,
    counts: Arc<Counts>,
    rpc: Arc<Rpc>,
    /// The one that it goes to, if it is one.
    backend: OnceLock<Arc<Backend>>,
    /// The time that the switch itself has spent at it, in nanoseconds.
    own: AtomicU64,
}

impl CallLog {
    /// A call of `row` that begins now, with these headers.
    pub fn begin(row: &'static Row, headers: &HeaderMap, counts: &Arc<Counts>) -> CallLog {
        let (id, rpc) = counts.begin(row.name);
        CallLog {
            row,
            started: Instant::now(),
            span: span(row, id, headers),
            ended: false,
            counts: Arc::clone(counts),
            rpc,
            backend: OnceLock::new(),
            own: AtomicU64::new(0),
        }
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Where it goes, and for what.
    pub(crate) fn goes_to(&self, target: &Target, live: &Live) {
        let only = |all: &[BackendId]| match all {
            [only] => Some(*only),
            _ => None,
        };
        let to = match target {
            Target::Owner(to, ..) | Target::Backend(to) => Some(*to),
            Target::Handler(handler) => Some(handler.backend),
            Target::Backends(all) => only(all),
            Target::SomePod(stores) => only(&stores.all),
            Target::Miss(..) | Target::UnknownPod(_) => None,
        };
        if let Some(backend) = to.and_then(|to| live.backend(to).ok()) {
            self.span.record("backend", &*backend.name());
            self.backend.set(Arc::clone(backend)).ok();
        }
        match target {
            Target::Owner(_, kind, id) | Target::Miss(kind, id) => note_id(*kind, id),
            Target::Handler(handler) => {
                self.span.record("handler", handler.name.as_str());
            }
            Target::Backend(_)
            | Target::Backends(_)
            | Target::UnknownPod(_)
            | Target::SomePod(_) => {}
        }
    }

    /// So many bytes of its request were read.
    pub(crate) fn received(&self, bytes: usize) {
        self.rpc.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes of its reply are sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.rpc.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Does what there is to do for it: the time between its steps, in which it waits, is not the switch's own.
    pub(crate) async fn doing<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|cx| self.step(|| work.as_mut().poll(cx))).await
    }

    /// One step of that; what is logged in it is the call's.
    pub(crate) fn step<T>(&self, step: impl FnOnce() -> T) -> T {
        let _in_span = self.span.enter();
        // Work takes time on a clock that tests have paused, too.
        let begun = std::time::Instant::now();
        let done = step();
        let took = begun.elapsed().as_nanos() as u64;
        self.own.fetch_add(took, Ordering::Relaxed);
        done
    }

    /// The call has ended with this code, a number as in `grpc-status`.
    pub fn end(&mut self, code: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let code = Code::from_bytes(code.as_bytes());
        let elapsed = self.started.elapsed();
        self.count(code, elapsed);
        let _in_span = self.span.enter();
        // To the microsecond.
        let elapsed_ms = elapsed.as_micros() as f64 / 1000.0;
        match self.row.log {
            Log::Change => tracing::info!(?code, elapsed_ms),
            Log::Read => tracing::debug!(?code, elapsed_ms),
            Log::Poll => tracing::trace!(?code, elapsed_ms),
        }
    }

    fn count(&self, code: Code, elapsed: Duration) {
        let calls = match self.backend.get() {
            Some(backend) => &backend.calls,
            None => &self.counts.calls,
        };
        calls.add(self.row.name, code, elapsed);
        self.rpc.in_flight.fetch_sub(1, Ordering::Relaxed);
        let own = self.own.load(Ordering::Relaxed);
        self.rpc.took(Duration::from_nanos(own));
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        self.end("1");
    }
}

/// The span that all of a call's lines are in.
fn span(row: &'static Row, id: u64, headers: &HeaderMap) -> Span {
    let rpc = row.name;
    let span = match row.log {
        Log::Change => {
            tracing::info_span!(
                "call",
                id,
                rpc,
                backend = Empty,
                handler = Empty,
                pod = Empty,
                container = Empty,
                trace = Empty
            )
        }
        Log::Read => {
            tracing::debug_span!(
                "call",
                id,
                rpc,
                backend = Empty,
                pod = Empty,
                container = Empty,
                trace = Empty
            )
        }
        Log::Poll => tracing::trace_span!("call", id, rpc, backend = Empty, trace = Empty),
    };
    if !span.is_disabled()
        && let Some(trace) = headers.get(TRACEPARENT)
        && let Some(trace) = trace_id(trace.as_bytes())
    {
        span.record("trace", trace);
    }
    span
}

/// The id of the trace in a `traceparent`: 32 hexadecimal digits, so nothing else of what a client sends is logged.
fn trace_id(traceparent: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(traceparent).ok()?;
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        part.len() == length && part.bytes().all(digit)
    };
    let set = |id: &str| id.bytes().any(|byte| byte != b'0');
    let whole = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    // Later versions may have more parts.
    let known = version != "ff" && (version != "00" || parts.next().is_none());
    (whole && known && set(trace) && set(parent)).then_some(trace)
}

/// Notes the pod or container that the call is for, or that it made; whatever a client or backend calls it, it stays
/// within its line.
pub fn note_id(kind: Kind, id: &str) {
    let field = match kind {
        Kind::Pod => "pod",
        Kind::Container => "container",
    };
    Span::current().record(field, display(status::shown(id).escape_debug()));
}

#[cfg(test)]
mod tests {
    use super::trace_id;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_trace_of_a_traceparent_is_its_second_part() {
        for text in [
            format!("00-{TRACE}-00f067aa0ba902b7-01"),
            format!("cc-{TRACE}-00f067aa0ba902b7-00-what-comes-later"),
        ] {
            assert_eq!(trace_id(text.as_bytes()), Some(TRACE), "{text}");
        }
    }

    #[test]
    fn what_is_no_traceparent_has_no_trace() {
        for text in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}0-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}\u{e9}-00f067aa0ba902b7-01", &TRACE[2..]),
        ] {
            assert_eq!(trace_id(text.as_bytes()), None, "{text}");
        }
        assert_eq!(trace_id(b"00-\xff"), None);
    }
}
