//! The pod of a call as an operator knows it: the namespace, name and uid.

use bytes::Bytes;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::fields::{
    ITEMS, LISTED_ID, RUN_HANDLER, container, pod_sandbox, pod_sandbox_config, pod_sandbox_metadata,
};
use criswitch_cri::rpc::{self, Kind, List, Row};

use crate::backend::Backend;
use crate::errors;

/// The names of a pod. Each name is cut, because a client may send names of any length.
#[derive(Debug, Default)]
pub(super) struct PodName {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The handler in a request of `RunPodSandbox`; `None` if the request names none.
    pub(super) handler: Option<String>,
}

impl PodName {
    /// The pod whose configuration is in `request`.
    pub(super) fn requested(row: &Row, request: &[u8]) -> Option<PodName> {
        let metadata = [row.pod_config()?, &[pod_sandbox_config::METADATA]].concat();
        let pod = PodName::of_metadata(&protobuf::submessage(request, &metadata).ok()?)?;
        let handler = protobuf::string(request, RUN_HANDLER)
            .ok()
            .filter(|it| row.name == rpc::RUN_POD_SANDBOX.name && !it.is_empty());
        Some(PodName {
            handler: handler.map(|handler| errors::shown(handler).to_owned()),
            ..pod
        })
    }

    /// The pod with this id, or the pod of the container with this id, from the cached lists of the backend.
    pub(super) fn listed(backend: &Backend, kind: Kind, id: &str) -> Option<PodName> {
        // The search is outside of the lock, because a list may be long.
        let item = |list, id: &str| {
            let parts = backend.record.learn(|known| known.lists.parts(list));
            parts.into_iter().find_map(|part| item_of(&part.into(), id))
        };
        let pod = match kind {
            Kind::Pod => item(List::Pods, id)?,
            Kind::Container => {
                let container = item(List::Containers, id)?;
                item(
                    List::Pods,
                    protobuf::string(&container, &[container::POD_SANDBOX_ID]).ok()?,
                )?
            }
        };
        PodName::of_metadata(&protobuf::submessage(&pod, &[pod_sandbox::METADATA]).ok()?)
    }

    /// The names in the metadata of a pod. `None` if the metadata has no name: crictl may omit the configuration of the
    /// pod.
    fn of_metadata(metadata: &[u8]) -> Option<PodName> {
        let [name, uid, namespace] = [
            &[pod_sandbox_metadata::NAME],
            &[pod_sandbox_metadata::UID],
            &[pod_sandbox_metadata::NAMESPACE],
        ]
        .map(|path| errors::shown(protobuf::string(metadata, path).unwrap_or_default()).to_owned());
        let pod = PodName {
            namespace,
            name,
            uid,
            handler: None,
        };
        (!pod.name.is_empty()).then_some(pod)
    }
}

/// The item with this id in a list.
fn item_of(list: &Bytes, id: &str) -> Option<Bytes> {
    let mut items = protobuf::all_bytes(list, &[ITEMS]).ok()?.into_iter();
    let item = items.find(|item| protobuf::string(item, LISTED_ID) == Ok(id))?;
    Some(list.slice_ref(item))
}
