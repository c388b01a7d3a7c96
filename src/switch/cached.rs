//! The cached lists of a backend, without what it does not own any more.

use bytes::Bytes;

use crate::backend::Backend;
use crate::codec::protobuf;
use crate::ownership::Owners;
use crate::rpc::filter::filter;
use crate::rpc::{Kind, List};
use crate::switch::Switch;

/// The items of a cached list that `backend` still owns, as `request` filters them; `None` if the list lacks what
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
    // Quicker than a look at each, where there are very many.
    if owners.count_of(kind, backend.id) > protobuf::fields(message).count() {
        return None;
    }
    let mut missing = owners.of(kind, backend.id);
    // What was created since stands a second time behind the list.
    let filtered = filter(list, message, request, |id| missing.remove(id));
    // On a container whose pod no list of pods has, the kubelet crashes.
    let torn = kind == Kind::Container
        && (owners.has_stray(backend.id) || has_later_pod(backend, &owners));
    (missing.is_empty() && !torn).then_some(filtered.ok()?)
}

/// Whether `backend` showed a pod that others created after its containers were listed: the pod would have none.
fn has_later_pod(backend: &Backend, owners: &Owners) -> bool {
    let containers = backend
        .known()
        .lists
        .get(List::Containers)
        .map(|list| list.mark);
    containers.is_some_and(|listed| owners.has_pod_since(backend.id, listed))
}
