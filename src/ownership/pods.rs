//! The known pods. `started` has the handlers that they were created with, `pod_names` the search by their names.

use super::entries::Entries;
use super::{BackendId, PodNames};

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
}
