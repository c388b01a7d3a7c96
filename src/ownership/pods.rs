//! The known pods and containers. `started` has the handlers that they were created with, `pod_names` the search by
//! their names.

use std::collections::HashMap;

use super::entries::{Entries, is_of};
use super::shapes::InPod;
use super::{BackendId, Evidence, Mark, PodNames};

/// The known pods.
#[derive(Debug, Default)]
pub struct Pods {
    pub(super) by_id: Entries<PodNames>,
    /// Counts the changes of names and handlers, besides the changes that [`Owners`](super::Owners) counts.
    pub(super) changes: u64,
}

impl Pods {
    /// The names of all pods, with their backends.
    pub fn all(&self) -> impl Iterator<Item = (BackendId, &PodNames)> {
        self.by_id.values().map(|pod| (pod.backend, &pod.more))
    }

    /// The names of this pod of `backend`.
    pub fn names(&self, id: &str, backend: BackendId) -> Option<&PodNames> {
        let pod = self.by_id.get(id).filter(|pod| pod.backend == backend);
        pod.map(|pod| &pod.more)
    }

    /// Whether `backend` has a pod that it first listed after `mark` and that was not created through criswitch.
    pub fn has_pod_since(&self, backend: BackendId, Mark(mark): Mark) -> bool {
        self.by_id
            .values()
            .filter(|pod| is_of(pod, backend))
            .any(|pod| pod.source != Evidence::Created && pod.first > mark)
    }
}

/// The known containers.
#[derive(Debug, Default)]
pub struct Containers {
    pub(super) by_id: Entries<InPod>,
}

impl Containers {
    /// The containers of each pod of `backend`, by the pod's id.
    pub fn by_pod(&self, backend: BackendId) -> HashMap<String, Vec<String>> {
        let mut pods = HashMap::<_, Vec<_>>::new();
        let its = self.by_id.iter().filter(|(_, it)| is_of(it, backend));
        for (id, container) in its {
            pods.entry(container.more.pod.clone())
                .or_default()
                .push(id.clone());
        }
        pods
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &str) -> Option<&str> {
        Some(&self.by_id.get(container)?.more.pod)
    }
}
