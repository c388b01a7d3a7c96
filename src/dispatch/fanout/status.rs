//! The replies to `Status` and `Version`. `Status` describes the node to the kubelet, based on the default backend's
//! reply.
//!
//! Neither call waits long for a slow backend that has answered before. `Status` succeeds even if backends are
//! unreachable.

mod merged;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_config::wording::span;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::protobuf;
use criswitch_cri::facts::{cgroup_driver_name, text};
use criswitch_cri::rpc;
use criswitch_cri::rpc::features;
use criswitch_cri::rpc::fields::{runtime_handler, status_request, status_response};
use futures_util::future::{join, join_all};
use serde_json::{Value as Json, json};
use tokio::time::Instant;
use tonic::Status;

use crate::backend::answer::Answer;
use crate::backend::known::Known;
use crate::backend::state::{Failing, State};
use crate::backend::{Backend, CONNECTING, own_headers};
use crate::call::reply::{self, Reply};
use crate::call::{Call, Failed};
use crate::dispatch::fanout;
use crate::errors;
use crate::gate::Readable;
use crate::limits::budget::Budget;
use crate::switch::Switch;
use crate::switch::act::act;
use crate::switch::learn::Learned;
use crate::topology::Live;

pub use merged::merged;
use merged::unready;

/// How long criswitch waits for a backend before it uses the backend's last reply.
const STATUS_WAIT: Duration = Duration::from_secs(1);

/// How long criswitch serves the last `Status` of a default backend that does not answer. The kubelet uses the same
/// limit: if its runtime gives no answer for this time, it reports the node as not ready.
const STATUS_TRUST: Duration = Duration::from_secs(30);

/// How often criswitch checks whether the default backend is silent.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The time between two log lines about a node that is not ready.
const REMIND_INTERVAL: Duration = Duration::from_secs(600);

/// One backend's status.
#[derive(Debug)]
pub struct StatusAnswer {
    /// The backend that the status belongs to.
    pub backend: Arc<Backend>,
    /// The `StatusResponse`: the current one, else the last known one, else empty.
    pub status: Readable,
    /// Why the backend does not answer now; `None` if it answers.
    pub silent: Option<Status>,
}

/// The reply to `Status`: the default backend's status, with the routing table's handlers, the features that the
/// backends share, and a condition for the state of all backends.
pub(crate) async fn status(switch: &Switch, call: &Call) -> Result<Reply, Failed> {
    let live = &call.live;
    let default = live.backend(live.default_backend())?;
    let others = live.backends.iter().filter(|other| other.id != default.id);
    let ((said, answer), others) = join(
        default_status(call, default),
        join_all(others.map(|other| ask_status(call, other))),
    )
    .await;
    act(switch, default, Learned::of_status())?;
    let said: Vec<_> = std::iter::once(said).chain(others).collect();
    let summary = protobuf::varint(&call.message(), &[status_request::VERBOSE])
        .is_ok_and(|verbose| verbose != 0)
        .then(|| summary(live));
    // Each status was already parsed when criswitch received it.
    let message =
        merged(&live.table, &said, summary.as_ref()).map_err(|fault| default.malformed(&fault))?;
    Ok(match answer {
        Some(answer) => reply::of_changed(answer, message),
        None => reply::of_message(vec![message]),
    })
}

/// The default backend, and how long it has been silent; `None` if it has not been silent long enough to make the node
/// not ready.
pub(crate) fn silent_default(live: &Live, created: Instant) -> Option<(Arc<Backend>, Duration)> {
    let backend = live.backend(live.default_backend()).ok()?;
    let since = match backend.failing() {
        Failing::No => backend.record.learn(|known| known.without_status_since())?,
        Failing::Since(since) => since,
        Failing::NeverAnswered => created,
    };
    let silent = since.elapsed();
    (silent >= STATUS_TRUST).then(|| (Arc::clone(backend), silent))
}

/// The backends with a fault, as far as their last answers show it: these backends make `BackendsReady` false. A
/// backend whose last `Status` cannot be decoded has a fault.
pub(crate) fn faulty(live: &Live) -> Vec<BackendId> {
    let Ok(default) = live.backend(live.default_backend()).map(last_answer) else {
        return live.backends.iter().map(|backend| backend.id).collect();
    };
    live.backends
        .iter()
        .map(last_answer)
        .filter(|said| merged::faults(said, &default).map_or(true, |faults| !faults.is_empty()))
        .map(|said| said.backend.id)
        .collect()
}

/// Logs when the silence of the default backend makes the node not ready, again every [`REMIND_INTERVAL`], and when the
/// backend is ready again.
pub(crate) async fn report_silent_default(switch: &Switch) -> Infallible {
    let mut reported: Option<Instant> = None;
    let mut silent_since = Instant::now();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        match (silent_default(&switch.live(), switch.created), reported) {
            (Some((backend, silent)), last) => {
                silent_since = Instant::now() - silent;
                if last.is_none_or(|last| last.elapsed() >= REMIND_INTERVAL) {
                    reported = Some(Instant::now());
                    let link = backend.connection.link();
                    let (name, socket) = (backend.name(), &backend.socket);
                    let cause = link.state.cause().map(AsRef::as_ref);
                    let time = span(silent);
                    tracing::error!(backend = %name, %socket, cause, "the node is not ready: the default backend has been silent for {time}");
                }
            }
            (None, Some(_)) => {
                reported = None;
                let time = span(silent_since.elapsed());
                tracing::info!("the default backend is ready again after {time}");
            }
            (None, None) => {}
        }
    }
}

/// The backend's version, or its last known version if the backend is slow or away. A slow backend must not delay this
/// reply, because clients ask for the version first, even before calls that do not need the backend.
pub(crate) async fn version_of(call: &Call, backend: &Backend) -> Result<Reply, Failed> {
    let headers = call.reading_headers();
    let answer = pin!(backend.ask(call.user, call.row, &headers, call.body.clone()));
    let known = backend.record.known().version;
    if known.is_empty() {
        return Ok(reply::of_answer(answer.await?));
    }
    if backend.late_read(call.row, &call.body).is_none() {
        match call.within(STATUS_WAIT, answer).await {
            Ok(Ok(answer)) => return Ok(reply::of_answer(answer)),
            Ok(Err(status)) if !errors::is_silence(&status) => return Err(status.into()),
            Err(late) if late.is_fault_of_backend => {
                backend.note_late_read(call.row, &call.body, STATUS_WAIT);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Ok(reply::of_answer(Answer::of_message(&known)))
}

/// The default backend's status: the current one, else the last known one if it is younger than [`STATUS_TRUST`], else
/// a status that is not ready. An error would hide the state of the other backends from an operator.
async fn default_status(call: &Call, backend: &Arc<Backend>) -> (StatusAnswer, Option<Answer>) {
    let silent = match request_status(call, backend, pin!(fanout::ask(call, backend))).await {
        Ok((said, answer)) => return (said, Some(answer)),
        Err(silent) => silent,
    };
    let mut said = last_known(backend, Some(silent));
    if let Some(silent) = &said.silent
        && !backend.record.known().has_status_within(STATUS_TRUST)
    {
        // This status is always readable: the kept parts were read before, and criswitch makes the conditions itself.
        said.status =
            Readable::status(&unready(&said.status, silent.message())).unwrap_or_default();
    }
    (said, None)
}

/// The status of a backend other than the default backend: the current one, else the last known one and why the backend
/// does not answer.
async fn ask_status(call: &Call, backend: &Arc<Backend>) -> StatusAnswer {
    let headers = own_headers();
    let asked = backend.ask(call.user, &rpc::STATUS, &headers, frames::frame(&[]));
    let asked = pin!(fanout::timed(backend, &rpc::STATUS, asked));
    match request_status(call, backend, asked).await {
        Ok((said, _)) => said,
        Err(silent) => last_known(backend, Some(silent)),
    }
}

/// Waits for `asked`, which requests the status of a backend, and caches the reply. If the reply is an error or cannot
/// be used, the session requests the status again.
async fn request_status(
    call: &Call,
    backend: &Arc<Backend>,
    asked: impl Future<Output = Result<Answer, Status>> + Unpin,
) -> Result<(StatusAnswer, Answer), Status> {
    if backend
        .record
        .learn(|known| known.is_late_with(&rpc::STATUS))
    {
        return Err(late(backend));
    }
    let forgets = backend.forgets();
    let answer = match call.within(STATUS_WAIT, asked).await {
        Ok(answered) => answered.inspect_err(|why| {
            // A backend may break off this call only, and answer all others.
            if backend.connection.is_ready() || !errors::is_silence(why) {
                backend.record.doubt(&rpc::STATUS);
            }
        })?,
        Err(given_up) => {
            // If a backend always takes longer than `STATUS_WAIT`, only a call in the background gets its status.
            if given_up.is_fault_of_backend {
                backend.record.miss(&rpc::STATUS);
            }
            return Err(late(backend));
        }
    };
    let memory = backend.memory.of(call.user, call.row);
    let status = backend
        .message(&answer)
        .and_then(|message| keep_status(backend, forgets, &message, &memory))
        .inspect_err(|_| backend.record.doubt(&rpc::STATUS))?;
    backend.record.note_answer(&rpc::STATUS, None);
    let said = StatusAnswer {
        backend: Arc::clone(backend),
        status,
        silent: None,
    };
    Ok((said, answer))
}

/// Caches a status if clients can read it, because the merged status has parts of it. `forgets` is the value of
/// [`Backend::forgets`] when the status was requested: a forgotten status is not cached again. Returns the status. If
/// clients cannot read the info of a verbose status, returns a copy without the info, which counts in `memory`.
///
/// # Errors
/// `Internal` for a malformed or oversized status; `ResourceExhausted` if `memory` is full.
pub(crate) fn keep_status(
    backend: &Backend,
    forgets: u64,
    status: &Bytes,
    memory: &Budget,
) -> Result<Readable, Status> {
    let kept = merged::without_info(status).map_err(|fault| backend.malformed(&fault))?;
    if let Some(cause) = merged::oversized(&kept) {
        return Err(backend.bad_reply(&cause));
    }
    let kept = Readable::status(&kept).map_err(|fault| backend.bad_reply(&fault))?;
    let whole = kept
        .repeated(status)
        .or_else(|| Readable::status(status).ok());
    let usable = match whole {
        Some(whole) => whole,
        None => kept
            .clone()
            .holding(backend.resized(memory.held(), kept.len())?),
    };
    if backend.forgets() == forgets {
        backend.learn_saved(|known| known.set_status(kept));
    }
    Ok(usable)
}

/// criswitch's own entry in the output of `crictl info`.
fn summary(live: &Live) -> Json {
    let rows = live.table.handlers.iter();
    let handlers =
        rows.map(|row| json!({ "name": row.name, "backend": live.name_of(row.backend) }));
    let backends = live.backends.iter().map(|backend| {
        let [runtime, version, _] = identity(&backend.record.known());
        json!({
            "name": *backend.name(),
            "socket": backend.socket.to_string(),
            "state": backend.connection.link().state.as_ref(),
            "runtime": runtime,
            "version": version,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "configuration": live.config.hash,
        "defaultHandler": live.table.default.name,
        "handlers": handlers.collect::<Vec<_>>(),
        "backends": backends.collect::<Vec<_>>(),
    })
}

/// A backend's last known status, and why the backend does not answer now.
fn last_known(backend: &Arc<Backend>, silent: Option<Status>) -> StatusAnswer {
    StatusAnswer {
        backend: Arc::clone(backend),
        status: backend.record.known().status,
        silent,
    }
}

/// The last known status, and why a backend that is not ready does not answer.
fn last_answer(backend: &Arc<Backend>) -> StatusAnswer {
    let silent = (!backend.connection.is_ready()).then(|| late(backend));
    last_known(backend, silent)
}

fn late(backend: &Backend) -> Status {
    match backend.connection.link().state {
        State::Unresponsive(_, cause) | State::Down(cause) => backend.unavailable(&cause),
        State::Connecting => backend.unavailable(CONNECTING),
        State::Ready(_) => backend.unavailable(&format!("no Status within {STATUS_WAIT:?}")),
    }
}

/// The runtime's name, version and cgroup driver, as last reported; empty if unknown.
pub(crate) fn identity(known: &Known) -> [String; 3] {
    let [name, version] =
        [2, 3].map(|field| text(&known.version, field).unwrap_or_default().into_owned());
    let driver = known.cgroup_driver.map(cgroup_driver_name);
    [name, version, driver.unwrap_or_default().to_owned()]
}

/// Whether a `StatusResponse` lists handlers, but not this one. The empty name is the backend's own default, which
/// every backend has.
pub(crate) fn lacks(status: &[u8], handler: &str) -> bool {
    let lists_any = protobuf::has(status, status_response::RUNTIME_HANDLERS);
    !handler.is_empty() && lists_any == Ok(true) && merged::advertised(status, handler) == Ok(None)
}

/// The features of this handler in a `StatusResponse`, by the CRI's names. Empty if the status cannot be decoded.
pub(crate) fn features_of(status: &[u8], handler: &str) -> Vec<&'static str> {
    let found = merged::advertised(status, handler).ok().flatten();
    let features =
        found.and_then(|found| protobuf::submessage(found, &[runtime_handler::FEATURES]).ok());
    features::names(features::OF_HANDLER, &features.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use criswitch_config::address::Address;
    use criswitch_config::{BackendConfig, BackendIds};

    use super::*;
    use crate::backend::connect::Dialer;

    #[test]
    fn a_status_counts_with_its_reply_and_a_copy_counts_separately() {
        let socket = Address::parse("/run/runc.sock").unwrap();
        let id = BackendIds::except(std::iter::empty()).issue();
        let row = BackendConfig::without_row(id, "runc", &socket);
        let backend = Backend::new(&row, 1 << 20, Dialer::Socket);
        let memory = Budget::for_messages(1 << 20);
        let keep = |status: &Bytes| keep_status(&backend, 0, status, &memory).unwrap();
        let handler = Bytes::from_static(b"\x1a\x03\x0a\x01a");
        assert_eq!(keep(&handler).as_ptr(), handler.as_ptr(), "no copy");
        // Info that is not UTF-8.
        let info = b"\x12\x0b\x0a\x03raw\x12\x04caf\xe9";
        let copy = keep(&[&handler[..], info].concat().into());
        assert_eq!((copy.as_ref(), memory.used()), (&handler[..], copy.len()));
        drop(copy);
        assert_eq!(memory.used(), 0);
    }
}
