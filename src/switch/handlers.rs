//! The names of pods' handlers as clients see them: the routing table's names, whatever the backends call the handlers.
//!
//! criswitch remembers the row by which it created a pod. CRI-O lists pods without a handler, so criswitch asks CRI-O
//! for the verbose status of each pod that it did not create, once and in the background.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::wire::Wire;
use crate::call::route::Target;
use crate::call::{Request, log};
use crate::codec::frames;
use crate::codec::protobuf::{self, Edit, Malformed};
use crate::config::Table;
use crate::ownership::{BackendId, StartedWith, Unasked};
use crate::rpc::fields::{
    LISTED_ID, REQUESTED_ID, pod_sandbox_status_request, pod_sandbox_status_response,
};
use crate::rpc::{self, Kind, List};
use crate::switch::Switch;

/// The most pods that a backend is asked for at once.
const ASKED_AT_ONCE: usize = 4;
/// The most pods that wait for their question; the next list finds further pods.
const MOST_WAITING: usize = 256;
/// How long a backend may take for the verbose status of a pod.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The pause after the first failed question for a pod, then twice as long each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// The longest `info` in a verbose status that criswitch reads, in bytes; CRI-O's has some 20 KB.
const LONGEST_INFO: usize = 1 << 20;

/// Renames the handlers of the pods in `message` to the names that clients use. `path` is the path of a pod's handler.
/// `None` if nothing changes.
///
/// # Errors
/// `Internal` if `message` is malformed.
pub(crate) fn renamed(
    switch: &Switch,
    backend: &Backend,
    message: &[u8],
    path: &[u32],
) -> Result<Option<Bytes>, Status> {
    let [pod, handler] = path else {
        return Ok(None);
    };
    let (live, owners) = (switch.live(), switch.owners());
    let renamed = protobuf::edited(message, &[*pod], &mut |pod| {
        let (id, listed) = (
            protobuf::string(pod, LISTED_ID)?,
            protobuf::string(pod, &[*handler])?,
        );
        let started_with = owners.started_with(id, backend.id);
        let name = name(&live.table, backend.id, started_with, listed);
        Ok(match name == listed {
            true => Edit::Same,
            false => Edit::Other(protobuf::with_string(pod, &[*handler], name)),
        })
    });
    renamed.map_err(|fault| backend.malformed(&fault))
}

/// Whether a stream of pods of the only backend must be read, since clients may use another name for a pod's handler.
pub(crate) fn must_rename(switch: &Switch, list: List, backend: &Backend) -> bool {
    let renames = || switch.live().renames(backend.id);
    list == List::Pods && (renames() || switch.owners().has_started_otherwise(backend.id))
}

/// Adds a handler name to the log lines of a call that changes a pod: the name that clients use for the pod's handler.
pub(crate) fn note_handler(switch: &Switch, request: &Request, target: &Target) {
    if let (true, Target::Owner(backend, kind, id)) = (request.row.changes(), target) {
        let owners = switch.owners();
        let pod = match kind {
            Kind::Pod => Some(id.as_str()),
            Kind::Container => owners.pod_of(id),
        };
        let Some(pod) = pod.and_then(|pod| owners.names(pod, *backend)) else {
            return;
        };
        let table = &request.live.table;
        match name(table, *backend, &pod.started_with, &pod.handler) {
            "" => {}
            name => log::note_handler(name),
        }
    }
}

/// How many pods have each handler of the table, by the clients' names. Pods of other handlers count under `""`.
pub(crate) fn pods_by_handler(switch: &Switch) -> BTreeMap<String, usize> {
    let (live, owners) = (switch.live(), switch.owners());
    let rows = live.table.handlers.iter();
    let mut counts: BTreeMap<_, _> = rows.map(|row| (row.name.as_str(), 0)).collect();
    for (backend, pod) in owners.pods() {
        let handler = name(&live.table, backend, &pod.started_with, &pod.handler);
        let known = counts.contains_key(handler);
        *counts.entry(if known { handler } else { "" }).or_default() += 1;
    }
    let counts = counts.into_iter();
    counts.map(|(name, pods)| (name.to_owned(), pods)).collect()
}

/// Asks a backend for the handlers of the pods that it lists without a handler. A slow answer delays no question for
/// another pod.
pub(crate) async fn know_handlers(switch: &Switch, backend: &Backend, wire: &Wire) -> Infallible {
    let mut asked = FuturesUnordered::new();
    let mut under_way: Vec<String> = Vec::new();
    let mut waiting: Vec<Unasked> = Vec::new();
    loop {
        while asked.len() < ASKED_AT_ONCE
            && let Some(pod) = waiting.pop()
        {
            under_way.push(pod.id.clone());
            asked.push(ask_handler(switch, backend, wire, pod));
        }
        tokio::select! {
            biased;
            Some(pod) = asked.next() => under_way.retain(|id| *id != pod),
            () = backend.nudges.listed.notified(), if waiting.is_empty() => {
                waiting = switch.owners().without_handler(backend.id, Instant::now(), MOST_WAITING);
                waiting.retain(|pod| !under_way.contains(&pod.id));
            }
        }
    }
}

/// Asks a backend for the handler of one pod; returns the pod's id.
async fn ask_handler(switch: &Switch, backend: &Backend, wire: &Wire, pod: Unasked) -> String {
    let mut request = BytesMut::from(protobuf::with_string(&[], REQUESTED_ID, &pod.id).as_ref());
    protobuf::put_varint(&mut request, pod_sandbox_status_request::VERBOSE, 1);
    let asked = backend.ask_own(Some(wire), &rpc::POD_STATUS, frames::frame(&request));
    let answer = match tokio::time::timeout(LONGEST_WAIT, asked).await {
        Ok(Ok(answer)) if answer.code() == Code::Ok => {
            let reply = backend.message(&answer).ok();
            StartedWith::reported(reply.and_then(|reply| reported(&reply).ok()?))
        }
        _ => failed(pod.failures),
    };
    switch.owners().learn_handler(&pod.id, backend.id, answer);
    pod.id
}

/// The state of a pod whose question has failed, after `before` earlier failures.
fn failed(before: u32) -> StartedWith {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(before));
    StartedWith::Failed {
        times: before.saturating_add(1),
        again: Instant::now() + pause.min(LONGEST_PAUSE),
    }
}

/// The name that clients use for the handler of a pod that its backend lists with the handler `listed`. criswitch does
/// not guess: the name of an unknown handler is empty.
fn name<'n>(
    table: &'n Table,
    backend: BackendId,
    started_with: &'n StartedWith,
    listed: &'n str,
) -> &'n str {
    let handler = match started_with {
        StartedWith::Row(row) => return row,
        _ if !listed.is_empty() => listed,
        StartedWith::Handler(handler) => handler,
        _ => return listed,
    };
    table.name_for(backend, handler).unwrap_or(handler)
}

/// The parts of the JSON in the `info` of a verbose `PodSandboxStatus` that criswitch reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VerboseInfo {
    /// CRI-O's spec has the handler as an annotation; containerd's has none.
    #[serde(rename = "runtimeSpec")]
    spec: Option<Spec>,
    /// The handler as containerd 1 reports it.
    #[serde(rename = "runtimeHandler")]
    handler: Option<String>,
    /// The metadata, in which containerd 2 reports the handler.
    #[serde(rename = "sandboxMetadata")]
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "io.kubernetes.cri-o.RuntimeHandler")]
    handler: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(rename = "RuntimeHandler")]
    handler: Option<String>,
}

/// The backend's name for the handler in this verbose `PodSandboxStatus`: empty if the pod runs with the backend's
/// default handler, `None` if the backend does not report it.
fn reported(reply: &[u8]) -> Result<Option<String>, Malformed> {
    let handler = protobuf::string(reply, rpc::fields::STATUS_HANDLER)?;
    if !handler.is_empty() {
        return Ok(Some(handler.to_owned()));
    }
    let info =
        protobuf::entry(reply, &[pod_sandbox_status_response::INFO], "info")?.unwrap_or_default();
    if info.len() > LONGEST_INFO {
        return Ok(None);
    }
    let info: VerboseInfo = serde_json::from_str(info).unwrap_or_default();
    let annotation = info.spec.and_then(|spec| spec.annotations?.handler);
    let metadata = info.metadata.and_then(|metadata| metadata.handler);
    Ok(annotation.or(info.handler).or(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::protobuf::{MAP_KEY, MAP_VALUE};

    fn told(info: &str) -> Option<String> {
        let pair = protobuf::with_string(
            &protobuf::with_string(&[], &[MAP_KEY], "info"),
            &[MAP_VALUE],
            info,
        );
        let mut reply = BytesMut::new();
        protobuf::put_bytes(&mut reply, pod_sandbox_status_response::INFO, &pair);
        reported(&reply).unwrap()
    }

    #[test]
    fn a_handler_is_read_where_each_runtime_has_it_and_nowhere_else() {
        let crio = |annotations| {
            format!(r#"{{"image":"","pid":7,"runtimeSpec":{{"annotations":{annotations}}}}}"#)
        };
        let handler = r#"{"a":"b","io.kubernetes.cri-o.RuntimeHandler":"runsc"}"#;
        assert_eq!(told(&crio(handler)).as_deref(), Some("runsc"));
        let default = r#"{"io.kubernetes.cri-o.RuntimeHandler":""}"#;
        assert_eq!(told(&crio(default)).as_deref(), Some(""));
        for nothing in [
            &crio("{}"),
            &crio("null"),
            "{}",
            "[]",
            "no JSON",
            "",
            "{\"runtimeSpec\":null}",
        ] {
            assert_eq!(told(nothing), None, "{nothing}");
        }
        let containerd = r#"{"runtimeHandler":"kata","runtimeSpec":{"annotations":{}}}"#;
        assert_eq!(told(containerd).as_deref(), Some("kata"));
        let containerd = r#"{"sandboxMetadata":{"ID":"1","RuntimeHandler":""},"runtimeSpec":{}}"#;
        assert_eq!(told(containerd).as_deref(), Some(""));
    }

    #[test]
    fn a_handler_in_the_status_itself_counts_and_a_very_long_info_is_not_read() {
        let status = protobuf::with_string(&[], rpc::fields::STATUS_HANDLER, "runc");
        assert_eq!(reported(&status).unwrap().as_deref(), Some("runc"));
        let filler = "x".repeat(LONGEST_INFO);
        assert_eq!(
            told(&format!(r#"{{"a":"{filler}","runtimeHandler":"kata"}}"#)),
            None
        );
    }
}
