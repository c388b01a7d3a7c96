//! Filters the cached lists of a backend: removes items that the backend no longer owns.

use std::collections::HashSet;

use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID};
use criswitch_cri::rpc::filter::filter;
use criswitch_cri::rpc::{Kind, List};
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::gate::Readable;
use crate::ownership::Owners;

/// Returns the items of the cached list `message` that `backend` still owns and that match the filter of `request`.
/// Returns `None` if the list is malformed, or lacks items that clients may have seen.
pub(crate) fn own_items(
    owners: &Owners,
    list: List,
    backend: &Backend,
    message: &Readable,
    request: &[u8],
) -> Option<Readable> {
    let Some(kind) = list.kind() else {
        return filter(list, message, request, |_| true).ok();
    };
    // Lists of pods and containers must agree: the kubelet crashes on a container whose pod is in no list of pods.
    if kind == Kind::Container && (owners.has_stray(backend.id) || has_later_pod(backend, owners)) {
        return None;
    }
    let lists = backend.record.known().lists;
    if request.is_empty() && lists.is_current(list, message, owners.changes()) {
        return Some(message.clone());
    }
    // The counts are compared first, because that is quicker than a look-up of every item.
    if owners.count_of(kind, backend.id) > protobuf::fields(message).count() {
        return None;
    }
    let mut missing = owners.of(kind, backend.id);
    // An item that was created after the list was requested may occur twice, so only its first occurrence is returned.
    let items = filter(list, message, request, |id| missing.remove(id)).ok()?;
    if !missing.is_empty() {
        return None;
    }
    Some(
        owners
            .without_foreign_items(kind, backend.id, &items, owners.mark())
            .ok()?
            .unwrap_or(items),
    )
}

/// Whether the cached list `message` has all items of `backend`, so that [`own_items`] returns them. Other threads look
/// at this too, so the owners are not locked while the list is read.
pub(crate) fn is_whole(
    owners: &Mutex<Owners>,
    list: List,
    backend: &Backend,
    message: &Readable,
) -> bool {
    let Some(kind) = list.kind() else {
        return true;
    };
    let ids: Vec<String> = {
        let owners = owners.lock();
        if kind == Kind::Container
            && (owners.has_stray(backend.id) || has_later_pod(backend, &owners))
        {
            return false;
        }
        let lists = backend.record.known().lists;
        if lists.is_current(list, message, owners.changes()) {
            return true;
        }
        let ids = owners.of(kind, backend.id);
        ids.into_iter().map(str::to_owned).collect()
    };
    let mut missing: HashSet<&str> = ids.iter().map(String::as_str).collect();
    let items = protobuf::fields(message).flatten();
    for item in items.filter(|field| field.number == ITEMS) {
        let id = item.bytes().and_then(|it| protobuf::string(it, LISTED_ID));
        missing.remove(id.unwrap_or_default());
    }
    missing.is_empty()
}

/// Whether `backend` has listed a pod after its last list of containers, and the pod was not created through criswitch.
/// The cached list of containers then lacks the pod's containers.
fn has_later_pod(backend: &Backend, owners: &Owners) -> bool {
    backend
        .record
        .known()
        .lists
        .get(List::Containers)
        .map(|list| list.mark)
        .is_some_and(|listed| owners.pods.has_pod_since(backend.id, listed))
}
