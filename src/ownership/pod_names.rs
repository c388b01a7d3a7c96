//! Finds the pod of a request without a pod id, by uid or annotations. Does no I/O.
//!
//! A pod created through criswitch ranks above a pod that is only listed, and a list alone never decides between
//! backends against the routing table. No clock decides: clocks can be set back, and backends may report wrong times.

use super::{BackendId, Entry, Mark, Owner, Owners, PodNames, Source};

/// The pods with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// No known pod has the name.
    Nobody,
    /// One pod.
    One {
        /// The pod's owner.
        backend: BackendId,
        /// The pod's id.
        id: String,
        /// Whether the pod was created through criswitch; otherwise only this backend lists it.
        created: bool,
    },
    /// Pods of these backends, in ascending order. The intended pod is unknown.
    Several(Vec<BackendId>),
}

type Pod<'a> = (&'a String, &'a Entry<PodNames>);

/// Ranks several pods with one name: the greatest wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created: Option<Mark>,
    ready: bool,
    /// Whether the pod's handler is unknown, or the routing table has it at the pod's backend.
    may_be_there: bool,
}

impl Owners {
    /// The pod for which `has_name` is true. `routes` says whether the routing table has a handler, by the backend's
    /// name for it, at a backend.
    ///
    /// The last pod created through criswitch wins. Among pods that are only listed, a pod with a ready sandbox ranks
    /// higher, and a pod whose handler the table has at another backend ranks lowest.
    pub fn named(
        &self,
        has_name: impl Fn(&PodNames) -> bool,
        routes: impl Fn(&str, BackendId) -> bool,
    ) -> Named {
        let pods = self.pods.iter().filter(|(_, pod)| has_name(&pod.more));
        let ranked: Vec<_> = pods.map(|pod| (rank(pod.1, &routes), pod)).collect();
        let best = ranked.iter().map(|(rank, _)| *rank).max();
        let pods = ranked.into_iter().filter(|(rank, _)| Some(*rank) == best);
        let pods: Vec<Pod<'_>> = pods.map(|(_, pod)| pod).collect();
        let id = pods.iter().map(|(id, _)| (*id).clone()).min();
        match (owners(&pods).as_slice(), id) {
            ([backend], Some(id)) => Named::One {
                backend: *backend,
                id,
                created: best.is_some_and(|best| best.created.is_some()),
            },
            ([], _) | (_, None) => Named::Nobody,
            (several, _) => Named::Several(several.to_vec()),
        }
    }

    /// The backends with ready sandboxes, in ascending order: first the backends of a pod with these annotations, then
    /// all.
    pub fn ready(&self, annotations: Option<u64>) -> (Vec<BackendId>, Vec<BackendId>) {
        let ready = self.pods.iter().filter(|(_, pod)| pod.more.ready);
        let is_same = |(_, pod): &Pod<'_>| pod.more.annotations == annotations;
        let same = ready.clone().filter(is_same);
        let same = same.filter(|_| annotations.is_some());
        (
            owners(&same.collect::<Vec<_>>()),
            owners(&ready.collect::<Vec<_>>()),
        )
    }

    /// Learns the names in a request for this pod. The kubelet writes a new `config.seen` at each start.
    pub fn rename(&mut self, id: &str, names: PodNames) {
        self.changes += 1;
        if let Some(pod) = self.pods.get_mut(id).filter(|_| !names.seen.is_empty()) {
            pod.more.seen = names.seen;
            pod.more.annotations = names.annotations;
        }
    }
}

impl PodNames {
    /// The names of a pod that was created through criswitch at this moment.
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
        // A pod that passed to another backend was not created there.
        created: pod.more.created.filter(|_| pod.source == Source::Created),
        ready: pod.more.ready,
        // Some runtimes list no handlers; such a pod may belong to any backend.
        may_be_there: handler.is_empty() || routes(handler, pod.backend),
    }
}

/// The backends that own or dispute these pods.
fn owners(pods: &[Pod<'_>]) -> Vec<BackendId> {
    let owners = pods.iter().flat_map(|(_, pod)| match pod.owner() {
        Owner::One(backend) => vec![backend],
        Owner::Disputed(one, other) => vec![one, other],
    });
    let mut owners: Vec<_> = owners.collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}
