//! The log lines and counters of a call. The last line reports how the call ended, at a level that depends on the
//! outcome. From the content of a call, log lines contain only names, ids and error texts without credentials.

mod subject;

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use criswitch_cri::codec::grpc::{self, GRPC_MESSAGE, GRPC_STATUS};
use criswitch_cri::rpc::{self, Kind, LogRule, Row};
use http::HeaderMap;
use percent_encoding::percent_decode;
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::field::{Empty, display};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span};

use crate::backend::Backend;
use crate::call::route::{Stores, Target};
use crate::errors;
use crate::limits::places::User;
use crate::telemetry::counters::{Counts, Rpc, code_name};
use crate::telemetry::log_limit::Recovery;
use crate::telemetry::rejections::Rejection;
use crate::telemetry::trace::Trace;
use crate::topology::Live;
use subject::PodName;

/// A cancellation less than this before the deadline counts as caused by the deadline: the client began to count
/// earlier than criswitch.
const DEADLINE_SLACK: Duration = Duration::from_millis(100);

/// The log of a call in flight. The last line is written when the call ends. If the log is dropped before that, the
/// last line reports `Canceled`, or `DeadlineExceeded` if the client's deadline has passed.
#[derive(Debug)]
pub struct CallLog {
    row: &'static Row,
    user: User,
    started: Instant,
    /// The client's deadline, counted from the start.
    timeout: Option<Duration>,
    /// The number of the call among all calls since criswitch started.
    number: u64,
    trace: Option<Trace>,
    span: Span,
    ended: AtomicBool,
    counts: Arc<Counts>,
    rpc: Arc<Rpc>,
    /// The backend that the call goes to, if it goes to only one.
    backend: OnceLock<Arc<Backend>>,
    /// The owner whose connection the call waits for before it goes to a backend.
    awaited: OnceLock<Arc<Backend>>,
    /// The handler as the routing table names it, if the call names a handler.
    handler: OnceLock<Arc<str>>,
    /// The pod whose configuration is in the request, or the pod of the item that the call changes.
    pod: OnceLock<PodName>,
    /// The pod or container that the request names by its id.
    id: OnceLock<(Kind, String)>,
    /// The time that criswitch itself has spent on the call, in nanoseconds.
    own: AtomicU64,
}

/// How a call ended.
struct CallEnd<'e> {
    code: Code,
    /// The text of the error. If the client ended the call: the reason.
    error: Option<Cow<'e, str>>,
    /// Whether the client cancelled the call before its deadline.
    is_given_up: bool,
}

impl CallLog {
    /// A call of `row` by `user` that begins now, with these headers.
    pub fn begin(
        row: &'static Row,
        user: User,
        headers: &HeaderMap,
        counts: &Arc<Counts>,
    ) -> CallLog {
        let (number, rpc) = counts.begin(row.name);
        let trace = Trace::of(headers);
        CallLog {
            row,
            user,
            started: Instant::now(),
            timeout: grpc::timeout(headers),
            // Most calls that only read write no log line, and a span costs more than all other fields together. So
            // below DEBUG, such a call gets a span only when it writes a log line.
            span: if row.changes() || LevelFilter::current() >= LevelFilter::DEBUG {
                span(row, number, trace.as_ref())
            } else {
                Span::none()
            },
            number,
            trace,
            ended: AtomicBool::new(false),
            counts: Arc::clone(counts),
            rpc,
            backend: OnceLock::new(),
            awaited: OnceLock::new(),
            handler: OnceLock::new(),
            pod: OnceLock::new(),
            id: OnceLock::new(),
            own: AtomicU64::new(0),
        }
    }

    /// When the call began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The client's deadline, counted from the start.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The client's deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|timeout| self.started + timeout)
    }

    /// The handler and the item of the call, as far as they are known.
    pub(crate) fn target(&self) -> (Option<&Arc<str>>, Option<&(Kind, String)>) {
        (self.handler.get(), self.id.get())
    }

    /// Adds the backend and the handler of the call to the status that ends it at its client's deadline.
    pub(crate) fn located(&self, status: Status, handler: Option<&str>) -> Status {
        match self.backend.get().or_else(|| self.awaited.get()) {
            Some(backend) if status.code() == Code::DeadlineExceeded => {
                errors::by_deadline_of(&status, &backend.name(), &backend.socket, handler)
            }
            _ => status,
        }
    }

    /// Records that the call waits until the owner of this item is connected. By then the item may have a different
    /// owner.
    pub(crate) fn waits_for(&self, owner: &Arc<Backend>, kind: Kind, id: &str) {
        self.awaited.set(Arc::clone(owner)).ok();
        self.id.set((kind, id.to_owned())).ok();
    }

    /// Records the pod whose configuration is in `request`, for a call that changes something.
    pub(crate) fn note_pod(&self, request: &[u8]) {
        if self.row.changes()
            && let Some(pod) = PodName::requested(self.row, request)
        {
            self.pod.set(pod).ok();
        }
    }

    /// Records the backend, handler and id of the target for the log lines and counters.
    pub(crate) fn goes_to(&self, target: &Target, live: &Live) {
        let to = match target {
            Target::Owner(to, ..) | Target::Backend(to) => Some(*to),
            Target::Handler(handler) => Some(handler.backend),
            Target::Backends(all) | Target::Probe(all) | Target::SomePod(Stores { all, .. }) => {
                match all.as_slice() {
                    [only] => Some(*only),
                    _ => None,
                }
            }
            Target::Miss(..) | Target::UnknownPod(_) => None,
        };
        if let Some(backend) = to.and_then(|to| live.backend(to).ok()) {
            self.backend.set(Arc::clone(backend)).ok();
        }
        match target {
            Target::Owner(_, kind, id) | Target::Miss(kind, id) => {
                if self.row.name == rpc::STOP_CONTAINER.name && !self.user.is_other() {
                    self.counts.stops.note(id);
                }
                self.note_listed_pod(*kind, id);
                self.id.set((*kind, id.clone())).ok();
            }
            Target::Handler(handler) => {
                self.handler.set(handler.name.as_str().into()).ok();
            }
            Target::Backend(_)
            | Target::Backends(_)
            | Target::Probe(_)
            | Target::UnknownPod(_)
            | Target::SomePod(_) => {}
        }
        if !self.span.is_disabled() {
            self.note_target();
        }
    }

    /// Records the pod of an item that the call changes, from the cached lists of its backend. After the call, the
    /// lists may lack a removed item.
    fn note_listed_pod(&self, kind: Kind, id: &str) {
        if self.row.changes()
            && self.pod.get().is_none()
            && let Some(backend) = self.backend.get()
            && let Some(pod) = PodName::listed(backend, kind, id)
        {
            self.pod.set(pod).ok();
        }
    }

    /// Adds the target of the call to the current span.
    fn note_target(&self) {
        if let Some(backend) = self.backend.get() {
            note_backend(backend);
        }
        if let Some(handler) = self.handler.get() {
            note_handler(handler);
        }
        if let Some((kind, id)) = self.id.get() {
            note_id(*kind, id);
        }
    }

    /// Counts the bytes of the request that were read.
    pub(crate) fn received(&self, bytes: usize) {
        self.rpc.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts the bytes of the reply that are sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.rpc.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Runs `work` and counts the time of each poll. The time between polls is waiting, and does not count.
    pub(crate) async fn doing<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|cx| self.step(|| work.as_mut().poll(cx))).await
    }

    /// Runs one step of the call and counts its time. Log lines of the step have the fields of the call.
    pub(crate) fn step<T>(&self, step: impl FnOnce() -> T) -> T {
        let _in_span = self.span.enter();
        // std's clock, not tokio's: tests pause tokio's.
        let begun = std::time::Instant::now();
        let done = step();
        let took = begun.elapsed().as_nanos() as u64;
        self.own.fetch_add(took, Ordering::Relaxed);
        done
    }

    /// Records that the call has ended with the status in these headers or trailers.
    pub fn end(&self, headers: &HeaderMap) {
        let code = headers.get(GRPC_STATUS).map(http::HeaderValue::as_bytes);
        let text = headers.get(GRPC_MESSAGE);
        self.end_once(&CallEnd {
            code: Code::from_bytes(code.unwrap_or_default()),
            error: text.map(|text| percent_decode(text.as_bytes()).decode_utf8_lossy()),
            is_given_up: false,
        });
    }

    /// Records that the client has ended the call.
    fn note_cancellation(&self) {
        let until_deadline = self
            .timeout
            .map(|timeout| timeout.saturating_sub(self.started.elapsed()));
        let is_late = until_deadline.is_some_and(|time| time <= DEADLINE_SLACK);
        let (code, why) = if is_late {
            (Code::DeadlineExceeded, "the client's deadline has passed")
        } else {
            (Code::Cancelled, "the client cancelled the call")
        };
        self.end_once(&CallEnd {
            code,
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
        self.remember(end);
        let _in_span = self.span.enter();
        // The unit is milliseconds, the precision microseconds.
        let elapsed_ms = elapsed.as_micros() as f64 / 1000.0;
        let code = code_name(end.code);
        match self.row.log {
            LogRule::Change if end.code == Code::Ok => {
                let pod = self.pod.get();
                tracing::info!(
                    namespace = pod.map(|pod| pod.namespace.as_str()),
                    name = pod.map(|pod| pod.name.as_str()),
                    uid = pod.map(|pod| pod.uid.as_str()),
                    %code,
                    elapsed_ms,
                    "call succeeded"
                );
            }
            LogRule::Change => self.failed_change(end, elapsed_ms),
            LogRule::Read if tracing::enabled!(Level::DEBUG) => {
                self.last_line(|| tracing::debug!(%code, elapsed_ms, "call ended"));
            }
            LogRule::Read => {}
            LogRule::Poll => self.polled(end, elapsed_ms),
        }
    }

    /// Writes the last line of the call. If the call has no span yet, makes a span for this line.
    fn last_line(&self, line: impl FnOnce()) {
        if !self.span.is_disabled() {
            return line();
        }
        span(self.row, self.number, self.trace.as_ref()).in_scope(|| {
            self.note_target();
            line();
        });
    }

    /// Logs that a call that changes something has failed. The level is WARN, or INFO if the client cancelled the call
    /// or if there was nothing to remove.
    fn failed_change(&self, end: &CallEnd<'_>, elapsed_ms: f64) {
        let (code, error) = (code_name(end.code), end.shown());
        if end.is_given_up {
            return tracing::info!(%code, error, elapsed_ms, "client cancelled the call; its outcome is unknown");
        }
        if end.code == Code::NotFound && self.row.removes() {
            return tracing::info!(%code, error, elapsed_ms, "call had nothing to remove");
        }
        let pod = self.pod.get();
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

    /// Logs the end of a call that clients repeat, such as a list. The first failure is logged as WARN, then one
    /// failure a minute.
    fn polled(&self, end: &CallEnd<'_>, elapsed_ms: f64) {
        let (code, failing) = (code_name(end.code), &self.rpc.failing);
        if end.code == Code::Ok
            && let Some(Recovery { after, failed }) = failing.succeeded()
        {
            return self.last_line(
                || tracing::info!(%code, ?after, failed, elapsed_ms, "calls succeed again"),
            );
        }
        if !end.is_failure(self.row) {
            return tracing::trace!(%code, elapsed_ms, "call ended");
        }
        let error = end.shown();
        self.last_line(|| match failing.failed() {
            Some(failed) => tracing::warn!(%code, error, failed, elapsed_ms, "call failed"),
            None => tracing::debug!(%code, error, elapsed_ms, "call failed"),
        });
    }

    /// Remembers the pod of a `RunPodSandbox` that failed, until the pod is created. Calls of users other than root and
    /// criswitch's own user would make criswitch forget the kubelet's pods.
    fn remember(&self, end: &CallEnd<'_>) {
        let Some(pod) = self.pod.get() else {
            return;
        };
        if self.row.name != rpc::RUN_POD_SANDBOX.name || end.is_given_up || self.user.is_other() {
            return;
        }
        let rejections = &self.counts.rejections;
        if end.code == Code::Ok {
            return rejections.created(&pod.namespace, &pod.name, &pod.uid);
        }
        let now = SystemTime::now();
        rejections.note(Rejection {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            asked_handler: pod.handler.clone(),
            handler: self.handler.get().map(ToString::to_string),
            backend: self.backend.get().map(|backend| backend.name().to_string()),
            code: code_name(end.code),
            error: end.shown().unwrap_or_default(),
            first: now,
            last: now,
            times: 1,
        });
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
    /// Whether the end of a call of `row` is a failure. `Unimplemented` only means that a runtime lacks the feature, if
    /// a runtime may lack the RPC.
    fn is_failure(&self, row: &Row) -> bool {
        let is_error = match self.code {
            Code::Ok => false,
            Code::Unimplemented => !row.may_lack,
            _ => true,
        };
        is_error && !self.is_given_up
    }

    /// The text of the error for a log line.
    fn shown(&self) -> Option<String> {
        Some(criswitch_cri::error_text::reported(self.error.as_deref()?).into_owned())
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        self.note_cancellation();
    }
}

/// The span of the log lines of a call. It has the level ERROR, so that lines of every level get its fields.
fn span(row: &'static Row, id: u64, trace: Option<&Trace>) -> Span {
    let rpc = row.name;
    tracing::error_span!(
        "call",
        id,
        rpc,
        backend = Empty,
        handler = Empty,
        pod = Empty,
        container = Empty,
        trace_id = trace.map(|trace| trace.trace_id.as_str()),
        span_id = trace.map(|trace| trace.span_id.as_str())
    )
}

fn note_backend(backend: &Backend) {
    Span::current().record("backend", &*backend.name());
}

/// Adds the pod or container that the call is for, or that it created, to the log lines. The id is escaped, so that no
/// id breaks a line.
pub fn note_id(kind: Kind, id: &str) {
    let field = match kind {
        Kind::Pod => "pod",
        Kind::Container => "container",
    };
    Span::current().record(field, display(errors::shown(id).escape_debug()));
}

/// Adds the handler that the call names, or that its pod has, to the log lines. The name is cut, because a client may
/// send a name of any length.
pub(crate) fn note_handler(name: &str) {
    Span::current().record("handler", errors::shown(name));
}
