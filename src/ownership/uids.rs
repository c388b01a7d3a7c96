//! Compares backends that have pods of one uid. The kubelet's cache of pods is keyed by uid, so an event of a backend
//! must not change the state of another backend's pod. Does no I/O.
//!
//! Several backends may have sandboxes of one pod, for example after its handler was routed to a different backend. A
//! backend that created a pod through criswitch ranks above a backend that only lists one.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use super::entries::{Entries, is_of};
use super::{BackendId, Creations, Evidence, Owners, PodNames, Pods};

/// The pods of all backends by uid. Computed again only if facts have changed, so that a flood of events is cheap.
#[derive(Debug, Default)]
pub(super) struct Uids {
    /// The value of [`Owners::changes`] for which `pods` is valid.
    changes: Option<u64>,
    seed: RandomState,
    /// For each pod: the hash of its uid, its backend, and whether it was created through criswitch. Sorted.
    pods: Vec<(u64, BackendId, bool)>,
}

/// The pods of all backends by uid, for one list of a backend.
///
/// For each uid: the ranks of the other backends and of the backend itself. `None` without a pod, otherwise whether a
/// pod was created through criswitch.
pub(super) struct UidRanks<'a>(HashMap<&'a str, [Option<bool>; 2]>);

impl<'a> UidRanks<'a> {
    /// A pod that the backend may be creating ranks like a pod that the backend lists.
    pub(super) fn of(
        pods: &'a Entries<PodNames>,
        creations: &'a Creations,
        backend: BackendId,
    ) -> UidRanks<'a> {
        let mut ranks: HashMap<&str, [Option<bool>; 2]> = creations
            .uids(backend)
            .map(|uid| (uid, [None, Some(false)]))
            .collect();
        for pod in pods.values() {
            let [others, own] = ranks.entry(&pod.more.uid).or_default();
            let rank = if is_of(pod, backend) { own } else { others };
            *rank = (*rank).max(Some(pod.source == Evidence::Created));
        }
        UidRanks(ranks)
    }

    /// Whether another backend has a pod of `uid` with a higher rank than the pods of the backend.
    pub(super) fn is_of_another(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|[others, own]| others > own)
    }

    /// Whether another backend created a pod of `uid`, and the backend has none.
    pub(super) fn is_only_created_elsewhere(&self, uid: &str) -> bool {
        self.0.get(uid) == Some(&[Some(true), None])
    }
}

impl Owners {
    /// Whether another backend has a pod of `uid` that ranks above the pods of `uid` at `backend`. This is so if
    /// `backend` has no such pod. It is also so if the other backend created its pod through criswitch and `backend`
    /// did not.
    pub fn is_uid_of_another(&mut self, uid: &str, backend: BackendId) -> bool {
        if uid.is_empty() || self.creations.may_have(backend, uid) {
            return false;
        }
        let made = self.changes();
        let Uids {
            changes,
            seed,
            pods,
        } = &mut self.uids;
        if changes.replace(made) != Some(made) {
            let all = self.pods.by_id.values();
            *pods = all
                .map(|pod| {
                    let created = pod.source == Evidence::Created;
                    (seed.hash_one(&pod.more.uid), pod.backend, created)
                })
                .collect();
            pods.sort_unstable();
        }
        let hash = seed.hash_one(uid);
        let first = pods.partition_point(|pod| pod.0 < hash);
        let pods = pods.iter().skip(first).take_while(|pod| pod.0 == hash);
        let (mut others, mut own) = (None, None);
        for (_, owner, created) in pods {
            if *owner == backend {
                own = own.max(Some(*created));
            } else {
                others = others.max(Some(*created));
            }
        }
        others > own
    }
}

impl Pods {
    /// The number of ready pods that `backend` lists with the uid of a pod that another backend created through
    /// criswitch.
    pub fn doubles(&self, backend: BackendId) -> usize {
        let (its, others): (Vec<_>, Vec<_>) =
            self.by_id.values().partition(|pod| is_of(pod, backend));
        let created = others.iter().filter(|pod| pod.source == Evidence::Created);
        let uids: HashSet<_> = created.map(|pod| pod.more.uid.as_str()).collect();
        its.into_iter()
            .filter(|pod| {
                let PodNames { ready, uid, .. } = &pod.more;
                *ready
                    && pod.source != Evidence::Created
                    && !uid.is_empty()
                    && uids.contains(uid.as_str())
            })
            .count()
    }
}
