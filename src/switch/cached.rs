//! The cached lists of a backend, without items that the backend no longer owns.

use bytes::Bytes;

use crate::backend::Backend;
use crate::codec::protobuf;
use crate::ownership::Owners;
use crate::rpc::filter::filter;
use crate::rpc::{Kind, List};
use crate::switch::Switch;

/// The items of a cached list that `backend` still owns, as `request` filters them; `None` if the list lacks items that
/// clients may have seen.
pub(crate) fn own_items(
    switch: &Switch,
    list: List,
    backend: &Backend,
    message: &[u8],
    request: &[u8],
) -> Option<Bytes> {
    let Some(kind) = list.kind() else {
        return filter(list, message, request, |_| true).ok();
    };
    let owners = switch.owners();
    // Counting is quicker than looking up each of very many items.
    if owners.count_of(kind, backend.id) > protobuf::fields(message).count() {
        return None;
    }
    let mut missing = owners.of(kind, backend.id);
    // An item created since the list was asked for may occur twice: in the list and after it.
    let filtered = filter(list, message, request, |id| missing.remove(id));
    // The kubelet crashes on a container whose pod is in no list of pods.
    let torn = kind == Kind::Container
        && (owners.has_stray(backend.id) || has_later_pod(backend, &owners));
    (missing.is_empty() && !torn).then_some(filtered.ok()?)
}

/// Whether `backend` listed a pod of another client after its containers were listed: the pod would have no container.
fn has_later_pod(backend: &Backend, owners: &Owners) -> bool {
    let containers = backend
        .known()
        .lists
        .get(List::Containers)
        .map(|list| list.mark);
    containers.is_some_and(|listed| owners.has_pod_since(backend.id, listed))
}
