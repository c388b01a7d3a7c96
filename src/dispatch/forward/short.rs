//! Short reads: calls that a backend answers at once, such as the status of one pod. The kubelet makes them one after
//! the other, with one worker for the whole node, so no backend may delay them for long.
//!
//! While the backend is away or late, criswitch replies with the last status of the pod or container, as it serves
//! cached lists. Without a kept status, the call fails at once. On a node with one backend, criswitch keeps no status,
//! and the call waits as long as its client does, unless the backend becomes unresponsive.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::fields::{
    CONTAINER_STATUS_HANDLERS, ITEMS, LISTED_ID, POD_STATUS_HANDLERS, REQUESTED_ID, VERBOSE_STATUS,
    container, pod_sandbox,
};
use criswitch_cri::rpc::{Kind, List, Row};
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::reply::{self, Unsent};
use crate::call::{Call, Failed, Request};
use crate::gate::Readable;
use crate::ownership::Owners;
use crate::switch::Switch;
use crate::switch::view::View;

/// Awaits `send`, which sends `call`, a short read, to `backend`. With several backends, waits at most `list_timeout`,
/// and replies with the kept status if the backend does not answer.
///
/// # Errors
/// `Unavailable` if the backend does not answer and no status is kept, else the error of `send`.
pub(super) async fn read(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
    send: impl Future<Output = Result<Unsent, Failed>> + Unpin,
) -> Result<Unsent, Failed> {
    if call.live.has_one_backend() {
        return send.await;
    }
    let sent = pin!(async {
        send.await.inspect_err(|why| {
            // The end of a connection and the deadline of the client say nothing about this RPC.
            let is_other = matches!(why.code(), Code::Unavailable | Code::DeadlineExceeded);
            if why.is_silence() && !is_other && !call.may_be_due_to_client() {
                backend.record.note_broken_read(call.row, &call.body);
            }
        })
    });
    match in_time(call, backend, sent).await {
        Err(why) if why.is_silence() => kept(switch, call, backend).ok_or(why),
        sent => sent,
    }
}

/// Awaits the answer of `backend` to `call`, a short read, at most for `list_timeout`. After that, the backend is late
/// with the RPC: criswitch sends no further calls of the RPC until the backend answers one that criswitch repeats.
///
/// # Errors
/// `Unavailable` if the backend is late, else the error of `asked`.
pub(crate) async fn in_time<T, E: From<Status>>(
    call: &Request,
    backend: &Backend,
    asked: impl Future<Output = Result<T, E>> + Unpin,
) -> Result<T, E> {
    if let Some(late) = backend.late_read(call.row, &call.body) {
        return Err(late.into());
    }
    let late = match call.within(backend.list_timeout(), asked).await {
        Ok(answered) => return answered,
        Err(late) => late,
    };
    backend.wakeups.suspected.notify_one();
    if late.is_fault_of_backend {
        backend.note_late_read(call.row, &call.body, backend.list_timeout());
    }
    Err(backend.timed_out(call.row).into())
}

/// The last status of the pod or container in `call`, if clients can use it, and if the cached list of its owner may be
/// served and shows the item in the same state.
fn kept(switch: &Switch, call: &Call, backend: &Backend) -> Option<Unsent> {
    let message = call.message();
    let (kind, id) = item(call.row, &message)?;
    if switch.owners().find(kind, id) != Some(backend.id) {
        return None;
    }
    let status = backend.statuses.lock().get(kind, id)?;
    if listed_state(backend, kind, id)? != status.state {
        return None;
    }
    let handlers = match kind {
        Kind::Pod => &POD_STATUS_HANDLERS,
        Kind::Container => &CONTAINER_STATUS_HANDLERS,
    };
    let message = Readable::item_status(kind, &status.message).ok()?;
    let renamed = View::of(switch).renamed(backend, &message, handlers).ok()?;
    Some(reply::of_message(vec![renamed.unwrap_or(message).into()]).into())
}

/// The state of a pod or container in the cached list of `backend`. `None` if the list lacks the item or is too old.
fn listed_state(backend: &Backend, kind: Kind, id: &str) -> Option<u64> {
    let (list, state) = match kind {
        Kind::Pod => (List::Pods, pod_sandbox::STATE),
        Kind::Container => (List::Containers, container::STATE),
    };
    let (age, message) = backend.record.learn(|known| {
        let age = known.lists.get(list)?.age();
        Some((age, known.lists.message(list)?))
    })?;
    if age >= backend.stale_lists() {
        return None;
    }
    let mut items = protobuf::all_bytes(&message, &[ITEMS]).ok()?.into_iter();
    let item = items.find(|item| protobuf::string(item, LISTED_ID) == Ok(id))?;
    protobuf::varint(item, &[state]).ok()
}

/// The pod or container whose status `request` asks for; `None` for a verbose status and for any other call.
fn item<'r>(row: &Row, request: &'r [u8]) -> Option<(Kind, &'r str)> {
    let (kind, _) = row.status()?;
    let is_verbose = protobuf::varint(request, VERBOSE_STATUS).ok()? != 0;
    (!is_verbose).then_some((kind, protobuf::string(request, REQUESTED_ID).ok()?))
}

/// Keeps the status in `answer`, the answer to the framed `request`. `changes` is the backend's
/// [`Statuses::changes`](crate::backend::statuses::Statuses::changes) before the call was sent.
pub(crate) fn keep(
    switch: &Switch,
    backend: &Backend,
    (row, request): (&Row, &Bytes),
    answer: &Answer,
    changes: u64,
) {
    let request = request.slice(frames::FRAME_HEADER..);
    if answer.code() == Code::Ok
        && let Some((kind, id)) = item(row, &request)
        && let Ok(message) = backend.message(answer)
        // Do not keep a status under a short id, because lists have the complete ids.
        && let owners = switch.owners()
        && owners.find(kind, id) == Some(backend.id)
    {
        let pod = owners.containers.pod_of(id).unwrap_or_default().to_owned();
        drop(owners);
        backend.keep_status(row, id, &pod, &message, changes);
    }
}

/// Returns the [`Statuses::changes`](crate::backend::statuses::Statuses::changes) of `backend` for `call`, which is
/// sent now. If the call may change a pod or container, criswitch keeps no status that it requested earlier.
pub(super) fn begin(call: &Call, backend: &Backend) -> u64 {
    let mut statuses = backend.statuses.lock();
    if call.row.changed_item(&call.message()).is_some() {
        statuses.changed([]);
    }
    statuses.changes()
}

/// Drops the kept statuses of the pod or container that `call` may have changed, and of the items that change with it.
/// Call this when `backend` has answered: until then, the cached list shows the same older state as the statuses.
pub(super) fn drop_changed(switch: &Switch, call: &Call, backend: &Backend) {
    if let Some((kind, id)) = call.row.changed_item(&call.message()) {
        let ids = named(&switch.owners(), kind, id, backend.id);
        ids.iter()
            .for_each(|id| drop_statuses(switch, backend, kind, id));
    }
}

/// The pods or containers of `backend` that a client may mean by `id`, which may be a short id.
fn named(owners: &Owners, kind: Kind, id: &str, backend: BackendId) -> Vec<String> {
    if owners.find(kind, id).is_some() {
        return vec![id.to_owned()];
    }
    owners
        .with_prefix(kind, id)
        .into_iter()
        .filter(|(_, owner)| *owner == backend)
        .map(|(whole, _)| whole.to_owned())
        .collect()
}

/// Drops the kept statuses of a pod or container that may have changed. A changed pod also drops the statuses of its
/// containers. A changed container also drops the status of its pod, because that status may show the container.
pub(crate) fn drop_statuses(switch: &Switch, backend: &Backend, kind: Kind, id: &str) {
    let owners = switch.owners();
    let mut statuses = backend.statuses.lock();
    match kind {
        Kind::Pod => statuses.pod_changed(id),
        Kind::Container => {
            let pod = owners.containers.pod_of(id).map(|pod| (Kind::Pod, pod));
            statuses.changed([(kind, id)].into_iter().chain(pod));
        }
    }
    if backend.needs_statuses() {
        backend.saving.note_change();
    }
}
