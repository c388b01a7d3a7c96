//! Finds the pod of a request that has no pod id, by its uid or annotations. Pure.
//!
//! A pod that was created through criswitch comes before any that is only listed, and a list alone never decides
//! between backends against the routing table. No clock decides: it may be set back, and backends may lie about it.

use super::{BackendId, Entry, Mark, Owner, Owners, PodNames, Source};

/// The pods that have a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// No pod that is known has it.
    Nobody,
    /// This one.
    One {
        /// Its owner.
        backend: BackendId,
        /// Its id.
        id: String,
        /// It was created through criswitch; otherwise this backend lists it, and nothing else is known of it.
        created: bool,
    },
    /// Pods of these backends, in ascending order; which one is meant is unknown.
    Several(Vec<BackendId>),
}

type Pod<'a> = (&'a String, &'a Entry<PodNames>);

/// Which of several pods counts: the greatest one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created: Option<Mark>,
    ready: bool,
    /// The table does not have its handler at another backend.
    may_be_there: bool,
}

impl Owners {
    /// The pod of which `has_name` is true. `routes` says whether the routing table has this handler, by the backend's
    /// name for it, at this backend.
    ///
    /// Of pods that were created through criswitch the last one counts. Of pods that are only listed, a pod whose
    /// sandbox is ready comes before others, and a pod whose handler the table has at another backend comes last.
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

    /// The backends that have pods whose sandboxes are ready, in ascending order: those that have a pod with these
    /// annotations, and then all of them.
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

    /// Learns the names that a request for this pod carries. The kubelet writes a new `config.seen` at each start.
    pub fn rename(&mut self, id: &str, names: PodNames) {
        if let Some(pod) = self.pods.get_mut(id).filter(|_| !names.seen.is_empty()) {
            pod.more.seen = names.seen;
            pod.more.annotations = names.annotations;
        }
    }
}

impl PodNames {
    /// The same for a pod that was created through criswitch at this moment.
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
        // A pod that has passed to another backend was not created there.
        created: pod.more.created.filter(|_| pod.source == Source::Created),
        ready: pod.more.ready,
        // Some runtimes list no handlers: such a pod may belong to any backend.
        may_be_there: handler.is_empty() || routes(handler, pod.backend),
    }
}

/// The backends that own these pods or dispute them.
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
