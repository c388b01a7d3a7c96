//! Translates the handlers of pods and images to the names that clients use. These are the names in the routing table,
//! which may differ from the backends' names.
//!
//! criswitch remembers the row of the routing table that it created a pod with. CRI-O lists pods without a handler. For
//! each such pod that criswitch did not create, criswitch requests the verbose status in the background, until the
//! backend answers.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::time::Duration;

use bytes::BytesMut;
use criswitch_config::{BackendId, NamesOfHandlers, Table};
use criswitch_cri::codec::frames;
use criswitch_cri::codec::protobuf::{self, Edit, Editable, Edited, Malformed};
use criswitch_cri::rpc::fields::{
    LISTED_ID, REQUESTED_ID, pod_sandbox_status_request, pod_sandbox_status_response,
};
use criswitch_cri::rpc::{self, HandlerPaths, Kind, List, MOST_RENAMED};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::wire::Wire;
use crate::call::route::Target;
use crate::call::{Request, log};
use crate::ownership::{LONGEST_HANDLER, Owners, StartedWith, Unasked};
use crate::topology::Live;

/// The most requests for pods' handlers in flight to one backend.
const ASKED_AT_ONCE: usize = 4;
/// The most pods whose handlers wait to be requested. Further pods follow after the next list.
const MOST_WAITING: usize = 256;
/// How long a backend may take for the verbose status of a pod.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The pause after the first failed request for a pod's handler. Each further failure doubles the pause, up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// The longest `info` in a verbose status that criswitch reads, in bytes. CRI-O's has about 20 KB.
const LONGEST_INFO: usize = 1 << 20;

/// The most bytes by which another name for its handler makes an item of a list longer: the number of the field, the
/// length of the name, the name, and one byte more for the length of the image spec and that of the item.
const MOST_LONGER: usize = 2 + 1 + LONGEST_HANDLER + 2;

/// Renames the handlers at `paths` in `message` to the names that clients use. Returns `None` if nothing changes.
///
/// # Errors
/// `Internal` if `message` is malformed.
pub(crate) fn renamed<M: Editable>(
    table: &Table,
    owners: &Owners,
    backend: &Backend,
    message: &M,
    paths: &HandlerPaths,
) -> Result<Option<M>, Status> {
    let names = table.names_of(backend.id);
    let pods = match paths.pod {
        Some([pod, handler]) => pods_renamed(&names, owners, backend, message, (pod, handler))?,
        _ => None,
    };
    if !table.renames(backend.id) {
        return Ok(pods);
    }
    let now = pods.as_ref().unwrap_or(message);
    Ok(rpc::specs_renamed(now, paths.images, |handler| names.image_name_for(handler)).or(pods))
}

fn pods_renamed<M: Editable>(
    names: &NamesOfHandlers<'_>,
    owners: &Owners,
    backend: &Backend,
    message: &M,
    (pod, handler): (&u32, &u32),
) -> Result<Option<M>, Status> {
    let mut count = 0;
    let renamed = protobuf::edited(message, &[*pod], &mut |pod| {
        let (id, listed) = (
            protobuf::string(pod, LISTED_ID)?,
            protobuf::string(pod, &[*handler])?,
        );
        let started_with = owners.pods.started_with(id, backend.id);
        let name = name(|it| names.name_for(it), started_with, listed);
        count += usize::from(name != listed);
        Ok(if name == listed || count > MOST_RENAMED {
            Edit::Same
        } else {
            Edit::Other(Edited::with_string(pod, &[*handler], name))
        })
    });
    renamed.map_err(|fault| backend.malformed(&fault))
}

/// Whether criswitch must decode the streamed list of its only backend, because clients may use another name for a
/// handler in it.
pub(crate) fn must_rename(live: &Live, owners: &Owners, list: List, backend: BackendId) -> bool {
    let renames = live.table.renames(backend);
    match list {
        List::Pods => renames || owners.pods.has_started_otherwise(backend),
        List::Containers | List::Images => renames,
        _ => false,
    }
}

/// The most bytes by which names that clients use for handlers make the list `message` longer.
pub(crate) fn most_growth(list: List, message: &[u8]) -> usize {
    match list {
        List::Pods | List::Containers | List::Images => {
            protobuf::fields(message).count().min(MOST_RENAMED) * MOST_LONGER
        }
        _ => 0,
    }
}

/// Adds the handler of a pod to the log lines of a call that changes the pod or its container, by the name that clients
/// use.
pub(crate) fn note_handler(owners: &Owners, request: &Request, target: &Target) {
    if let (true, Target::Owner(_, kind, id)) = (request.row.changes(), target)
        && let Some(name) = of_item(&request.live.table, owners, *kind, id)
    {
        log::note_handler(&name);
    }
}

/// The handler of a pod or of a container's pod, by the name that clients use. `None` if it is not known.
pub(crate) fn of_item(table: &Table, owners: &Owners, kind: Kind, id: &str) -> Option<String> {
    let pod = match kind {
        Kind::Pod => id,
        Kind::Container => owners.containers.pod_of(id)?,
    };
    let backend = owners.find(Kind::Pod, pod)?;
    let names = owners.pods.names(pod, backend)?;
    let name = name(
        |it| table.name_for(backend, it),
        &names.started_with,
        &names.handler,
    );
    (!name.is_empty()).then(|| name.to_owned())
}

/// Counts the pods of each handler in the routing table. Pods of other handlers count under `""`.
pub(crate) fn pods_by_handler(table: &Table, owners: &Mutex<Owners>) -> BTreeMap<String, usize> {
    let rows = table.handlers.iter();
    let mut counts: HashMap<_, _> = rows.map(|row| (row.name.as_str(), 0)).collect();
    let (mut names, mut others) = (HashMap::new(), 0);
    // Every call needs the owners, so the names of the table are read before the owners are locked.
    for row in &table.handlers {
        let of_backend = names.entry(row.backend);
        of_backend.or_insert_with(|| table.names_of(row.backend));
    }
    for (backend, pod) in owners.lock().pods.all() {
        let names = names
            .entry(backend)
            .or_insert_with(|| table.names_of(backend));
        let handler = name(|it| names.name_for(it), &pod.started_with, &pod.handler);
        *counts.get_mut(handler).unwrap_or(&mut others) += 1;
    }
    let others = (others > 0).then_some(("", others));
    counts
        .into_iter()
        .chain(others)
        .map(|(name, pods)| (name.to_owned(), pods))
        .collect()
}

/// Requests the handlers of the pods that a backend lists without a handler. Several requests are in flight, so that a
/// slow answer does not delay the others.
pub(crate) async fn request_handlers(
    owners: &Mutex<Owners>,
    backend: &Backend,
    wire: &Wire,
) -> Infallible {
    let mut asked = FuturesUnordered::new();
    let mut under_way: Vec<String> = Vec::new();
    let mut waiting: Vec<Unasked> = Vec::new();
    loop {
        while asked.len() < ASKED_AT_ONCE
            && let Some(pod) = waiting.pop()
        {
            under_way.push(pod.id.clone());
            asked.push(ask_handler(owners, backend, wire, pod));
        }
        tokio::select! {
            biased;
            Some(pod) = asked.next() => under_way.retain(|id| *id != pod),
            () = backend.wakeups.listed.notified(), if waiting.is_empty() => {
                waiting = owners.lock().pods.without_handler(backend.id, Instant::now(), MOST_WAITING);
                waiting.retain(|pod| !under_way.contains(&pod.id));
            }
        }
    }
}

/// Requests the handler of one pod from its backend. Returns the pod's id.
async fn ask_handler(
    owners: &Mutex<Owners>,
    backend: &Backend,
    wire: &Wire,
    pod: Unasked,
) -> String {
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
    owners
        .lock()
        .pods
        .learn_handler(&pod.id, backend.id, answer);
    pod.id
}

/// Returns the state of a pod after a failed request for its handler. `before` is the number of earlier failures.
fn failed(before: u32) -> StartedWith {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(before));
    StartedWith::Failed {
        times: before.saturating_add(1),
        again: Instant::now() + pause.min(LONGEST_PAUSE),
    }
}

/// Returns the name that clients use for a pod's handler. `listed` is the handler in the backend's list. criswitch does
/// not guess: the name of an unknown handler is empty.
fn name<'n>(
    table_name: impl Fn(&'n str) -> Option<&'n str>,
    started_with: &'n StartedWith,
    listed: &'n str,
) -> &'n str {
    let handler = match started_with {
        StartedWith::Row(row) | StartedWith::DefaultRow(row) => return row,
        _ if !listed.is_empty() => listed,
        StartedWith::Handler(handler) => handler,
        _ => return listed,
    };
    table_name(handler).unwrap_or(handler)
}

/// The parts of the JSON in the `info` of a verbose `PodSandboxStatus` that criswitch reads.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VerboseInfo {
    /// The pod's OCI spec. CRI-O puts the handler into an annotation of the spec; containerd does not.
    #[serde(rename = "runtimeSpec")]
    spec: Option<Spec>,
    /// The handler, as containerd 1 reports it.
    #[serde(rename = "runtimeHandler")]
    handler: Option<String>,
    /// The metadata in which containerd 2 reports the handler.
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

/// Reads the backend's name for the handler from a verbose `PodSandboxStatusResponse`. The name is empty if the pod
/// runs with the backend's default handler. Returns `None` if the backend does not report the handler.
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
    use criswitch_cri::codec::protobuf::{MAP_KEY, MAP_VALUE};

    use super::*;

    fn in_info(info: &str) -> Option<String> {
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
        assert_eq!(in_info(&crio(handler)).as_deref(), Some("runsc"));
        let default = r#"{"io.kubernetes.cri-o.RuntimeHandler":""}"#;
        assert_eq!(in_info(&crio(default)).as_deref(), Some(""));
        for nothing in [
            &crio("{}"),
            &crio("null"),
            "{}",
            "[]",
            "no JSON",
            "",
            "{\"runtimeSpec\":null}",
        ] {
            assert_eq!(in_info(nothing), None, "{nothing}");
        }
        let containerd = r#"{"runtimeHandler":"kata","runtimeSpec":{"annotations":{}}}"#;
        assert_eq!(in_info(containerd).as_deref(), Some("kata"));
        let containerd = r#"{"sandboxMetadata":{"ID":"1","RuntimeHandler":""},"runtimeSpec":{}}"#;
        assert_eq!(in_info(containerd).as_deref(), Some(""));
    }

    #[test]
    fn a_handler_in_the_status_itself_counts_and_a_very_long_info_is_not_read() {
        let status = protobuf::with_string(&[], rpc::fields::STATUS_HANDLER, "runc");
        assert_eq!(reported(&status).unwrap().as_deref(), Some("runc"));
        let filler = "x".repeat(LONGEST_INFO);
        assert_eq!(
            in_info(&format!(r#"{{"a":"{filler}","runtimeHandler":"kata"}}"#)),
            None
        );
    }
}
