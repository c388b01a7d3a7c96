//! What is reported of a call: its lines in the log, of which the last says how the call ended, and what the call adds to
//! the counts. The level of the last line follows the outcome. Of what a call carries, lines have the names and ids of pods
//! and containers alone.

mod subject;

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderMap;
use percent_encoding::percent_decode;
use tokio::time::Instant;
use tonic::Code;
use tracing::Span;
use tracing::field::{Empty, display};

use crate::backend::Backend;
use crate::call::route::Target;
use crate::codec::grpc::{GRPC_MESSAGE, GRPC_STATUS};
use crate::codec::protobuf;
use crate::errors;
use crate::ownership::BackendId;
use crate::rpc::{self, Kind, LogRule, Row};
use crate::telemetry::counters::{Counts, Rpc, code_name};
use crate::telemetry::log_limit::Recovery;
use crate::telemetry::redact;
use crate::telemetry::trace::Trace;
use crate::topology::Live;
use subject::PodName;

/// The header with a call's deadline.
const TIMEOUT: &str = "grpc-timeout";
/// A client that cancels a call so shortly before its deadline ends the call because of the deadline: its clock began
/// earlier.
const DEADLINE_SLACK: Duration = Duration::from_millis(100);

/// A call under way; its line is written when it ends, as `Canceled` if it is dropped before.
#[derive(Debug)]
pub struct CallLog {
    row: &'static Row,
    started: Instant,
    /// The client's deadline, counted from the start.
    timeout: Option<Duration>,
    span: Span,
    ended: AtomicBool,
    counts: Arc<Counts>,
    rpc: Arc<Rpc>,
    /// The one that it goes to, if it is one.
    backend: OnceLock<Arc<Backend>>,
    /// The row of the table that it goes by, if it names a handler.
    handler: OnceLock<Arc<str>>,
    /// The pod whose configuration the request has.
    pod: OnceLock<PodName>,
    /// The pod or container that the request names by its id.
    id: OnceLock<(Kind, String)>,
    /// The time that the switch itself has spent at it, in nanoseconds.
    own: AtomicU64,
}

/// How a call ended.
struct CallEnd<'e> {
    code: Code,
    /// The text of its error, or why there is none.
    error: Option<Cow<'e, str>>,
    /// Its client has ended it.
    is_given_up: bool,
}

impl CallLog {
    /// A call of `row` that begins now, with these headers.
    pub fn begin(row: &'static Row, headers: &HeaderMap, counts: &Arc<Counts>) -> CallLog {
        let (id, rpc) = counts.begin(row.name);
        CallLog {
            row,
            started: Instant::now(),
            timeout: timeout(headers),
            span: span(row, id, headers),
            ended: AtomicBool::new(false),
            counts: Arc::clone(counts),
            rpc,
            backend: OnceLock::new(),
            handler: OnceLock::new(),
            pod: OnceLock::new(),
            id: OnceLock::new(),
            own: AtomicU64::new(0),
        }
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The client's deadline, counted from the start.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Its request was read.
    pub(crate) fn is_for(&self, request: &[u8]) {
        if self.row.changes()
            && let Some(pod) = PodName::requested(self.row, request)
        {
            self.pod.set(pod).ok();
        }
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
            Target::Owner(_, kind, id) | Target::Miss(kind, id) => {
                note_id(*kind, id);
                self.id.set((*kind, id.clone())).ok();
            }
            Target::Handler(handler) => {
                note_handler(&handler.name);
                self.handler.set(handler.name.as_str().into()).ok();
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

    /// The call has ended with the status that these headers or trailers have.
    pub fn end(&self, headers: &HeaderMap) {
        let of = |name| headers.get(name).map(http::HeaderValue::as_bytes);
        let error = of(GRPC_MESSAGE).map(|text| percent_decode(text).decode_utf8_lossy());
        self.end_once(&CallEnd {
            code: Code::from_bytes(of(GRPC_STATUS).unwrap_or_default()),
            error,
            is_given_up: false,
        });
    }

    /// The client has ended the call.
    fn is_given_up(&self) {
        let left = self
            .timeout
            .map(|timeout| timeout.saturating_sub(self.started.elapsed()));
        let is_late = left.is_some_and(|left| left <= DEADLINE_SLACK);
        let why = if is_late {
            "the client's deadline has passed"
        } else {
            "the client cancelled the call"
        };
        self.end_once(&CallEnd {
            code: Code::Cancelled,
            error: Some(why.into()),
            is_given_up: !is_late,
        });
    }

    fn end_once(&self, end: &CallEnd<'_>) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let elapsed = self.started.elapsed();
        self.count(end.code, elapsed);
        let _in_span = self.span.enter();
        // To the microsecond.
        let elapsed_ms = elapsed.as_micros() as f64 / 1000.0;
        let code = code_name(end.code);
        match self.row.log {
            LogRule::Change if end.code == Code::Ok => {
                tracing::info!(%code, elapsed_ms, "call succeeded")
            }
            LogRule::Change => self.failed_change(end, elapsed_ms),
            LogRule::Read => tracing::debug!(%code, elapsed_ms, "call ended"),
            LogRule::Poll => self.polled(end, elapsed_ms),
        }
    }

    /// A call that was to change something has not: WARN, unless its client ended it or there was nothing to remove.
    fn failed_change(&self, end: &CallEnd<'_>, elapsed_ms: f64) {
        let (code, error) = (code_name(end.code), end.shown());
        let is_removed = end.code == Code::NotFound && self.row.removes();
        if end.is_given_up || is_removed {
            return tracing::info!(%code, error, elapsed_ms, "call ended without a change");
        }
        let listed = || {
            let (kind, id) = self.id.get()?;
            PodName::listed(self.backend.get()?, *kind, id)
        };
        let listed = self.pod.get().is_none().then(listed).flatten();
        let pod = self.pod.get().or(listed.as_ref());
        tracing::warn!(
            namespace = pod.map(|pod| pod.namespace.as_str()),
            name = pod.map(|pod| pod.name.as_str()),
            uid = pod.map(|pod| pod.uid.as_str()),
            %code,
            error,
            elapsed_ms,
            "call failed"
        );
    }

    /// A call that clients repeat, such as a list, has ended: the first failure is WARN, then one a minute.
    fn polled(&self, end: &CallEnd<'_>, elapsed_ms: f64) {
        let (code, failing) = (code_name(end.code), &self.rpc.failing);
        if end.code == Code::Ok
            && let Some(Recovery { after, failed }) = failing.succeeded()
        {
            return tracing::info!(%code, ?after, failed, elapsed_ms, "calls succeed again");
        }
        if !end.is_failure() {
            return tracing::trace!(%code, elapsed_ms, "call ended");
        }
        let error = end.shown();
        match failing.failed() {
            Some(failed) => tracing::warn!(%code, error, failed, elapsed_ms, "call failed"),
            None => tracing::debug!(%code, error, elapsed_ms, "call failed"),
        }
    }

    fn count(&self, code: Code, elapsed: Duration) {
        let calls = match self.backend.get() {
            Some(backend) => &backend.calls,
            None => &self.counts.calls,
        };
        calls.add(self.row.name, code, elapsed);
        if self.row.name == rpc::RUN_POD_SANDBOX.name {
            let handler = self.handler.get().cloned().unwrap_or_default();
            self.counts.pods.add(handler, code, elapsed);
        }
        self.rpc.in_flight.fetch_sub(1, Ordering::Relaxed);
        let own = self.own.load(Ordering::Relaxed);
        self.rpc.took(Duration::from_nanos(own));
    }
}

impl CallEnd<'_> {
    /// Whether something is wrong: `Unimplemented` says that a runtime has no such feature.
    fn is_failure(&self) -> bool {
        !matches!(self.code, Code::Ok | Code::Unimplemented) && !self.is_given_up
    }

    /// Its error's text, as a line has it.
    fn shown(&self) -> Option<String> {
        let error = redact::without_credentials(self.error.as_deref()?);
        Some(errors::cut(error).into_owned())
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        self.is_given_up();
    }
}

/// The client's deadline, counted from the start of its call.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    protobuf::timeout(headers.get(TIMEOUT)?.to_str().ok()?)
}

/// The span that all of a call's lines are in. Its level is that of the most important line.
fn span(row: &'static Row, id: u64, headers: &HeaderMap) -> Span {
    let rpc = row.name;
    let trace = Trace::of(headers);
    tracing::error_span!(
        "call",
        id,
        rpc,
        backend = Empty,
        handler = Empty,
        pod = Empty,
        container = Empty,
        trace_id = trace.as_ref().map(|trace| trace.trace_id),
        span_id = trace.as_ref().map(|trace| trace.span_id)
    )
}

/// Notes the pod or container that the call is for, or that it made; whatever a client or backend calls it, it stays
/// within its line.
pub fn note_id(kind: Kind, id: &str) {
    let field = match kind {
        Kind::Pod => "pod",
        Kind::Container => "container",
    };
    Span::current().record(field, display(errors::shown(id).escape_debug()));
}

/// Notes the handler that the call asks for, or that its pod has; a client may have sent any name.
pub(crate) fn note_handler(name: &str) {
    Span::current().record("handler", errors::shown(name));
}
