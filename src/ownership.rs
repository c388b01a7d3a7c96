//! Records which backend owns each pod and container. In memory only; does no I/O.
//!
//! The owner of an id is the backend that created the item, otherwise the first backend that listed it. The owner stays
//! the same until a complete list of the owner lacks the id, or until the item or the owner is forgotten. Meanwhile
//! criswitch drops the items of other backends with this id, and logs one warning. Afterwards the id passes at once to
//! another backend that lists it, if there is one.
//!
//! Pods may be created while a backend makes its list of pods. [`Owners::mark`] returns the moment before the list is
//! requested. After a complete list, [`Owners::forget_missing`] forgets only entries that were not learned after that
//! moment.

mod creations;
mod entries;
mod learned;
pub(crate) mod lookup;
mod names;
mod pod_names;
mod pods;
mod removals;
mod restored;
mod shapes;
mod started;
#[cfg(test)]
mod tests;
mod uids;

use std::collections::{BTreeSet, HashMap, HashSet};

use criswitch_config::BackendId;
use criswitch_cri::codec::protobuf::Editable;
use criswitch_cri::rpc::Kind;

use entries::{
    Entry, Evidence, Ids, WholeLists, claim, count, forget_missing, is_full, is_of, items, learn,
    mislabelled, of, shared, with_prefix, without_foreign_items,
};
use removals::Removed;
use shapes::{ContainerShape, InPod, PodShape};

pub use creations::{Creation, Creations};
pub use learned::{Claim, LearnedList, Owned, Unlearned};
pub use names::{PodNames, hash_of_annotations};
pub use pod_names::Named;
pub use pods::{Containers, Pods};
pub use removals::Removals;
pub(crate) use started::LONGEST_HANDLER;
pub use started::{StartedWith, Unasked};

/// The most pods, and the most containers, that are learned from one backend; a node has hundreds. Also the most items
/// of any other list of a backend.
pub const MOST: usize = 1 << 17;
/// The longest id of a pod or container, in bytes; runtimes' ids have 64.
pub const LONGEST_ID: usize = 1024;

/// The length in bytes of the ids that runtimes make. A shorter text may be only the beginning of an id: crictl sends
/// such short ids.
const WHOLE_ID: usize = 64;

/// Whether `id` may be a short id: the beginning of an id.
pub(crate) fn may_be_short(id: &str) -> bool {
    id.len() < WHOLE_ID
}

/// The backends whose items changed, so that their state on disk is outdated.
pub type Changed = BTreeSet<BackendId>;

/// A moment in the order in which entries were learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The owners of all known pods and containers.
#[derive(Debug, Default)]
pub struct Owners {
    clock: u64,
    /// Counts the changes of facts that a list may show or depend on.
    changes: u64,
    /// The latest removals: a list that was requested before a removal may still show the item.
    pub removals: Removals,
    /// The pods by id.
    pub pods: Pods,
    /// The containers by id.
    pub containers: Containers,
    whole: HashMap<(Kind, BackendId), WholeLists>,
    /// The calls that may create a pod that criswitch does not know.
    pub creations: Creations,
    uids: uids::Uids,
}

impl Owners {
    /// The number of changes so far of facts that a list may show or depend on.
    pub fn changes(&self) -> u64 {
        self.changes + self.pods.changes
    }

    /// Records that a complete list of `backend`, requested at `asked`, was equal to the previous list and changes
    /// nothing.
    pub fn listed_again(&mut self, kind: Kind, backend: BackendId, Mark(asked): Mark) {
        if let Some(whole) = self.whole.get_mut(&(kind, backend)) {
            whole.last = whole.last.max(asked);
        }
    }

    /// The current moment. Take it before requesting a complete list, and pass it to [`Owners::forget_missing`]
    /// afterwards.
    pub fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// Learns that `backend` returned this pod from a call that creates pods. The call was sent at `asked`. `backend`
    /// now owns the pod, unless the pod was removed since `asked`. If another backend created the pod, or may have had
    /// it before `asked`, that backend stays the owner.
    pub fn own_pod(&mut self, id: &str, backend: BackendId, names: PodNames, asked: Mark) -> Owned {
        let claim = claim(&self.pods.by_id, id, backend, asked, |owner| {
            self.whole.get(&(Kind::Pod, owner)).copied()
        });
        let mut changed = Changed::new();
        if claim.is_none() && !self.removals.since(asked).contains_key(id) {
            let entry = self.created(backend, names.created(self.mark()));
            let before = self.pods.by_id.insert(id.to_owned(), entry);
            changed.insert(backend);
            changed.extend(before.map(|before| before.backend));
        }
        Owned { claim, changed }
    }

    /// Like [`Owners::own_pod`], for a container of `pod`. `label` is the pod uid in the container's label. If the pod
    /// was removed since `asked`, the container counts as removed.
    pub fn own_container(
        &mut self,
        id: &str,
        backend: BackendId,
        (pod, label): (&str, Option<&str>),
        asked: Mark,
    ) -> Owned {
        let claim = claim(&self.containers.by_id, id, backend, asked, |owner| {
            self.whole.get(&(Kind::Container, owner)).copied()
        });
        let mut changed = Changed::new();
        let removed = self.removals.since(asked);
        if claim.is_none() && !removed.contains_key(id) && !removed.contains_key(pod) {
            let entry = self.created(backend, InPod::of(pod, label, &self.pods.by_id));
            let before = self.containers.by_id.insert(id.to_owned(), entry);
            changed.insert(backend);
            changed.extend(before.map(|before| before.backend));
        }
        Owned { claim, changed }
    }

    fn created<T>(&mut self, backend: BackendId, more: T) -> Entry<T> {
        self.clock += 1;
        self.changes += 1;
        Entry {
            backend,
            source: Evidence::Created,
            claimed: false,
            next: None,
            first: self.clock,
            at: self.clock,
            more,
        }
    }

    /// Forgets a pod or container that a client removed. The containers of a pod are forgotten with it. Returns the
    /// backends whose items changed.
    pub fn forget(&mut self, kind: Kind, id: &str) -> Changed {
        self.clock += 1;
        self.changes += 1;
        let at = self.clock;
        let mut removed = Vec::new();
        match kind {
            Kind::Pod => {
                let pod = self.pods.by_id.remove(id);
                let uid = pod.as_ref().map(|pod| pod.more.uid.clone());
                removed.push(Removed::by_us(id.to_owned(), at, pod.as_ref(), uid));
                let by_id = &mut self.containers.by_id;
                let containers = by_id.extract_if(|_, container| container.more.pod == id);
                removed.extend(containers.map(|(id, it)| Removed::by_us(id, at, Some(&it), None)));
            }
            Kind::Container => {
                let container = self.containers.by_id.remove(id);
                removed.push(Removed::by_us(id.to_owned(), at, container.as_ref(), None));
            }
        }
        let changed = removed
            .iter()
            .filter_map(|removed| removed.backend)
            .collect();
        removed.into_iter().for_each(|it| self.removals.add(it));
        changed
    }

    /// Learns from an encoded list reply of `backend`, requested at `asked`. The backend owns every item of the
    /// repeated field 1, unless another backend owns the item or its pod, or the item was removed since `asked`.
    ///
    /// # Errors
    /// If the list is malformed or too large; then nothing is learned from it.
    pub fn learn(
        &mut self,
        kind: Kind,
        backend: BackendId,
        list: &[u8],
        asked: Mark,
    ) -> Result<LearnedList, Unlearned> {
        self.clock += 1;
        let now = self.clock;
        let removed = self.removals.since(asked);
        let pods = &mut self.pods.by_id;
        let learned = match kind {
            Kind::Pod => learn(pods, backend, now, list, &removed, &PodShape),
            Kind::Container => learn(
                &mut self.containers.by_id,
                backend,
                now,
                list,
                &removed,
                &ContainerShape::new(pods, &self.creations, backend),
            ),
        }?;
        self.changes += u64::from(learned.changes);
        Ok(learned)
    }

    /// Returns an encoded list reply of `backend`, requested at `asked` and learned since, without repeated items and
    /// without the items of other backends. Returns `None` if there is nothing to drop.
    ///
    /// # Errors
    /// If the list is malformed or too large.
    pub fn without_foreign_items<M: Editable>(
        &self,
        kind: Kind,
        backend: BackendId,
        list: &M,
        asked: Mark,
    ) -> Result<Option<M>, Unlearned> {
        let removed = self.removals.since(asked);
        let pods = &self.pods.by_id;
        match kind {
            Kind::Pod => without_foreign_items(pods, backend, list, &removed, &PodShape),
            Kind::Container => {
                let shape = ContainerShape::new(pods, &self.creations, backend);
                without_foreign_items(&self.containers.by_id, backend, list, &removed, &shape)
            }
        }
    }

    /// Forgets the items that a complete list of `backend` lacked. If another backend lists such an item, that backend
    /// becomes its owner. The list was requested at `asked`, and must be learned already. The containers of a forgotten
    /// pod are forgotten too, except containers that were learned after `asked`. Returns the backends whose items
    /// changed.
    pub fn forget_missing(&mut self, kind: Kind, backend: BackendId, asked: Mark) -> Changed {
        self.clock += 1;
        let whole = self.whole.entry((kind, backend)).or_insert(WholeLists {
            first: self.clock,
            last: asked.0,
        });
        whole.last = whole.last.max(asked.0);
        let mut changed = Changed::new();
        let changes = &mut self.changes;
        match kind {
            Kind::Pod => {
                let noted = (&mut *changes, &mut changed);
                let gone = forget_missing(&mut self.pods.by_id, backend, asked, noted, |_| true);
                if !gone.is_empty() {
                    let pods: HashSet<&str> = gone.iter().map(|(id, _)| id.as_str()).collect();
                    let noted = (&mut *changes, &mut changed);
                    forget_missing(&mut self.containers.by_id, backend, asked, noted, |it| {
                        pods.contains(it.pod.as_str())
                    });
                }
                for (id, pod) in gone {
                    self.removals.add(Removed {
                        id,
                        at: self.clock,
                        backend: Some(pod.backend),
                        uid: Some(pod.more.uid),
                        by_us: false,
                    });
                }
            }
            Kind::Container => {
                let noted = (changes, &mut changed);
                forget_missing(&mut self.containers.by_id, backend, asked, noted, |_| true);
            }
        }
        changed
    }

    /// The owner of exactly this id; prefixes do not match.
    pub fn find(&self, kind: Kind, id: &str) -> Option<BackendId> {
        match kind {
            Kind::Pod => self.pods.by_id.get(id).map(|pod| pod.backend),
            Kind::Container => self
                .containers
                .by_id
                .get(id)
                .map(|container| container.backend),
        }
    }

    /// Whether a backend other than `backend` owns this id.
    pub fn is_of_another(&self, kind: Kind, id: &str, backend: BackendId) -> bool {
        self.find(kind, id).is_some_and(|owner| owner != backend)
    }

    /// Whether the pod is not known yet, and calls that create a pod of `uid` are under way at other backends but not
    /// at `backend`.
    pub fn is_created_elsewhere(&self, pod: &str, uid: &str, backend: BackendId) -> bool {
        let mut creating = self.creations.sent_with_uid(uid).peekable();
        !self.pods.by_id.contains_key(pod)
            && creating.peek().is_some()
            && creating.all(|creator| creator != backend)
    }

    /// Whether `id` of `backend` may also be a short id: another backend has a longer id that begins with `id`.
    pub fn is_short_for_another(&self, kind: Kind, id: &str, backend: BackendId) -> bool {
        may_be_short(id)
            && self
                .with_prefix(kind, id)
                .into_iter()
                .any(|(full, owner)| full.len() > id.len() && owner != backend)
    }

    /// The number of pods and containers that `backend` lists although they belong to another backend.
    pub fn claims(&self, backend: BackendId) -> usize {
        self.shared()
            .filter(|(_, lister)| *lister == backend)
            .count()
    }

    /// The number of containers in this list of `backend` that have the uid label of another backend's pod, and that
    /// criswitch drops.
    pub fn mislabelled(&self, backend: BackendId, list: &[u8]) -> usize {
        mislabelled(
            list,
            &ContainerShape::new(&self.pods.by_id, &self.creations, backend),
        )
    }

    /// All ids that begin with `prefix`, and their owners.
    pub fn with_prefix(&self, kind: Kind, prefix: &str) -> Vec<(&str, BackendId)> {
        match kind {
            Kind::Pod => with_prefix(&self.pods.by_id, prefix),
            Kind::Container => with_prefix(&self.containers.by_id, prefix),
        }
    }

    /// The backends that a list with this pod uid in its label selector must query, in ascending order. Empty if no pod
    /// of this uid is known. Otherwise these are the owners of the known pods, the backends that may have an unknown
    /// pod of this uid, and the owners of pods and containers whose label has a uid that differs from their pod's uid.
    pub fn with_uid(&self, uid: &str) -> Vec<BackendId> {
        let known = self.pods.by_id.values().filter(|pod| pod.more.uid == uid);
        let mut backends: Vec<_> = known.map(|pod| pod.backend).collect();
        if !backends.is_empty() {
            backends.extend(self.creations.with_uid(uid));
            let pods = self.pods.by_id.values().filter(|pod| pod.more.odd_label);
            backends.extend(pods.map(|pod| pod.backend));
            let containers = self
                .containers
                .by_id
                .values()
                .filter(|container| container.more.odd_label);
            backends.extend(containers.map(|container| container.backend));
        }
        backends.sort_unstable();
        backends.dedup();
        backends
    }

    /// Whether `backend` owns a container whose pod is not known, but may be in the backend's next list of pods.
    pub fn has_stray(&self, backend: BackendId) -> bool {
        let mut its = self.without_pod(backend);
        // A pod can pass from one backend to another later than its containers. Until then, the first backend's lists
        // have the pod.
        its.any(|(_, it)| !self.pods.by_id.contains_key(&it.more.pod) && !self.is_orphan(it))
    }

    /// The containers of `backend` whose pod is not in the last list of pods, although the containers were known when
    /// criswitch requested that list.
    pub fn orphans(&self, backend: BackendId) -> Vec<&str> {
        self.without_pod(backend)
            .filter(|(_, container)| self.is_orphan(container))
            .map(|(id, _)| id.as_str())
            .collect()
    }

    fn without_pod(&self, backend: BackendId) -> impl Iterator<Item = (&String, &Entry<InPod>)> {
        let pods = of(&self.pods.by_id, backend);
        self.containers
            .by_id
            .iter()
            .filter(move |(_, it)| is_of(it, backend))
            .filter(move |(_, it)| !pods.contains(it.more.pod.as_str()))
    }

    /// Whether the unknown pod of this container will be in no later list of pods either. This holds for a container
    /// from the saved state, because criswitch saves only lists of containers that agree with its lists of pods.
    fn is_orphan(&self, container: &Entry<InPod>) -> bool {
        let pods = self.whole.get(&(Kind::Pod, container.backend));
        container.source == Evidence::Saved || pods.is_some_and(|pods| container.first <= pods.last)
    }

    /// The ids that `backend` owns.
    pub fn of(&self, kind: Kind, backend: BackendId) -> Ids<'_> {
        match kind {
            Kind::Pod => of(&self.pods.by_id, backend),
            Kind::Container => of(&self.containers.by_id, backend),
        }
    }

    /// For each pod and container that another backend lists too: the owner, and that backend.
    pub fn shared(&self) -> impl Iterator<Item = (BackendId, BackendId)> {
        shared(&self.pods.by_id).chain(shared(&self.containers.by_id))
    }

    /// Forgets all pods and containers of `backend`. If another backend also lists an item, that backend becomes its
    /// owner. Returns the backends whose items changed.
    pub fn forget_backend(&mut self, backend: BackendId) -> Changed {
        self.changes += 1;
        let now = self.mark();
        // Treat the backend as if it had sent complete lists without items.
        let mut changed = self.forget_missing(Kind::Pod, backend, now);
        changed.append(&mut self.forget_missing(Kind::Container, backend, now));
        self.whole.retain(|(_, of), _| *of != backend);
        self.creations.forget(backend);
        changed
    }

    /// Whether `backend` is at the entry limit, so that only a complete list (which also evicts) may add more.
    pub fn is_full(&self, kind: Kind, backend: BackendId) -> bool {
        match kind {
            Kind::Pod => is_full(&self.pods.by_id, backend),
            Kind::Container => is_full(&self.containers.by_id, backend),
        }
    }

    /// The number of pods and containers that `backend` owns.
    pub fn count(&self, backend: BackendId) -> (usize, usize) {
        let pods = self.count_of(Kind::Pod, backend);
        (pods, self.count_of(Kind::Container, backend))
    }

    /// The number of pods and containers of each backend that has any. Reads each item once for all backends.
    pub fn counts(&self) -> HashMap<BackendId, (usize, usize)> {
        let mut counts = HashMap::<_, (usize, usize)>::new();
        for pod in self.pods.by_id.values() {
            counts.entry(pod.backend).or_default().0 += 1;
        }
        for container in self.containers.by_id.values() {
            counts.entry(container.backend).or_default().1 += 1;
        }
        counts
    }

    /// The number of items of this kind that `backend` owns.
    pub fn count_of(&self, kind: Kind, backend: BackendId) -> usize {
        match kind {
            Kind::Pod => count(&self.pods.by_id, backend),
            Kind::Container => count(&self.containers.by_id, backend),
        }
    }
}

/// Checks that [`Owners::learn`] can learn from this encoded list reply.
///
/// # Errors
/// If the list is malformed or too large.
pub(crate) fn check(list: &[u8]) -> Result<(), Unlearned> {
    items(list).map(drop)
}

/// The ids that backends other than `backend` own because they first listed these ids after `since`.
pub(crate) fn new_elsewhere(
    owners: &Owners,
    kind: Kind,
    backend: BackendId,
    since: Mark,
) -> Ids<'_> {
    match kind {
        Kind::Pod => entries::new_elsewhere(&owners.pods.by_id, backend, since.0),
        Kind::Container => entries::new_elsewhere(&owners.containers.by_id, backend, since.0),
    }
}

/// Ids for tests.
#[cfg(test)]
pub(crate) mod ids {
    use criswitch_config::BackendId;

    pub(crate) const A: BackendId = BackendId::new(0);
    pub(crate) const B: BackendId = BackendId::new(1);
    pub(crate) const C: BackendId = BackendId::new(2);
    pub(crate) const D: BackendId = BackendId::new(3);
}
