//! Finds the pod of a request that has no pod id, by the pod's uid or annotations. Does no I/O.
//!
//! A pod that was created through criswitch ranks above a pod that is only listed. Times of creation are not compared:
//! clocks can be set back, and backends may report wrong times.

use super::{BackendId, Entry, Evidence, Mark, PodNames, Pods};

/// The result of a search for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// No known pod matches.
    NoPod,
    /// A pod of one backend.
    One {
        /// The pod's owner.
        backend: BackendId,
        /// The pod's id.
        id: String,
        /// Whether the pod was created through criswitch. Otherwise criswitch knows the pod only from a list.
        created: bool,
    },
    /// Pods of these backends match equally well. The backends are in ascending order. The intended pod is unknown.
    Several(Vec<BackendId>),
}

type PodEntry<'a> = (&'a String, &'a Entry<PodNames>);

/// The rank of a pod among several pods with the same name. The greatest rank wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created: Option<Mark>,
    ready: bool,
    /// Whether the routing table routes the pod's handler to the pod's backend. Also `true` if the handler is unknown.
    may_be_there: bool,
}

impl Pods {
    /// Finds the pod for which `has_name` is true. `routes` gets a backend and the backend's own name of a handler, and
    /// says whether the routing table routes to that handler.
    ///
    /// The last pod created through criswitch wins. Among pods that are only listed, a pod with a ready sandbox ranks
    /// higher. Among otherwise equal pods, a pod ranks higher if the table routes to the pod's handler at the pod's
    /// backend, or if its handler is unknown.
    pub fn find_by_name(
        &self,
        has_name: impl Fn(&PodNames) -> bool,
        routes: impl Fn(&str, BackendId) -> bool,
    ) -> Named {
        let pods = self.by_id.iter().filter(|(_, pod)| has_name(&pod.more));
        let ranked: Vec<_> = pods.map(|pod| (rank(pod.1, &routes), pod)).collect();
        let best = ranked.iter().map(|(rank, _)| *rank).max();
        let pods: Vec<PodEntry<'_>> = ranked
            .into_iter()
            .filter(|(rank, _)| Some(*rank) == best)
            .map(|(_, pod)| pod)
            .collect();
        let id = pods.iter().map(|(id, _)| (*id).clone()).min();
        match (owners(&pods).as_slice(), id) {
            ([backend], Some(id)) => Named::One {
                backend: *backend,
                id,
                created: best.is_some_and(|best| best.created.is_some()),
            },
            ([], _) | (_, None) => Named::NoPod,
            (several, _) => Named::Several(several.to_vec()),
        }
    }

    /// Two lists of backends, each in ascending order: the backends that have a ready pod with these annotations, and
    /// the backends that have any ready pod. Without `annotations` the first list is empty.
    pub fn ready(&self, annotations: Option<u64>) -> (Vec<BackendId>, Vec<BackendId>) {
        let ready = self.by_id.iter().filter(|(_, pod)| pod.more.ready);
        let same = ready
            .clone()
            .filter(|(_, pod)| annotations.is_some() && pod.more.annotations == annotations);
        (
            owners(&same.collect::<Vec<_>>()),
            owners(&ready.collect::<Vec<_>>()),
        )
    }

    /// Learns the annotations of this pod from a request, because the kubelet writes a new `config.seen` each time that
    /// it starts.
    pub fn rename(&mut self, id: &str, names: PodNames) {
        self.changes += 1;
        if let Some(pod) = self.by_id.get_mut(id).filter(|_| !names.seen.is_empty()) {
            pod.more.seen = names.seen;
            pod.more.annotations = names.annotations;
        }
    }
}

impl PodNames {
    /// These names, for a pod that was created through criswitch at `at`.
    pub(super) fn created(self, at: Mark) -> PodNames {
        PodNames {
            created: Some(at),
            ready: true,
            ..self
        }
    }
}

fn rank(pod: &Entry<PodNames>, routes: &impl Fn(&str, BackendId) -> bool) -> Rank {
    let PodNames { handler, .. } = &pod.more;
    Rank {
        // A pod that passed to another backend was not created by that backend.
        created: pod.more.created.filter(|_| pod.source == Evidence::Created),
        ready: pod.more.ready,
        // Some runtimes list pods without a handler. The handler of such a pod may be on any backend.
        may_be_there: handler.is_empty() || routes(handler, pod.backend),
    }
}

/// The backends that own these pods, in ascending order.
fn owners(pods: &[PodEntry<'_>]) -> Vec<BackendId> {
    let mut owners: Vec<_> = pods.iter().map(|(_, pod)| pod.backend).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}
