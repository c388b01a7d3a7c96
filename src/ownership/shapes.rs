//! Reads listed pods and containers.

use std::cell::OnceCell;

use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::UID_LABEL;
use criswitch_cri::rpc::fields::container;

use super::entries::{Entries, Shape};
use super::uids::UidRanks;
use super::{BackendId, Creations, LONGEST_ID, PodNames};

/// The pod of a container.
#[derive(Debug)]
pub(super) struct InPod {
    /// The pod's id.
    pub(super) pod: String,
    /// Whether the container has a label with a pod uid that differs from its pod's uid.
    pub(super) odd_label: bool,
}

impl InPod {
    /// The facts of a container of `pod`. `label` is the pod uid in the container's label.
    pub(super) fn of(pod: &str, label: Option<&str>, pods: &Entries<PodNames>) -> InPod {
        let uid = pods.get(pod).map(|pod| pod.more.uid.as_str());
        InPod {
            pod: bounded_name(pod),
            odd_label: label.is_some() && uid.is_some() && label != uid,
        }
    }
}

/// Reads a listed `PodSandbox`. A malformed pod has no names.
pub(super) struct PodShape;

impl Shape<PodNames> for PodShape {
    fn more(&self, pod: &[u8]) -> PodNames {
        PodNames::of_listed(pod).unwrap_or_default()
    }

    fn again(&self, names: &mut PodNames, pod: &[u8]) -> bool {
        names.listed_again(pod)
    }
}

/// Reads a listed `Container`. The known pods show the owner and the uid of the container's pod.
pub(super) struct ContainerShape<'a> {
    pods: &'a Entries<PodNames>,
    creations: &'a Creations,
    /// The backend that lists the container.
    backend: BackendId,
    /// Computed only if a container has a uid label that differs from its pod's uid.
    ranks: OnceCell<UidRanks<'a>>,
}

impl<'a> ContainerShape<'a> {
    pub(super) fn new(
        pods: &'a Entries<PodNames>,
        creations: &'a Creations,
        backend: BackendId,
    ) -> ContainerShape<'a> {
        ContainerShape {
            pods,
            creations,
            backend,
            ranks: OnceCell::new(),
        }
    }

    fn ranks(&self) -> &UidRanks<'a> {
        self.ranks
            .get_or_init(|| UidRanks::of(self.pods, self.creations, self.backend))
    }
}

impl Shape<InPod> for ContainerShape<'_> {
    fn more(&self, container: &[u8]) -> InPod {
        InPod::of(pod_of(container), label_of(container), self.pods)
    }

    fn is_in_others_pod(&self, container: &[u8]) -> bool {
        let pod = self.pods.get(pod_of(container));
        pod.is_some_and(|pod| pod.backend != self.backend)
    }

    /// The container has the uid label of another backend's pod, and is in a pod of its own backend that has a
    /// different uid. Or it is in no known pod, and another backend created the only pods of that uid.
    ///
    /// The kubelet assigns containers to pods by this label, so the state of such a container would count for the other
    /// backend's pod. The kubelet makes no such container.
    ///
    /// A container with the uid of its own pod stays in lists as long as its pod, even if another backend has a pod of
    /// that uid. The container and its pod may be left from the time before the pod moved to the other backend, and the
    /// kubelet must see them to remove them. A container also stays if its backend has a pod of that uid with the same
    /// rank as the other backend's pod ([`UidRanks`]). It stays, too, if its pod is unknown and its backend may be
    /// creating a pod of that uid.
    fn is_mislabelled(&self, container: &[u8]) -> bool {
        let label = label_of(container).unwrap_or_default();
        if label.is_empty() {
            return false;
        }
        match self.pods.get(pod_of(container)) {
            Some(pod) if pod.backend != self.backend || pod.more.uid == label => false,
            Some(_) => self.ranks().is_of_another(label),
            None => self.ranks().is_only_created_elsewhere(label),
        }
    }
}

/// The pod uid in the label of a listed `Container`.
fn label_of(container: &[u8]) -> Option<&str> {
    protobuf::entry(container, &[container::LABELS], UID_LABEL)
        .ok()
        .flatten()
}

/// The id of a listed `Container`'s pod.
fn pod_of(container: &[u8]) -> &str {
    protobuf::string(container, &[container::POD_SANDBOX_ID]).unwrap_or("")
}

/// The name, or an empty string if it is longer than a valid name.
pub(super) fn bounded_name(name: &str) -> String {
    if name.len() > LONGEST_ID { "" } else { name }.to_owned()
}
