//! `Status`: the node as the kubelet is to see it, built on the default backend's bytes; and `Version`.
//!
//! Neither waits long for a slow backend that has answered before, and `Status` does not fail because one is down.

mod merged;

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use http::HeaderMap;
use serde_json::{Value as Json, json};
use tonic::{Code, Status};

use crate::backend::answer::Answer;
use crate::backend::known::Known;
use crate::backend::state::State;
use crate::backend::{Backend, own_headers};
use crate::call::reply::{self, Reply};
use crate::call::{Call, Failed};
use crate::codec::frames;
use crate::codec::protobuf::{self, Malformed};
use crate::errors;
use crate::fanout::fallback;
use crate::rpc::fields::status_request;
use crate::rpc::{self, Kind, List};
use crate::switch::Switch;
use crate::switch::forget::{self, FORGET};
use crate::switch::reload;
use crate::switch::saved;
use crate::topology::Live;

pub use merged::merged;
use merged::{Condition, conditions, text, unready};

/// The header of a verbose `Status` that asks for the ids of each backend's pods.
pub const WITH_PODS: &str = "criswitch-pods";

/// The conditions that a kubelet needs of a runtime (cri-api: `RuntimeReady`, `NetworkReady`). Others are warnings, such as
/// containerd's of deprecations.
pub const NEEDED: [&str; 2] = ["RuntimeReady", "NetworkReady"];

/// The condition that says whether all backends are well; the kubelet does not read it.
pub const BACKENDS_READY: &str = "BackendsReady";

/// How long a backend may take before what it said last is used.
const STATUS_WAIT: Duration = Duration::from_secs(1);

/// How old the default backend's last `Status` may be to stand for it; the kubelet calls a node not ready after as long.
const STATUS_TRUST: Duration = Duration::from_secs(30);

/// How much a `Status` tells of the switch itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    None,
    Info,
    Pods,
}

/// What one backend says of itself.
#[derive(Debug)]
pub struct StatusAnswer {
    /// Which one.
    pub backend: Arc<Backend>,
    /// Its `StatusResponse`: of now, else the last one known, else empty.
    pub status: Bytes,
    /// Why it did not say so now.
    pub silent: Option<Status>,
}

/// The default backend's status with the table's handlers, common features and the state of all backends.
pub(crate) async fn status(switch: &Switch, call: &Call) -> Result<Reply, Failed> {
    let live = &match call.headers.get(FORGET) {
        Some(name) => {
            let forgotten = forget::forget(switch, name.to_str().unwrap_or_default()).await;
            forgotten.map_err(|cause| errors::not_forgotten(&cause))?;
            switch.live()
        }
        None => Arc::clone(&call.live),
    };
    let default = live.backend(live.speaker())?;
    let others = live.backends.iter().filter(|other| other.id != default.id);
    let ((said, answer), others) = join(
        default_status(switch, call, default),
        join_all(others.map(|backend| ask_status(switch, backend))),
    )
    .await;
    let said: Vec<_> = std::iter::once(said).chain(others).collect();
    let verbose = protobuf::varint(&call.message(), &[status_request::VERBOSE])
        .is_ok_and(|verbose| verbose != 0);
    let detail = match verbose {
        true if call.headers.contains_key(WITH_PODS) => Detail::Pods,
        true => Detail::Info,
        false => Detail::None,
    };
    let message = node_status(switch, live, &said, detail);
    // All that they say has been read before.
    let message = message.map_err(|fault| default.malformed(&fault))?;
    Ok(match answer {
        Some(answer) => reply::of_changed(answer, &message),
        None => reply::of_message(vec![message]),
    })
}

/// The backend's version, as it last told it if it does not tell it in time: clients ask for it before anything
/// else, also before what would help when the backend does not answer.
pub(crate) async fn version_of(call: &Call, backend: &Backend) -> Result<Reply, Failed> {
    let headers = call.reading_headers();
    let answer = backend.ask(call.row, &headers, call.body.clone());
    let known = backend.known().version;
    if known.is_empty() {
        return Ok(reply::of_answer(backend.patiently(answer).await?));
    }
    match tokio::time::timeout(STATUS_WAIT, answer).await {
        Ok(Ok(answer)) => Ok(reply::of_answer(answer)),
        Ok(Err(status)) if status.code() != Code::Unavailable => Err(status.into()),
        Ok(Err(_)) | Err(_) => Ok(reply::of_answer(Answer::of_message(&known))),
    }
}

/// What the default backend says now; without that what it said last, for as long as the kubelet itself would go
/// without, and then that it is not ready: an error would tell an operator nothing of the others.
async fn default_status(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
) -> (StatusAnswer, Option<Answer>) {
    let (headers, body) = (call.reading_headers(), call.body.clone());
    let silent = match hear_status(switch, backend, &headers, body).await {
        Ok((said, answer)) => return (said, Some(answer)),
        Err(silent) => silent,
    };
    let mut said = last_word(backend, silent);
    if let Some(silent) = &said.silent
        && !backend.known().said_status_within(STATUS_TRUST)
    {
        said.status = unready(&said.status, silent.message());
    }
    (said, None)
}

/// What another backend says now, else what it said last and why it does not now.
async fn ask_status(switch: &Switch, backend: &Arc<Backend>) -> StatusAnswer {
    let headers = own_headers();
    match hear_status(switch, backend, &headers, frames::frame(&[])).await {
        Ok((said, _)) => said,
        Err(silent) => last_word(backend, silent),
    }
}

/// What a backend says now, which is kept as its last word.
async fn hear_status(
    switch: &Switch,
    backend: &Arc<Backend>,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<(StatusAnswer, Answer), Status> {
    if let State::Unresponsive(_, cause) = backend.link().state {
        return Err(backend.unavailable(&cause));
    }
    let asked = backend.ask(&rpc::STATUS, headers, body);
    let asked = tokio::time::timeout(STATUS_WAIT, asked).await;
    let answer = asked.unwrap_or_else(|_| {
        // Nobody may ever wait long enough for one that is always slow.
        backend.miss(&rpc::STATUS);
        Err(late(backend))
    })?;
    let status = backend.message(&answer)?;
    Ok((keep_status(switch, backend, status)?, answer))
}

/// Keeps a reply that can be read wherever something is taken from it: a broken one is to spoil nobody else's.
///
/// # Errors
/// `Internal` for a broken one.
pub(crate) fn keep_status(
    switch: &Switch,
    backend: &Arc<Backend>,
    status: Bytes,
) -> Result<StatusAnswer, Status> {
    let said = StatusAnswer {
        backend: Arc::clone(backend),
        status,
        silent: None,
    };
    let kept = merged::without_info(&said.status);
    let kept = kept.map_err(|fault| backend.malformed(&fault))?;
    if let Some(cause) = merged::oversized(&kept) {
        return Err(backend.bad_reply(&cause));
    }
    let live = switch.live();
    merged(&live.table, slice::from_ref(&said), None).map_err(|fault| backend.malformed(&fault))?;
    backend.learn_saved(|known| known.say_status(kept));
    reload::auto_register(switch);
    Ok(said)
}

fn node_status(
    switch: &Switch,
    live: &Live,
    said: &[StatusAnswer],
    detail: Detail,
) -> Result<Bytes, Malformed> {
    let info = (detail != Detail::None).then(|| info(switch, live, said, detail));
    merged(&live.table, said, info.transpose()?.as_ref())
}

/// The switch's own key of `info`.
fn info(
    switch: &Switch,
    live: &Live,
    said: &[StatusAnswer],
    detail: Detail,
) -> Result<Json, Malformed> {
    let handlers: Vec<Json> = live
        .table
        .handlers
        .iter()
        .map(|row| {
            let backend = live
                .backend(row.backend)
                .map(|backend| backend.name().to_string())
                .ok();
            let origin = row
                .origin
                .as_ref()
                .map_or("auto-registered".to_owned(), ToString::to_string);
            json!({
                "name": row.name,
                "backend": backend,
                "backendHandler": row.backend_handler,
                "origin": origin,
            })
        })
        .collect();
    let mut backends = Vec::with_capacity(said.len());
    for said in said {
        let mut info = backend_info(switch, live, said)?;
        if let (Detail::Pods, Some(info)) = (detail, info.as_object_mut()) {
            let pods: Json = switch
                .owners()
                .of(Kind::Pod, said.backend.id)
                .into_iter()
                .collect();
            info.insert("podIds".to_owned(), pods);
        }
        backends.push(info);
    }
    // Names need not be text, which JSON is.
    let files = live.config.files.iter();
    let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "defaultHandler": live.table.default.name,
        "handlers": handlers,
        "backends": backends,
        "configuration": {
            "path": live.config.path.display().to_string(),
            "files": files,
            "hash": live.config.hash,
        },
        "reloads": switch.reloads().json(),
    }))
}

fn backend_info(switch: &Switch, live: &Live, said: &StatusAnswer) -> Result<Json, Malformed> {
    let backend = &said.backend;
    let link = backend.link();
    let known = backend.known();
    let (pods, containers) = reload::owned_by(switch, backend.id).unzip();
    let conditions = conditions(&said.status)?.into_iter().map(|condition| {
        let Condition {
            kind,
            status,
            reason,
            message,
        } = condition;
        json!({ "type": kind, "status": status, "reason": reason, "message": message })
    });
    Ok(json!({
        "name": *backend.name(),
        "socket": backend.socket.to_string(),
        "state": link.state.as_ref(),
        "joined": backend.has_joined(),
        "draining": live.drains(backend.id),
        "autoRegister": live.auto_registering().any(|row| row.id == backend.id),
        "unnamed": !live.names(backend.id),
        "listProblem": fallback::lists_problem(switch, backend),
        "podsFromCache": known.is_from_cache(List::Pods),
        "restartProblem": saved::restart_problem(switch, backend),
        "cause": link.state.cause().map(ToString::to_string),
        "since": humantime::format_rfc3339_seconds(link.since).to_string(),
        "transitions": link.transitions,
        "runtime": text(&known.version, 2).unwrap_or_default(),
        "version": text(&known.version, 3).unwrap_or_default(),
        "cgroupDriver": known.cgroup_driver.map(cgroup_driver_name),
        "staleListAgeSeconds": known.stale_age().map(|age| age.as_secs()),
        "statsLateSeconds": known.stats_late_for().map(|late| late.as_secs()),
        "staleStatsAgeSeconds": known.stale_stats_age().map(|age| age.as_secs()),
        "listsStoodInFor": known.stood_in,
        "statsFromCache": known.stats_from_cache,
        "listsLeftOutOf": known.left_out,
        "claimedItems": known.claims,
        "droppedItems": known.dropped,
        "conditions": conditions.collect::<Vec<Json>>(),
        "pods": pods,
        "containers": containers,
    }))
}

/// What a backend said last, and why it does not say anything now.
fn last_word(backend: &Arc<Backend>, silent: Status) -> StatusAnswer {
    StatusAnswer {
        backend: Arc::clone(backend),
        status: backend.known().status,
        silent: Some(silent),
    }
}

fn late(backend: &Backend) -> Status {
    match backend.link().state.cause() {
        Some(cause) => backend.unavailable(cause),
        None => backend.unavailable(&format!("no Status within {STATUS_WAIT:?}")),
    }
}

/// The runtime's name, its version and its cgroup driver, as it last reported them; empty where it has not.
pub(crate) fn identity(known: &Known) -> [String; 3] {
    let said = |field| text(&known.version, field).unwrap_or_default().into_owned();
    let driver = known.cgroup_driver.map(cgroup_driver_name);
    [said(2), said(3), driver.unwrap_or_default().to_owned()]
}

/// `CgroupDriver` of the CRI.
fn cgroup_driver_name(driver: u64) -> &'static str {
    match driver {
        0 => "systemd",
        1 => "cgroupfs",
        _ => "unknown",
    }
}
