//! `Status`: the node as the kubelet is to see it, built on the default backend's bytes; and `Version`.
//!
//! Neither waits long for a slow backend that has answered before, or fails because one that is not the default is down.

use std::borrow::Cow;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{join, join_all};
use serde_json::{Value as Json, json};
use tonic::{Code, Status};

use crate::answer::Answer;
use crate::backend::{Backend, own_headers};
use crate::call::{Call, Failed};
use crate::config::Table;
use crate::listing::WRONG_CGROUP_DRIVER;
use crate::live::{self, Live};
use crate::merge;
use crate::reply::{self, Reply};
use crate::rpc;
use crate::switch::Switch;
use crate::wire::{self, Malformed};

/// How long a backend may take before what it said last is used.
const STATUS_WAIT: Duration = Duration::from_secs(1);

/// How long ago the default backend must have answered anything at all for its last `Status` to stand for it; the
/// kubelet calls a node not ready after as long.
const STATUS_TRUST: Duration = Duration::from_secs(30);

/// The conditions without which a backend is not ready. Others are warnings, such as containerd's of deprecations.
const NEEDED: [&str; 2] = ["RuntimeReady", "NetworkReady"];

// `StatusResponse`.
const CONDITIONS: u32 = 1;
const INFO: u32 = 2;
const HANDLERS: u32 = 3;
const FEATURES: u32 = 4;

/// What one backend says of itself.
#[derive(Debug)]
pub struct Said {
    /// Which one.
    pub backend: Arc<Backend>,
    /// Its `StatusResponse`: of now, else the last one known, else empty.
    pub status: Bytes,
    /// Why it did not say so now.
    pub silent: Option<Status>,
}

impl Switch {
    /// The default backend's status with the table's handlers, common features and the state of all backends.
    pub(crate) async fn status(&self, call: &Call) -> Result<Reply, Failed> {
        let live = &call.live;
        let default = live.speaker();
        let others = live.backends.iter().filter(|backend| backend.id != default);
        let (answer, others) = join(
            self.default_status(call),
            join_all(others.map(|backend| self.ask_status(backend))),
        )
        .await;
        let (answer, silent) = answer?;
        let backend = live.backend(default)?;
        let said = Said {
            backend: Arc::clone(backend),
            status: backend.message(&answer)?,
            silent,
        };
        let said: Vec<_> = std::iter::once(said).chain(others).collect();
        let verbose = wire::varint(&call.message(), &[1]).is_ok_and(|verbose| verbose != 0);
        let message = self.node_status(live, &said, verbose);
        // What the others say has been read before.
        let message = message.map_err(|fault| backend.malformed(&fault))?;
        Ok(reply::of_changed(answer, &message))
    }

    /// The backend's version, as it last told it if it does not tell it in time: clients ask for it before anything
    /// else, also before what would help when the backend does not answer.
    pub(crate) async fn version_of(&self, call: &Call, backend: &Backend) -> Result<Reply, Failed> {
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

    /// The default backend's answer; without one in time, what it said last, for as long as the kubelet itself would
    /// go without one.
    async fn default_status(&self, call: &Call) -> Result<(Answer, Option<Status>), Failed> {
        let backend = call.live.backend(call.live.speaker())?;
        let headers = call.reading_headers();
        let answer = backend.ask(call.row, &headers, call.body.clone());
        let answer = match tokio::time::timeout(STATUS_WAIT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) => return last_word(backend, status),
            Err(_) => return last_word(backend, late(backend)),
        };
        if answer.code() != Code::Ok {
            return Err(Failed::Answer(Box::new(answer)));
        }
        let status = without(&backend.message(&answer)?, &[INFO]);
        let status = status.map_err(|fault| backend.malformed(&fault))?.freeze();
        backend.learn(|known| known.status = status);
        self.adopt();
        Ok((answer, None))
    }

    /// What another backend says now, else what it said last and why it does not now.
    async fn ask_status(&self, backend: &Arc<Backend>) -> Said {
        let headers = own_headers();
        let asked = backend.ask(&rpc::STATUS, &headers, wire::frame(&[]));
        let result = match tokio::time::timeout(STATUS_WAIT, asked).await {
            Ok(answer) => answer.and_then(|answer| backend.message(&answer)),
            Err(_) => Err(late(backend)),
        };
        let said = result.and_then(|status| self.readable(backend, status));
        let said = said.unwrap_or_else(|silent| Said {
            backend: Arc::clone(backend),
            status: backend.known().status,
            silent: Some(silent),
        });
        backend.learn(|known| known.status.clone_from(&said.status));
        self.adopt();
        said
    }

    /// A reply that can be read wherever something is taken from it: a broken one is to spoil nobody else's.
    fn readable(&self, backend: &Arc<Backend>, status: Bytes) -> Result<Said, Status> {
        let said = Said {
            backend: Arc::clone(backend),
            status,
            silent: None,
        };
        let read = self.node_status(&self.live(), slice::from_ref(&said), true);
        read.map_err(|fault| backend.malformed(&fault))?;
        Ok(said)
    }

    fn node_status(&self, live: &Live, said: &[Said], verbose: bool) -> Result<Bytes, Malformed> {
        let info = verbose.then(|| self.info(live, said)).transpose()?;
        merged(&live.table, said, info.as_ref())
    }

    /// The switch's own key of `info`.
    fn info(&self, live: &Live, said: &[Said]) -> Result<Json, Malformed> {
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
                    .map_or("adopted".to_owned(), ToString::to_string);
                json!({
                    "name": row.name,
                    "backend": backend,
                    "backendHandler": row.backend_handler,
                    "origin": origin,
                })
            })
            .collect();
        let backends: Vec<Json> = said
            .iter()
            .map(|said| self.backend_info(live, said))
            .collect::<Result<_, _>>()?;
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "default": live.table.default.name,
            "handlers": handlers,
            "backends": backends,
            "configuration": {
                "path": live.config.path,
                "files": live.config.files,
                "hash": live.config.hash,
            },
            "reloads": self.reloads().json(),
        }))
    }

    fn backend_info(&self, live: &Live, said: &Said) -> Result<Json, Malformed> {
        let backend = &said.backend;
        let link = backend.link();
        let known = backend.known();
        let (pods, containers) = self.owners().count(backend.id);
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
            "state": link.state.name(),
            "joined": backend.has_joined(),
            "draining": live.drains(backend.id),
            "adopts": live.adopting().any(|row| row.id == backend.id),
            "restartNeeds": (!live.names(backend.id)).then(|| live::line_for(backend)),
            "cause": link.state.cause().map(ToString::to_string),
            "since": humantime::format_rfc3339_seconds(link.since).to_string(),
            "transitions": link.transitions,
            "runtime": text(&known.version, 2).unwrap_or_default(),
            "version": text(&known.version, 3).unwrap_or_default(),
            "cgroupDriver": known.cgroup_driver.map(cgroup_driver_name),
            "staleListAgeSeconds": known.stale_age().map(|age| age.as_secs()),
            "listsStoodInFor": known.stood_in,
            "listsLeftOutOf": known.left_out,
            "conditions": conditions.collect::<Vec<Json>>(),
            "pods": pods,
            "containers": containers,
        }))
    }
}

/// The node's `StatusResponse`: that of the first of `said`, which speaks for the node, with the table's handlers, the
/// features that all have which new pods may come to, a condition for all of them, and `info` as the switch's own entry.
///
/// # Errors
/// If one cannot be read, which then cannot be read alone either.
pub fn merged(table: &Table, said: &[Said], info: Option<&Json>) -> Result<Bytes, Malformed> {
    let Some(default) = said.first() else {
        return Ok(Bytes::new());
    };
    let mut out = without(&default.status, &[HANDLERS, FEATURES])?;
    let mut status = BytesMut::new();
    wire::put_bytes(&mut status, 1, &backends_ready(said)?);
    wire::put_bytes(&mut out, CONDITIONS, &status);
    for entry in handlers(table, said)? {
        wire::put_bytes(&mut out, HANDLERS, &entry);
    }
    let mut shared = Vec::new();
    for said in said {
        // Read of all, so that one that cannot be read is found when it comes.
        let features = features(&said.status)?;
        let takes_pods = table
            .handlers
            .iter()
            .any(|row| row.backend == said.backend.id);
        if takes_pods && said.backend.has_joined() {
            shared.push(features);
        }
    }
    let features = merge::common_features(&shared)?;
    if !features.is_empty() {
        wire::put_bytes(&mut out, FEATURES, &features);
    }
    if let Some(info) = info {
        wire::put_bytes(
            &mut out,
            INFO,
            &string_entry("criswitch", &info.to_string()),
        );
    }
    Ok(out.freeze())
}

/// What the default backend said last, and why it does not say so now; an error once that is too long ago.
fn last_word(backend: &Backend, silent: Status) -> Result<(Answer, Option<Status>), Failed> {
    let known = backend.known();
    if known.status.is_empty() || !known.answered_within(STATUS_TRUST) {
        return Err(silent.into());
    }
    Ok((Answer::of_message(&known.status), Some(silent)))
}

fn late(backend: &Backend) -> Status {
    backend.unavailable(&format!("no Status within {STATUS_WAIT:?}"))
}

/// `RuntimeCondition`.
struct Condition<'a> {
    kind: Cow<'a, str>,
    status: bool,
    reason: Cow<'a, str>,
    message: Cow<'a, str>,
}

/// `CgroupDriver` of the CRI.
fn cgroup_driver_name(driver: u64) -> &'static str {
    match driver {
        0 => "systemd",
        1 => "cgroupfs",
        _ => "unknown",
    }
}

fn conditions(status: &[u8]) -> Result<Vec<Condition<'_>>, Malformed> {
    wire::all_bytes(status, &[CONDITIONS, 1])?
        .into_iter()
        .map(|condition| {
            Ok(Condition {
                kind: text(condition, 1)?,
                status: wire::varint(condition, &[2])? != 0,
                reason: text(condition, 3)?,
                message: text(condition, 4)?,
            })
        })
        .collect()
}

/// What is wrong with a backend, apart from what its own conditions warn of.
fn faults(said: &Said, default: &Said) -> Result<Vec<String>, Malformed> {
    let (backend, known) = (&said.backend, said.backend.known());
    let place = format!("backend {:?} ({})", backend.name(), backend.socket);
    let mut faults = Vec::new();
    if let Some(silent) = &said.silent {
        faults.push(silent.message().to_owned());
    } else {
        for condition in conditions(&said.status)? {
            if !condition.status && NEEDED.contains(&condition.kind.as_ref()) {
                let Condition { kind, message, .. } = condition;
                faults.push(format!("{place}: {kind} is false: {message}"));
            }
        }
    }
    if let Some(age) = known.stale_age() {
        let seconds = age.as_secs();
        faults.push(format!("{place}: lists of {seconds} s ago stand in for it"));
    }
    if let (Some(theirs), Some(ours)) = (known.cgroup_driver, default.backend.known().cgroup_driver)
        && theirs != ours
    {
        faults.push(format!("{place}: {WRONG_CGROUP_DRIVER}"));
    }
    Ok(faults)
}

/// The condition that says which backends are not ready; the kubelet does not read it.
fn backends_ready(said: &[Said]) -> Result<Bytes, Malformed> {
    let mut all = Vec::new();
    if let Some(default) = said.first() {
        for said in said {
            all.extend(faults(said, default)?);
        }
    }
    let mut out = BytesMut::new();
    wire::put_bytes(&mut out, 1, b"BackendsReady");
    wire::put_varint(&mut out, 2, u64::from(all.is_empty()));
    if !all.is_empty() {
        wire::put_bytes(&mut out, 3, b"BackendNotReady");
        wire::put_bytes(&mut out, 4, all.join("; ").as_bytes());
    }
    Ok(out.freeze())
}

/// A `RuntimeHandler` for each row of the table and one, without a name, for the default row; by name.
fn handlers(table: &Table, said: &[Said]) -> Result<Vec<Bytes>, Malformed> {
    let default = [("", &table.default)];
    let rows = default
        .into_iter()
        .chain(table.handlers.iter().map(|row| (row.name.as_str(), row)));
    rows.map(|(name, row)| {
        let status = said
            .iter()
            .find(|said| said.backend.id == row.backend)
            .map(|said| said.status.as_ref());
        let theirs =
            advertised(status.unwrap_or_default(), &row.backend_handler)?.unwrap_or_default();
        Ok(wire::with_string(theirs, &[1], name))
    })
    .collect()
}

/// The `RuntimeHandler` of this name in a `StatusResponse`.
fn advertised<'a>(status: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, Malformed> {
    for handler in wire::all_bytes(status, &[HANDLERS])? {
        if wire::bytes(handler, &[1])? == name.as_bytes() {
            return Ok(Some(handler));
        }
    }
    Ok(None)
}

fn features(status: &Bytes) -> Result<Bytes, Malformed> {
    Ok(wire::all_bytes(status, &[FEATURES])?.concat().into())
}

/// `message` less its fields of these numbers.
fn without(message: &[u8], numbers: &[u32]) -> Result<BytesMut, Malformed> {
    let mut out = BytesMut::with_capacity(message.len());
    for field in wire::fields(message) {
        let field = field?;
        if !numbers.contains(&field.number) {
            out.extend_from_slice(field.raw);
        }
    }
    Ok(out)
}

/// Text that is shown and never compared; a backend need not have checked that it is UTF-8.
fn text(message: &[u8], number: u32) -> Result<Cow<'_, str>, Malformed> {
    Ok(String::from_utf8_lossy(wire::bytes(message, &[number])?))
}

fn string_entry(key: &str, value: &str) -> Bytes {
    wire::with_string(&wire::with_string(&[], &[1], key), &[2], value)
}
