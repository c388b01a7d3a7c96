//! The facts of owners that survive a restart of criswitch, besides the lists. Does no I/O.

use super::entries::{is_of, restore};
use super::{BackendId, Evidence, Mark, Owners, Pods};

impl Owners {
    /// Marks the listed entries of `backend` as restored from the saved state.
    pub fn restore(&mut self, backend: BackendId) {
        self.changes += 1;
        restore(&mut self.pods.by_id, backend);
        restore(&mut self.containers.by_id, backend);
    }
}

impl Pods {
    /// The pods of `backend` that were created through criswitch.
    pub fn created_at(&self, backend: BackendId) -> Vec<String> {
        let mut pods: Vec<_> = self.by_id.iter().collect();
        pods.retain(|(_, pod)| is_of(pod, backend) && pod.source == Evidence::Created);
        pods.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Restores the result of [`Pods::created_at`] from an earlier run of criswitch. The order in which the pods were
    /// created is not known any more.
    pub fn restore_created(&mut self, backend: BackendId, ids: &[String]) {
        self.changes += 1;
        for id in ids {
            if let Some(pod) = self.by_id.get_mut(id).filter(|pod| is_of(pod, backend)) {
                pod.source = Evidence::Created;
                pod.more.created = Some(Mark(0));
            }
        }
    }
}
