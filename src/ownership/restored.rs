//! The facts of owners that survive a restart of criswitch, besides the lists. Does no I/O.

use super::entries::{disputed, is_of, restore};
use super::{BackendId, Evidence, Mark, Owners};

impl Owners {
    /// The disputed ids of `backend`: another backend lists them too, and their owner is unknown.
    pub fn disputed(&self, backend: BackendId) -> Vec<String> {
        let mut ids = disputed(&self.pods.by_id, backend);
        ids.extend(disputed(&self.containers, backend));
        ids
    }

    /// Marks the listed entries of `backend` as restored from the saved state, except the ids in `disputed`: the owners
    /// of these ids may be disputed again.
    pub fn restore(&mut self, backend: BackendId, disputed: &[String]) {
        self.changes += 1;
        let disputed = disputed.iter().map(String::as_str).collect();
        restore(&mut self.pods.by_id, backend, &disputed);
        restore(&mut self.containers, backend, &disputed);
    }

    /// The pods of `backend` that were created through criswitch.
    pub fn created_at(&self, backend: BackendId) -> Vec<String> {
        let mut pods: Vec<_> = self.pods.by_id.iter().collect();
        pods.retain(|(_, pod)| is_of(pod, backend) && pod.source == Evidence::Created);
        pods.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Restores the result of [`Owners::created_at`] from an earlier run of criswitch. The order in which the pods were
    /// created is not known any more.
    pub fn restore_created(&mut self, backend: BackendId, ids: &[String]) {
        self.changes += 1;
        for id in ids {
            if let Some(pod) = self
                .pods
                .by_id
                .get_mut(id)
                .filter(|pod| is_of(pod, backend))
            {
                pod.source = Evidence::Created;
                pod.more.created = Some(Mark(0));
            }
        }
    }
}
