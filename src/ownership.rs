//! Records which backend owns each pod and container. In memory only; does no I/O.
//!
//! Pods may be created while a backend makes its list of pods. [`Owners::mark`] returns the moment before the list is
//! requested. After a complete list, [`Owners::settle`] forgets only entries that were not learned after that moment.

mod creations;
mod entries;
pub(crate) mod lookup;
mod names;
mod pod_names;
mod started;
#[cfg(test)]
mod tests;
mod uids;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hasher;

use tokio::time::Instant;

use crate::codec::protobuf::{self, Malformed};
use crate::rpc::fields::{container, pod_sandbox};
use crate::rpc::{Kind, UID_LABEL};
use bytes::Bytes;
use creations::Creations;
use entries::{
    Entries, Entry, Ids, Shape, Source, WholeLists, claim, claims, copies, count, disputed,
    is_full, is_of, learn, of, own, restore, settle, with_prefix,
};
use fnv::FnvHasher;

pub use creations::Creation;
pub use names::{PodNames, hash_of_annotations};
pub use pod_names::Named;
pub use started::{StartedWith, Unasked};

/// The most removed pods and containers that are remembered. A list that is under way may still show them, and later
/// calls for them may go to the backend that had them.
const REMOVALS: usize = 4096;

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

/// A backend's number: unique for the life of the process, never reused.
pub type BackendId = usize;

/// The backends whose items changed, so that their state on disk is outdated.
pub type Changed = BTreeSet<BackendId>;

/// A moment in the order in which entries were learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The owner of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One backend.
    One(BackendId),
    /// Both backends list the id, and neither created the item through criswitch. criswitch does not guess the owner.
    Disputed(BackendId, BackendId),
}

/// A backend listed or returned an id that another backend owns. The owner keeps the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The id.
    pub id: String,
    /// The backend that owns the id.
    pub owner: BackendId,
}

/// The result of learning that a backend returned an id from a call that creates a pod or container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// If another backend keeps the id: the claim.
    pub claim: Option<Claim>,
    /// The backends whose items changed.
    pub changed: Changed,
}

/// The result of learning from a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Ids in the list that another backend owns. Each id is reported only once, by the first list that has it.
    pub claims: Vec<Claim>,
    /// The list without repeated items and the items of other backends; `None` if the list has no such items.
    pub own: Option<Bytes>,
    /// The number of items that `own` lacks.
    pub dropped: usize,
    /// The number of ids in the list that had no owner before.
    pub new: usize,
    /// Whether the list changed a known fact, or has items that the backend does not own.
    pub changes: bool,
    /// The backends whose items changed.
    pub changed: Changed,
}

/// Why nothing is learned from a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlearned {
    /// The list cannot be decoded.
    #[error("its reply is malformed: {0}")]
    Malformed(Malformed),
    /// An id is longer than any valid id.
    #[error("it lists an id of more than {LONGEST_ID} bytes")]
    LongId,
    /// The list has more items than any backend can have.
    #[error("it lists more than {MOST} items")]
    TooMany,
}

impl From<Malformed> for Unlearned {
    fn from(fault: Malformed) -> Unlearned {
        Unlearned::Malformed(fault)
    }
}

/// The owners of all known pods and containers.
#[derive(Debug, Default)]
pub struct Owners {
    clock: u64,
    /// Counts the changes of facts that a list may show or depend on.
    changes: u64,
    /// The latest removals: a list that was requested before a removal may still show the item.
    removed: VecDeque<Removed>,
    pods: Entries<PodNames>,
    containers: Entries<InPod>,
    whole: HashMap<(Kind, BackendId), WholeLists>,
    creations: Creations,
    uids: uids::Uids,
}

/// The pod of a container.
#[derive(Debug)]
struct InPod {
    /// The pod's id.
    pod: String,
    /// Whether the container has a label with a pod uid that differs from its pod's uid.
    odd_label: bool,
}

impl InPod {
    /// The facts of a container of `pod`. `label` is the pod uid in the container's label.
    fn of(pod: &str, label: Option<&str>, pods: &Entries<PodNames>) -> InPod {
        let uid = pods.get(pod).map(|pod| pod.more.uid.as_str());
        InPod {
            pod: short(pod),
            odd_label: label.is_some() && uid.is_some() && label != uid,
        }
    }
}

/// A removed pod or container.
#[derive(Debug)]
struct Removed {
    id: String,
    at: u64,
    /// The owner, if known.
    backend: Option<BackendId>,
    /// The uid of a pod; `None` for a container.
    uid: Option<String>,
    /// Whether a client removed the item through criswitch. Otherwise a complete list lacked the item.
    by_us: bool,
    /// Whether another backend listed the item too.
    had_rival: bool,
}

impl Owners {
    /// The number of changes so far of facts that a list may show or depend on.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Records that a complete list of `backend`, requested at `asked`, was equal to the previous list and changes
    /// nothing.
    pub fn listed_again(&mut self, kind: Kind, backend: BackendId, Mark(asked): Mark) {
        if let Some(whole) = self.whole.get_mut(&(kind, backend)) {
            whole.last = whole.last.max(asked);
        }
    }

    /// The current moment. Take it before requesting a complete list, and pass it to [`Owners::settle`] afterwards.
    pub fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// Learns that `backend` returned this pod from a call that creates pods. The call was sent at `asked`. `backend`
    /// now owns the pod, unless the pod was removed since `asked`. If another backend created the pod, or may have had
    /// it before `asked`, that backend stays the owner.
    pub fn own_pod(&mut self, id: &str, backend: BackendId, names: PodNames, asked: Mark) -> Owned {
        let claim = claim(&self.pods, id, backend, asked, self.whole(Kind::Pod));
        let mut changed = Changed::new();
        if claim.is_none() && !removed_since(&self.removed, asked).contains_key(id) {
            let entry = self.created(backend, names.created(self.mark()));
            let before = self.pods.insert(id.to_owned(), entry);
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
        let whole = self.whole(Kind::Container);
        let claim = claim(&self.containers, id, backend, asked, whole);
        let mut changed = Changed::new();
        let removed = removed_since(&self.removed, asked);
        if claim.is_none() && !removed.contains_key(id) && !removed.contains_key(pod) {
            let more = InPod::of(pod, label, &self.pods);
            let entry = self.created(backend, more);
            let before = self.containers.insert(id.to_owned(), entry);
            changed.insert(backend);
            changed.extend(before.map(|before| before.backend));
        }
        Owned { claim, changed }
    }

    fn whole(&self, kind: Kind) -> impl Fn(BackendId) -> Option<WholeLists> {
        move |backend| self.whole.get(&(kind, backend)).copied()
    }

    fn created<T>(&mut self, backend: BackendId, more: T) -> Entry<T> {
        self.clock += 1;
        self.changes += 1;
        Entry {
            backend,
            source: Source::Created,
            claimed: false,
            rival: None,
            first: self.clock,
            at: self.clock,
            print: 0,
            more,
        }
    }

    /// Records that criswitch starts at `now`, and that its last run may have sent calls to `backend`. Such a call may
    /// still create a pod.
    pub fn begin_run(&mut self, backend: BackendId, now: Instant) {
        self.creations.begin_run(backend, now);
    }

    /// Records the start of a call that creates a pod with this uid at `backend`. The caller must pass the result to
    /// [`Owners::end_creating`] when the call ends.
    pub fn begin_creating(&mut self, backend: BackendId, uid: String) -> Creation {
        self.creations.begin(backend, uid)
    }

    /// Records that the call of `creation` is sent now. From now on the backend of the call may have the pod.
    pub fn sent_creating(&mut self, creation: Creation) {
        self.creations.sent(creation);
    }

    /// Records that the call of `creation` has ended. If the result of the call is unknown, `open_since` is the time of
    /// its end.
    pub fn end_creating(&mut self, creation: Creation, open_since: Option<Instant>) {
        self.creations.end(creation, open_since);
    }

    /// Records that a complete list of the pods of `backend`, requested at `asked`, was learned. The list shows the
    /// results of calls that ended long enough before `asked`.
    pub fn settle_creating(&mut self, backend: BackendId, asked: Instant) {
        self.creations.listed(backend, asked);
    }

    /// Forgets a pod or container that a client removed. The containers of a pod are forgotten with it. Returns the
    /// backends whose items changed.
    pub fn forget(&mut self, kind: Kind, id: &str) -> Changed {
        let mut changed = Changed::new();
        self.clock += 1;
        self.changes += 1;
        match kind {
            Kind::Pod => {
                let pod = self.pods.remove(id);
                let had_rival = pod.as_ref().is_some_and(|pod| pod.rival.is_some());
                let (owner, uid) = pod.map(|pod| (pod.backend, pod.more.uid)).unzip();
                changed.extend(owner);
                self.keep_in_mind(id.to_owned(), owner, uid, true, had_rival);
                let its = |_: &String, container: &mut Entry<InPod>| container.more.pod == id;
                let containers: Vec<_> = self.containers.extract_if(its).collect();
                for (id, container) in containers {
                    let had_rival = container.rival.is_some();
                    changed.insert(container.backend);
                    self.keep_in_mind(id, Some(container.backend), None, true, had_rival);
                }
            }
            Kind::Container => {
                let container = self.containers.remove(id);
                let had_rival = container.as_ref().is_some_and(|it| it.rival.is_some());
                let owner = container.map(|it| it.backend);
                changed.extend(owner);
                self.keep_in_mind(id.to_owned(), owner, None, true, had_rival);
            }
        }
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
    ) -> Result<Learned, Unlearned> {
        self.clock += 1;
        let now = self.clock;
        let removed = removed_since(&self.removed, asked);
        let of = (backend, self.whole.get(&(kind, backend)).copied());
        let learned = match kind {
            Kind::Pod => learn(&mut self.pods, of, now, list, &removed, &PodShape),
            Kind::Container => {
                let shape = ContainerShape(&self.pods);
                learn(&mut self.containers, of, now, list, &removed, &shape)
            }
        }?;
        self.changes += u64::from(learned.changes);
        Ok(learned)
    }

    /// Returns an encoded list reply of `backend`, requested at `asked` and learned since, without repeated items and
    /// the items of other backends. Returns `None` if the list has no such items.
    ///
    /// # Errors
    /// If the list is malformed or too large.
    pub fn own(
        &self,
        kind: Kind,
        backend: BackendId,
        list: &[u8],
        asked: Mark,
    ) -> Result<Option<Bytes>, Unlearned> {
        let removed = removed_since(&self.removed, asked);
        let (own, _) = match kind {
            Kind::Pod => own(&self.pods, backend, list, &removed, &PodShape),
            Kind::Container => {
                let shape = ContainerShape(&self.pods);
                own(&self.containers, backend, list, &removed, &shape)
            }
        }?;
        Ok(own)
    }

    /// Forgets the items that a complete list of `backend` lacked. If another backend lists such an item, that backend
    /// becomes its owner. The list was requested at `asked`, and must be learned already. The containers of a forgotten
    /// pod are forgotten too, except containers that were learned after `asked`. Returns the backends whose items
    /// changed.
    pub fn settle(&mut self, kind: Kind, backend: BackendId, asked: Mark) -> Changed {
        self.clock += 1;
        let first = WholeLists {
            first: self.clock,
            last: asked.0,
        };
        let whole = self.whole.entry((kind, backend)).or_insert(first);
        whole.last = whole.last.max(asked.0);
        let mut changed = Changed::new();
        let changes = &mut self.changes;
        match kind {
            Kind::Pod => {
                let noted = (&mut *changes, &mut changed);
                let gone = settle(&mut self.pods, backend, asked, noted, |_| true);
                if !gone.is_empty() {
                    let pods: HashSet<&str> = gone.iter().map(|(id, _)| id.as_str()).collect();
                    let of_them = |container: &InPod| pods.contains(container.pod.as_str());
                    let noted = (&mut *changes, &mut changed);
                    settle(&mut self.containers, backend, asked, noted, of_them);
                }
                for (id, pod) in gone {
                    self.keep_in_mind(id, Some(pod.backend), Some(pod.more.uid), false, false);
                }
            }
            Kind::Container => {
                let noted = (changes, &mut changed);
                settle(&mut self.containers, backend, asked, noted, |_| true);
            }
        }
        changed
    }

    fn keep_in_mind(
        &mut self,
        id: String,
        backend: Option<BackendId>,
        uid: Option<String>,
        by_us: bool,
        had_rival: bool,
    ) {
        if self.removed.len() == REMOVALS {
            self.removed.pop_front();
        }
        self.removed.push_back(Removed {
            id,
            at: self.clock,
            backend,
            uid,
            by_us,
            had_rival,
        });
    }

    /// The owner of exactly this id; prefixes do not match.
    pub fn find(&self, kind: Kind, id: &str) -> Option<Owner> {
        match kind {
            Kind::Pod => self.pods.get(id).map(Entry::owner),
            Kind::Container => self.containers.get(id).map(Entry::owner),
        }
    }

    /// Whether a backend other than `backend` owns this id.
    pub fn is_of_another(&self, kind: Kind, id: &str, backend: BackendId) -> bool {
        let owner = match kind {
            Kind::Pod => self.pods.get(id).map(|pod| pod.backend),
            Kind::Container => self.containers.get(id).map(|container| container.backend),
        };
        owner.is_some_and(|owner| owner != backend)
    }

    /// Whether the pod is not known yet, and calls that create a pod of `uid` are under way at other backends but not
    /// at `backend`.
    pub fn is_created_elsewhere(&self, pod: &str, uid: &str, backend: BackendId) -> bool {
        let mut creating = self.creations.sent_with_uid(uid).peekable();
        !self.pods.contains_key(pod)
            && creating.peek().is_some()
            && creating.all(|creator| creator != backend)
    }

    /// Whether `id` of `backend` may also be a short id: another backend has a longer id that begins with `id`.
    pub fn is_short_for_another(&self, kind: Kind, id: &str, backend: BackendId) -> bool {
        let is_longer = |full: &&str| full.len() > id.len();
        may_be_short(id)
            && self
                .with_prefix(kind, id)
                .into_iter()
                .any(|(full, owner)| is_longer(&full) && owner != Owner::One(backend))
    }

    /// The number of pods and containers that `backend` lists although they belong to another backend.
    pub fn claims(&self, backend: BackendId) -> usize {
        claims(&self.pods, backend) + claims(&self.containers, backend)
    }

    /// All ids that begin with `prefix`, and their owners.
    pub fn with_prefix(&self, kind: Kind, prefix: &str) -> Vec<(&str, Owner)> {
        match kind {
            Kind::Pod => with_prefix(&self.pods, prefix),
            Kind::Container => with_prefix(&self.containers, prefix),
        }
    }

    /// The backends that a list with this pod uid in its label selector must query, in ascending order. Empty if no pod
    /// of this uid is known. Otherwise these are the owners of the known pods, the backends that may have an unknown
    /// pod of this uid, and the owners of pods and containers whose label has a uid that differs from their pod's uid.
    pub fn with_uid(&self, uid: &str) -> Vec<BackendId> {
        let known = self.pods.values().filter(|pod| pod.more.uid == uid);
        let mut backends: Vec<_> = known.map(|pod| pod.backend).collect();
        if !backends.is_empty() {
            backends.extend(self.creations.with_uid(uid));
            backends.extend(self.with_odd_labels());
        }
        backends.sort_unstable();
        backends.dedup();
        backends
    }

    fn with_odd_labels(&self) -> impl Iterator<Item = BackendId> {
        let pods = self.pods.values().filter(|pod| pod.more.odd_label);
        let containers = self.containers.values();
        let containers = containers.filter(|container| container.more.odd_label);
        let pods = pods.map(|pod| pod.backend);
        pods.chain(containers.map(|container| container.backend))
    }

    /// The ids and uids of the pods of `backend` that were removed after `since`, or that a complete list after `since`
    /// lacked.
    pub fn pods_removed(&self, backend: BackendId, since: Mark) -> Vec<(String, String)> {
        let later = self.removed.iter().rev();
        let later = later.take_while(|removed| removed.at > since.0);
        let its = later.filter(|removed| removed.backend == Some(backend));
        let its = its.filter_map(|removed| Some((removed.id.clone(), removed.uid.clone()?)));
        its.collect()
    }

    /// The backend that had this pod or container, if a client removed it through criswitch and no other backend listed
    /// it.
    pub fn removed_from(&self, id: &str) -> Option<BackendId> {
        let mut removed = self.removed.iter().rev();
        let last = removed.find(|it| it.id == id && it.by_us && it.backend.is_some())?;
        last.backend.filter(|_| !last.had_rival)
    }

    /// The backend of the last removed pod with this uid.
    pub fn last_with_uid(&self, uid: &str) -> Option<BackendId> {
        let mut removed = self.removed.iter().rev();
        removed.find(|it| it.uid.as_deref() == Some(uid))?.backend
    }

    /// The containers of a pod.
    pub fn containers_of(&self, pod: &str) -> Vec<String> {
        let its = self
            .containers
            .iter()
            .filter(|(_, container)| container.more.pod == pod);
        its.map(|(id, _)| id.clone()).collect()
    }

    /// The pod of a container.
    pub fn pod_of(&self, container: &str) -> Option<&str> {
        let container = self.containers.get(container)?;
        Some(&container.more.pod)
    }

    /// Whether `backend` owns a container whose pod is not known to be on `backend`, but may be in its next list of pods.
    pub fn has_stray(&self, backend: BackendId) -> bool {
        let mut its = self.without_pod(backend);
        its.any(|(_, container)| !self.is_orphan(container))
    }

    /// The containers of `backend` whose pod its last list of pods lacked, although the containers were known when that
    /// list was requested.
    pub fn orphans(&self, backend: BackendId) -> Vec<&str> {
        let its = self.without_pod(backend);
        let orphans = its.filter(|(_, container)| self.is_orphan(container));
        orphans.map(|(id, _)| id.as_str()).collect()
    }

    fn without_pod(&self, backend: BackendId) -> impl Iterator<Item = (&String, &Entry<InPod>)> {
        let pods = of(&self.pods, backend);
        let its = self.containers.iter();
        let its = its.filter(move |(_, it)| is_of(it, backend));
        its.filter(move |(_, it)| !pods.contains(it.more.pod.as_str()))
    }

    /// Whether no later list of pods will have the pod of this container, which is not known. An earlier run of
    /// criswitch saved only lists of containers that agreed with its lists of pods.
    fn is_orphan(&self, container: &Entry<InPod>) -> bool {
        let pods = self.whole.get(&(Kind::Pod, container.backend));
        container.source == Source::Saved || pods.is_some_and(|pods| container.first <= pods.last)
    }

    /// Whether `backend` has a pod that it first listed after `mark` and that was not created through criswitch.
    pub fn has_pod_since(&self, backend: BackendId, Mark(mark): Mark) -> bool {
        let mut its = self.pods.values().filter(|pod| is_of(pod, backend));
        its.any(|pod| pod.source != Source::Created && pod.first > mark)
    }

    /// The ids that `backend` owns; a disputed id counts for the backend that listed it first.
    pub fn of(&self, kind: Kind, backend: BackendId) -> Ids<'_> {
        match kind {
            Kind::Pod => of(&self.pods, backend),
            Kind::Container => of(&self.containers, backend),
        }
    }

    /// Whether a pod or container that `backend` has or may have would be lost if `backend` were removed. Other backends
    /// that list the same items do not count: they may list copies to get the items.
    pub fn would_lose(&self, backend: BackendId) -> bool {
        self.count(backend) != (0, 0) || self.creations.is_at(backend)
    }

    /// How many of the pods and containers of `backend` each other backend lists too, with the same names and time of
    /// creation. If two backends are sockets of one runtime, both list the same items.
    pub fn copies(&self, backend: BackendId) -> BTreeMap<BackendId, u64> {
        let mut counts = BTreeMap::new();
        let pods = copies(&self.pods, backend);
        for lister in pods.chain(copies(&self.containers, backend)) {
            *counts.entry(lister).or_default() += 1;
        }
        counts
    }

    /// Forgets all pods and containers of `backend`. If another backend also lists an item, that backend becomes its
    /// owner. Returns the backends whose items changed.
    pub fn forget_backend(&mut self, backend: BackendId) -> Changed {
        self.changes += 1;
        let now = self.mark();
        // Treat the backend as if it had sent complete lists without items.
        let mut changed = self.settle(Kind::Pod, backend, now);
        changed.append(&mut self.settle(Kind::Container, backend, now));
        self.whole.retain(|(_, of), _| *of != backend);
        self.creations.forget(backend);
        changed
    }

    /// The disputed ids of `backend`: another backend lists them too, and their owner is unknown.
    pub fn disputed(&self, backend: BackendId) -> Vec<String> {
        let mut ids = disputed(&self.pods, backend);
        ids.extend(disputed(&self.containers, backend));
        ids
    }

    /// Marks the listed entries of `backend` as restored from the saved state, except the ids in `disputed`: the owners
    /// of these ids may be disputed again.
    pub fn restore(&mut self, backend: BackendId, disputed: &[String]) {
        self.changes += 1;
        let disputed = disputed.iter().map(String::as_str).collect();
        restore(&mut self.pods, backend, &disputed);
        restore(&mut self.containers, backend, &disputed);
    }

    /// The pods of `backend` that were created through criswitch.
    pub fn created_at(&self, backend: BackendId) -> Vec<String> {
        let mut pods: Vec<_> = self.pods.iter().collect();
        pods.retain(|(_, pod)| is_of(pod, backend) && pod.source == Source::Created);
        pods.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Restores the result of [`Owners::created_at`] from an earlier run of criswitch. The order in which the pods were
    /// created is not known any more.
    pub fn restore_created(&mut self, backend: BackendId, ids: &[String]) {
        self.changes += 1;
        for id in ids {
            if let Some(pod) = self.pods.get_mut(id).filter(|pod| is_of(pod, backend)) {
                pod.source = Source::Created;
                pod.more.created = Some(Mark(0));
            }
        }
    }

    /// Whether `backend` is at the entry limit, so that only a complete list (which also evicts) may add more.
    pub fn is_full(&self, kind: Kind, backend: BackendId) -> bool {
        match kind {
            Kind::Pod => is_full(&self.pods, backend),
            Kind::Container => is_full(&self.containers, backend),
        }
    }

    /// The number of pods and containers that `backend` owns.
    pub fn count(&self, backend: BackendId) -> (usize, usize) {
        let count = |kind| self.count_of(kind, backend);
        (count(Kind::Pod), count(Kind::Container))
    }

    /// The number of items of this kind that `backend` owns.
    pub fn count_of(&self, kind: Kind, backend: BackendId) -> usize {
        match kind {
            Kind::Pod => count(&self.pods, backend),
            Kind::Container => count(&self.containers, backend),
        }
    }
}

/// Reads a listed `PodSandbox`. A malformed pod has no names.
struct PodShape;

impl Shape<PodNames> for PodShape {
    fn more(&self, pod: &[u8]) -> PodNames {
        PodNames::of_listed(pod).unwrap_or_default()
    }

    fn again(&self, names: &mut PodNames, pod: &[u8]) -> bool {
        names.listed_again(pod)
    }

    /// A hash of `metadata` and `created_at`.
    fn print(&self, pod: &[u8]) -> u64 {
        hash_of(pod, &[pod_sandbox::METADATA, pod_sandbox::CREATED_AT])
    }

    fn is_in_others_pod(&self, _: &[u8], _: BackendId) -> bool {
        false
    }
}

/// Reads a listed `Container`. The known pods show the owner and the uid of the container's pod.
struct ContainerShape<'a>(&'a Entries<PodNames>);

impl Shape<InPod> for ContainerShape<'_> {
    fn more(&self, container: &[u8]) -> InPod {
        let label = protobuf::entry(container, &[container::LABELS], UID_LABEL);
        let label = label.ok().flatten();
        InPod::of(pod_of(container), label, self.0)
    }

    /// A hash of `pod_sandbox_id`, `metadata` and `created_at`.
    fn print(&self, container: &[u8]) -> u64 {
        hash_of(
            container,
            &[
                container::POD_SANDBOX_ID,
                container::METADATA,
                container::CREATED_AT,
            ],
        )
    }

    fn is_in_others_pod(&self, container: &[u8], backend: BackendId) -> bool {
        let pod = self.0.get(pod_of(container));
        pod.is_some_and(|pod| pod.backend != backend)
    }
}

/// The id of a listed `Container`'s pod.
fn pod_of(container: &[u8]) -> &str {
    protobuf::string(container, &[container::POD_SANDBOX_ID]).unwrap_or("")
}

/// A hash of the fields with these numbers, as encoded.
fn hash_of(message: &[u8], numbers: &[u32]) -> u64 {
    let mut hasher = FnvHasher::default();
    for field in protobuf::fields(message).flatten() {
        if numbers.contains(&field.number) {
            hasher.write(field.raw);
        }
    }
    hasher.finish()
}

/// The name, or an empty string if it is longer than a valid name.
fn short(name: &str) -> String {
    if name.len() > LONGEST_ID { "" } else { name }.to_owned()
}

/// The items that clients removed through criswitch after `asked`, and their owners.
fn removed_since(removed: &VecDeque<Removed>, asked: Mark) -> HashMap<&str, Option<BackendId>> {
    let since = removed.iter().rev();
    let since = since.take_while(|removed| removed.at > asked.0);
    let by_us = since.filter(|removed| removed.by_us);
    by_us
        .map(|removed| (removed.id.as_str(), removed.backend))
        .collect()
}
