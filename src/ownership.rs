//! Which backend owns a pod or container: learned, forgotten, looked up. In memory only; does no I/O.
//!
//! A whole list shows one moment, and pods may have come since: [`Owners::mark`] names that moment, and
//! [`Owners::settle`] forgets only what was not learned after it.

mod creations;
mod entries;
pub(crate) mod lookup;
mod names;
mod pod_names;
mod started;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hasher;

use tokio::time::Instant;

use crate::codec::protobuf::{self, Malformed};
use crate::rpc::fields::{container, pod_sandbox};
use crate::rpc::{Kind, UID_LABEL};
use bytes::Bytes;
use creations::Creations;
use entries::{
    Entries, Entry, Shape, Source, WholeLists, claim, claims, count, disputed, is_full, is_of,
    learn, of, restore, settle, with_prefix, would_lose,
};
use fnv::FnvHasher;

pub use creations::Creation;
pub use names::{PodNames, hash_of_annotations};
pub use pod_names::Named;
pub use started::{StartedWith, Unasked};

/// How many removals are remembered; only those matter that happen while a list is under way.
const REMOVALS: usize = 4096;

/// The most pods, and the most containers, that are learned of one backend; a node has hundreds.
pub const MOST: usize = 1 << 17;
/// The longest id of one, in bytes; runtimes' have 64.
pub const LONGEST_ID: usize = 1024;

/// Runtimes' ids have this many bytes. Only a shorter text may be the short form of an id, as crictl shows and sends it.
const WHOLE_ID: usize = 64;

/// A backend's number, never another one's.
pub type BackendId = usize;

/// A moment in the order of what was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// Who owns an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This backend.
    One(BackendId),
    /// Both backends list an id that nobody created through the switch: neither is guessed.
    Disputed(BackendId, BackendId),
}

/// An id that a backend lists or gives us and that another one gave us before, who keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The id.
    pub id: String,
    /// Who keeps it.
    pub owner: BackendId,
}

/// What a list has taught.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Ids in it that another backend owns; each is reported once.
    pub claims: Vec<Claim>,
    /// The list without the items of other backends and without repeated ones; `None` if it has no such items.
    pub own: Option<Bytes>,
    /// How many items those are.
    pub dropped: usize,
    /// How many ids in it nobody was known to own.
    pub new: usize,
}

/// A list that nothing is learned from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlearned {
    /// It is not a list.
    #[error("its reply is malformed: {0}")]
    Malformed(Malformed),
    /// It has an id that none can have.
    #[error("it lists an id of more than {LONGEST_ID} bytes")]
    LongId,
    /// It has more than any backend can.
    #[error("it lists more than {MOST} pods or containers")]
    TooMany,
}

impl From<Malformed> for Unlearned {
    fn from(fault: Malformed) -> Unlearned {
        Unlearned::Malformed(fault)
    }
}

/// The owners of all pods and containers that are known.
#[derive(Debug, Default)]
pub struct Owners {
    clock: u64,
    /// What was removed or vanished last: a list that was asked for before shows it still.
    removed: VecDeque<Removed>,
    pods: Entries<PodNames>,
    containers: Entries<InPod>,
    whole: HashMap<(Kind, BackendId), WholeLists>,
    creations: Creations,
}

/// Which pod a container is in.
#[derive(Debug)]
struct InPod {
    /// Its id.
    pod: String,
    /// The container's label names another pod uid than the pod has.
    odd_label: bool,
}

impl InPod {
    /// A container of `pod` with this uid as its label.
    fn of(pod: &str, label: Option<&str>, pods: &Entries<PodNames>) -> InPod {
        let uid = pods.get(pod).map(|pod| pod.more.uid.as_str());
        InPod {
            pod: short(pod),
            odd_label: label.is_some() && uid.is_some() && label != uid,
        }
    }
}

/// Something that was removed.
#[derive(Debug)]
struct Removed {
    id: String,
    at: u64,
    /// Its owner, if that was known.
    backend: Option<BackendId>,
    /// Of a pod: its uid.
    uid: Option<String>,
    /// Through the switch, by id; else a whole list lacked it.
    by_us: bool,
}

impl Owners {
    /// The moment now; taken before a whole list is asked for, given to [`Owners::settle`] after it.
    pub fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// `backend` answered a call that creates, sent at `asked`, with this pod, which it owns from now on unless the pod
    /// was removed since. If another backend created the pod or listed it before `asked`, that backend keeps it, and
    /// the claim is returned.
    pub fn own_pod(
        &mut self,
        id: &str,
        backend: BackendId,
        names: PodNames,
        asked: Mark,
    ) -> Option<Claim> {
        let claim = claim(&self.pods, id, backend, asked, self.whole(Kind::Pod));
        if claim.is_none() && !removed_since(&self.removed, asked).contains_key(id) {
            let entry = self.created(backend, names.created(self.mark()));
            self.pods.insert(id.to_owned(), entry);
        }
        claim
    }

    /// The same for this container of `pod`, whose label has the uid `label`. If the pod was removed since `asked`, so was
    /// the container.
    pub fn own_container(
        &mut self,
        id: &str,
        backend: BackendId,
        (pod, label): (&str, Option<&str>),
        asked: Mark,
    ) -> Option<Claim> {
        let whole = self.whole(Kind::Container);
        let claim = claim(&self.containers, id, backend, asked, whole);
        let removed = removed_since(&self.removed, asked);
        if claim.is_none() && !removed.contains_key(id) && !removed.contains_key(pod) {
            let more = InPod::of(pod, label, &self.pods);
            let entry = self.created(backend, more);
            self.containers.insert(id.to_owned(), entry);
        }
        claim
    }

    fn whole(&self, kind: Kind) -> impl Fn(BackendId) -> Option<WholeLists> {
        move |backend| self.whole.get(&(kind, backend)).copied()
    }

    fn created<T>(&mut self, backend: BackendId, more: T) -> Entry<T> {
        self.clock += 1;
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

    /// A call that is to make a pod of `uid` at `backend` begins: to be ended by [`Owners::end_creating`].
    pub fn begin_creating(&mut self, backend: BackendId, uid: String) -> Creation {
        self.creations.begin(backend, uid)
    }

    /// It is sent now.
    pub fn sent_creating(&mut self, creation: Creation) {
        self.creations.sent(creation);
    }

    /// It has ended: at the time `unheard`, if that left it open what it made.
    pub fn end_creating(&mut self, creation: Creation, unheard: Option<Instant>) {
        self.creations.end(creation, unheard);
    }

    /// A whole list of the pods of `backend`, asked for then, has been learned: it tells what calls made whose end
    /// nobody heard, if they ended long enough before.
    pub fn settle_creating(&mut self, backend: BackendId, asked: Instant) {
        self.creations.listed(backend, asked);
    }

    /// The pod or container was removed; a pod takes its containers with it.
    pub fn forget(&mut self, kind: Kind, id: &str) {
        self.clock += 1;
        match kind {
            Kind::Pod => {
                let (owner, uid) = self
                    .pods
                    .remove(id)
                    .map(|pod| (pod.backend, pod.more.uid))
                    .unzip();
                self.keep_in_mind(id.to_owned(), owner, uid, true);
                let its = |_: &String, container: &mut Entry<InPod>| container.more.pod == id;
                let containers: Vec<_> = self.containers.extract_if(its).collect();
                for (id, container) in containers {
                    self.keep_in_mind(id, Some(container.backend), None, true);
                }
            }
            Kind::Container => {
                let owner = self.containers.remove(id).map(|it| it.backend);
                self.keep_in_mind(id.to_owned(), owner, None, true);
            }
        }
    }

    /// Learns from an encoded list reply of `backend`, asked for at `asked`. The backend owns every item of the repeated
    /// field 1 that no other backend owns, that is in no pod of another backend, and that was not removed since.
    ///
    /// # Errors
    /// [`Unlearned`]; of such a list nothing is learned.
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
        match kind {
            Kind::Pod => learn(&mut self.pods, of, now, list, &removed, &PodShape),
            Kind::Container => {
                let shape = ContainerShape(&self.pods);
                learn(&mut self.containers, of, now, list, &removed, &shape)
            }
        }
    }

    /// A whole list of `backend`, asked for at `asked`, has been learned: what it lacked is forgotten, with a pod its
    /// containers that were not seen later.
    pub fn settle(&mut self, kind: Kind, backend: BackendId, asked: Mark) {
        self.clock += 1;
        let first = WholeLists {
            first: self.clock,
            last: asked.0,
        };
        let whole = self.whole.entry((kind, backend)).or_insert(first);
        whole.last = whole.last.max(asked.0);
        match kind {
            Kind::Pod => {
                let gone = settle(&mut self.pods, backend, asked, |_| true);
                if !gone.is_empty() {
                    let pods: HashSet<&str> = gone.iter().map(|(id, _)| id.as_str()).collect();
                    let of_them = |container: &InPod| pods.contains(container.pod.as_str());
                    settle(&mut self.containers, backend, asked, of_them);
                }
                for (id, pod) in gone {
                    self.keep_in_mind(id, Some(pod.backend), Some(pod.more.uid), false);
                }
            }
            Kind::Container => {
                settle(&mut self.containers, backend, asked, |_| true);
            }
        }
    }

    fn keep_in_mind(
        &mut self,
        id: String,
        backend: Option<BackendId>,
        uid: Option<String>,
        by_us: bool,
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
        });
    }

    /// The owner of exactly this id.
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

    /// Whether a call that creates a pod of `uid` is under way at other backends only, and the pod is not known yet.
    pub fn is_created_elsewhere(&self, pod: &str, uid: &str, backend: BackendId) -> bool {
        let mut creating = self.creations.sent_with_uid(uid).peekable();
        !self.pods.contains_key(pod)
            && creating.peek().is_some()
            && creating.all(|creator| creator != backend)
    }

    /// Whether `id` of `backend` is so short that it may be meant as the beginning of a longer id, and another backend
    /// has such an id.
    pub fn is_short_for_another(&self, kind: Kind, id: &str, backend: BackendId) -> bool {
        let is_longer = |full: &&str| full.len() > id.len();
        id.len() < WHOLE_ID
            && self
                .with_prefix(kind, id)
                .into_iter()
                .any(|(full, owner)| is_longer(&full) && owner != Owner::One(backend))
    }

    /// How many pods and containers of other backends `backend` lists.
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

    /// The backends that a list by the label of this uid must ask, in ascending order; none if no pod of this uid is
    /// known. They are the owners of its pods, the backends that may have a pod that is not known yet, and the owners of
    /// pods and containers whose label names another uid than their pod has.
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

    /// The pods of `backend` that were removed or vanished after `since`, and their uids.
    pub fn pods_removed(&self, backend: BackendId, since: Mark) -> Vec<(String, String)> {
        let later = self.removed.iter().rev();
        let later = later.take_while(|removed| removed.at > since.0);
        let its = later.filter(|removed| removed.backend == Some(backend));
        let its = its.filter_map(|removed| Some((removed.id.clone(), removed.uid.clone()?)));
        its.collect()
    }

    /// The backend of the last pod with this uid that was removed or vanished.
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

    /// Whether `backend` owns a container whose pod it does not own, as far as is known.
    pub fn has_stray(&self, backend: BackendId) -> bool {
        let pods = of(&self.pods, backend);
        let mut its = self.containers.values().filter(|it| is_of(it, backend));
        its.any(|container| !pods.contains(container.more.pod.as_str()))
    }

    /// Whether `backend` first listed a pod after `mark` that no call through criswitch created.
    pub fn has_pod_since(&self, backend: BackendId, Mark(mark): Mark) -> bool {
        let mut its = self.pods.values().filter(|pod| is_of(pod, backend));
        its.any(|pod| pod.source != Source::Created && pod.first > mark)
    }

    /// The ids that `backend` owns; a disputed id counts for the backend that listed it first.
    pub fn of(&self, kind: Kind, backend: BackendId) -> HashSet<&str> {
        match kind {
            Kind::Pod => of(&self.pods, backend),
            Kind::Container => of(&self.containers, backend),
        }
    }

    /// Whether something that `backend` has or may have would be nobody's without it, if of the others those remain of
    /// which `remains` is true.
    pub fn would_lose(&self, backend: BackendId, remains: &impl Fn(BackendId) -> bool) -> bool {
        would_lose(&self.pods, backend, remains)
            || would_lose(&self.containers, backend, remains)
            || self.creations.is_at(backend)
    }

    /// `backend` is gone: what another lists too is that one's.
    pub fn forget_backend(&mut self, backend: BackendId) {
        let now = self.mark();
        // Its last word on everything is that it has nothing.
        self.settle(Kind::Pod, backend, now);
        self.settle(Kind::Container, backend, now);
        self.whole.retain(|(_, of), _| *of != backend);
    }

    /// The ids of `backend` that another backend lists too, and nobody knows whose they are.
    pub fn disputed(&self, backend: BackendId) -> Vec<String> {
        let mut ids = disputed(&self.pods, backend);
        ids.extend(disputed(&self.containers, backend));
        ids
    }

    /// What was learned of `backend` is what the last run knew, with these ids in dispute.
    pub fn restore(&mut self, backend: BackendId, disputed: &[String]) {
        let disputed = disputed.iter().map(String::as_str).collect();
        restore(&mut self.pods, backend, &disputed);
        restore(&mut self.containers, backend, &disputed);
    }

    /// Whether no more of `backend` may be learned but by a whole list, after which what it lacks is forgotten.
    pub fn is_full(&self, kind: Kind, backend: BackendId) -> bool {
        match kind {
            Kind::Pod => is_full(&self.pods, backend),
            Kind::Container => is_full(&self.containers, backend),
        }
    }

    /// How many pods and containers `backend` owns.
    pub fn count(&self, backend: BackendId) -> (usize, usize) {
        let count = |kind| self.count_of(kind, backend);
        (count(Kind::Pod), count(Kind::Container))
    }

    /// How many of this kind it owns.
    pub fn count_of(&self, kind: Kind, backend: BackendId) -> usize {
        match kind {
            Kind::Pod => count(&self.pods, backend),
            Kind::Container => count(&self.containers, backend),
        }
    }
}

/// How a listed `PodSandbox` is read. What cannot be read has no names.
struct PodShape;

impl Shape<PodNames> for PodShape {
    fn more(&self, pod: &[u8]) -> PodNames {
        PodNames::of_listed(pod).unwrap_or_default()
    }

    fn again(&self, names: &mut PodNames, pod: &[u8]) {
        names.listed_again(pod);
    }

    /// `metadata` and `created_at`.
    fn print(&self, pod: &[u8]) -> u64 {
        hash_of(pod, &[pod_sandbox::METADATA, pod_sandbox::CREATED_AT])
    }

    fn is_in_others_pod(&self, _: &[u8], _: BackendId) -> bool {
        false
    }
}

/// How a listed `Container` is read, with the pods that are known.
struct ContainerShape<'a>(&'a Entries<PodNames>);

impl Shape<InPod> for ContainerShape<'_> {
    fn more(&self, container: &[u8]) -> InPod {
        let label = protobuf::entry(container, &[container::LABELS], UID_LABEL);
        let label = label.ok().flatten();
        InPod::of(pod_of(container), label, self.0)
    }

    /// `pod_sandbox_id`, `metadata` and `created_at`.
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

/// The id of the pod that a listed `Container` is in.
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

/// A name that is remembered; none if it is longer than any that matters.
fn short(name: &str) -> String {
    if name.len() > LONGEST_ID { "" } else { name }.to_owned()
}

/// What was removed through the switch after `asked`, and who owned it.
fn removed_since(removed: &VecDeque<Removed>, asked: Mark) -> HashMap<&str, Option<BackendId>> {
    let since = removed.iter().rev();
    let since = since.take_while(|removed| removed.at > asked.0);
    let by_us = since.filter(|removed| removed.by_us);
    by_us
        .map(|removed| (removed.id.as_str(), removed.backend))
        .collect()
}
