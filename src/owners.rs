//! Which backend owns a pod or container: learned, forgotten, looked up. In memory only; does no I/O.
//!
//! A whole list shows one moment, and pods may have come since: [`Owners::mark`] names that moment, and
//! [`Owners::settle`] forgets only what was not learned after it.

mod creations;
mod entries;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};

use tokio::time::Instant;

use crate::rpc::Kind;
use crate::wire::{self, Malformed};
use creations::Creations;
use entries::{
    Entries, Entry, claim, count, is_full, is_of, learn, of, settle, with_prefix, would_lose,
};

pub use creations::Creation;
pub use names::PodNames;

/// How many removals are remembered; only those matter that happen while a list is under way.
const REMOVALS: usize = 4096;

/// The most pods, and the most containers, that are learned of one backend; a node has hundreds.
pub const MOST: usize = 1 << 17;
/// The longest id of one, in bytes; runtimes' have 64.
pub const LONGEST_ID: usize = 1024;

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
    containers: Entries<String>,
    creations: Creations,
}

/// Something that was removed.
#[derive(Debug)]
struct Removed {
    id: String,
    at: u64,
    /// Of a pod: its owner and its uid.
    pod: Option<(BackendId, String)>,
    /// Through the switch, by id; else a whole list lacked it.
    by_us: bool,
}

impl Owners {
    /// The moment now; taken before a whole list is asked for, given to [`Owners::settle`] after it.
    pub fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// `backend` answered a call that creates, sent at `asked`, with this pod: its own, unless it was removed since. The
    /// claim, if it is another's by creation: it stays with that one.
    pub fn own_pod(
        &mut self,
        id: &str,
        backend: BackendId,
        names: PodNames,
        asked: Mark,
    ) -> Option<Claim> {
        let claim = claim(&self.pods, id, backend);
        if claim.is_none() && !removed_since(&self.removed, asked).contains(id) {
            let entry = self.created(backend, names);
            self.pods.insert(id.to_owned(), entry);
        }
        claim
    }

    /// The same with this container of `pod`, which may have been removed with that.
    pub fn own_container(
        &mut self,
        id: &str,
        backend: BackendId,
        pod: &str,
        asked: Mark,
    ) -> Option<Claim> {
        let claim = claim(&self.containers, id, backend);
        let removed = removed_since(&self.removed, asked);
        if claim.is_none() && !removed.contains(id) && !removed.contains(pod) {
            let entry = self.created(backend, pod.to_owned());
            self.containers.insert(id.to_owned(), entry);
        }
        claim
    }

    fn created<T>(&mut self, backend: BackendId, more: T) -> Entry<T> {
        self.clock += 1;
        Entry {
            backend,
            created: true,
            claimed: false,
            rival: None,
            at: self.clock,
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
                let pod = self.pods.remove(id).map(|pod| (pod.backend, pod.more.uid));
                self.keep_in_mind(id.to_owned(), pod, true);
                let its = |_: &String, container: &mut Entry<String>| container.more == id;
                let containers: Vec<_> = self.containers.extract_if(its).collect();
                for (id, _) in containers {
                    self.keep_in_mind(id, None, true);
                }
            }
            Kind::Container => {
                self.containers.remove(id);
                self.keep_in_mind(id.to_owned(), None, true);
            }
        }
    }

    /// Learns from an encoded list reply of `backend`, asked for at `asked`: every item of the repeated field 1 is its
    /// own, unless it was removed since or is another's by creation. Each of these claims is told once.
    ///
    /// # Errors
    /// [`Unlearned`]; of such a list nothing is learned.
    pub fn learn(
        &mut self,
        kind: Kind,
        backend: BackendId,
        list: &[u8],
        asked: Mark,
    ) -> Result<Vec<Claim>, Unlearned> {
        self.clock += 1;
        let now = self.clock;
        let removed = removed_since(&self.removed, asked);
        match kind {
            Kind::Pod => {
                // What cannot be read names no pod.
                let names = |pod: &[u8]| PodNames::of_listed(pod).unwrap_or_default();
                learn(&mut self.pods, backend, now, list, &removed, names)
            }
            Kind::Container => {
                let pod = |container: &[u8]| short(wire::string(container, &[2]).unwrap_or(""));
                learn(&mut self.containers, backend, now, list, &removed, pod)
            }
        }
    }

    /// A whole list of `backend`, asked for at `asked`, has been learned: what it lacked is forgotten, with a pod its
    /// containers that were not seen later.
    pub fn settle(&mut self, kind: Kind, backend: BackendId, asked: Mark) {
        self.clock += 1;
        match kind {
            Kind::Pod => {
                let gone = settle(&mut self.pods, backend, asked, |_| true);
                if !gone.is_empty() {
                    let pods: HashSet<&str> = gone.iter().map(|(id, _)| id.as_str()).collect();
                    let of_them = |pod: &String| pods.contains(pod.as_str());
                    settle(&mut self.containers, backend, asked, of_them);
                }
                for (id, pod) in gone {
                    self.keep_in_mind(id, Some((pod.backend, pod.more.uid)), false);
                }
            }
            Kind::Container => {
                settle(&mut self.containers, backend, asked, |_| true);
            }
        }
    }

    fn keep_in_mind(&mut self, id: String, pod: Option<(BackendId, String)>, by_us: bool) {
        if self.removed.len() == REMOVALS {
            self.removed.pop_front();
        }
        self.removed.push_back(Removed {
            id,
            at: self.clock,
            pod,
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

    /// All ids that begin with `prefix`, and their owners.
    pub fn with_prefix(&self, kind: Kind, prefix: &str) -> Vec<(&str, Owner)> {
        match kind {
            Kind::Pod => with_prefix(&self.pods, prefix),
            Kind::Container => with_prefix(&self.containers, prefix),
        }
    }

    /// The backends that own pods of this uid, in no order, and then also those that may have one that nobody knows of; a
    /// pod that was made anew may have left one behind on another backend.
    pub fn with_uid(&self, uid: &str) -> Vec<BackendId> {
        let known = self.pods.values().filter(|pod| pod.more.uid == uid);
        let mut backends: Vec<_> = known.map(|pod| pod.backend).collect();
        if !backends.is_empty() {
            backends.extend(self.creations.with_uid(uid));
        }
        backends.sort_unstable();
        backends.dedup();
        backends
    }

    /// The backend of the newest pod of which `names` is true.
    pub fn newest_pod(&self, names: impl Fn(&PodNames) -> bool) -> Option<BackendId> {
        let newest = self
            .pods
            .values()
            .filter(|pod| names(&pod.more))
            .max_by_key(|pod| pod.more.created_at)?;
        Some(newest.backend)
    }

    /// The pods of `backend` that were removed or vanished after `since`, and their uids.
    pub fn pods_removed(&self, backend: BackendId, since: Mark) -> Vec<(String, String)> {
        let later = self.removed.iter().rev();
        let later = later.take_while(|removed| removed.at > since.0);
        let its = later.filter_map(|removed| match &removed.pod {
            Some((owner, uid)) if *owner == backend => Some((removed.id.clone(), uid.clone())),
            _ => None,
        });
        its.collect()
    }

    /// The containers of a pod.
    pub fn containers_of(&self, pod: &str) -> Vec<String> {
        let its = self
            .containers
            .iter()
            .filter(|(_, container)| container.more == pod);
        its.map(|(id, _)| id.clone()).collect()
    }

    /// Whether `backend` owns a container whose pod it does not own, as far as is known.
    pub fn has_stray(&self, backend: BackendId) -> bool {
        let pods = of(&self.pods, backend);
        let mut its = self.containers.values().filter(|it| is_of(it, backend));
        its.any(|container| !pods.contains(container.more.as_str()))
    }

    /// The ids that `backend` owns, alone or in dispute.
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
        (count(&self.pods, backend), count(&self.containers, backend))
    }
}

/// A name that is remembered; none if it is longer than any that matters.
fn short(name: &str) -> String {
    if name.len() > LONGEST_ID { "" } else { name }.to_owned()
}

/// What was removed through the switch after `asked`.
fn removed_since(removed: &VecDeque<Removed>, asked: Mark) -> HashSet<&str> {
    let since = removed.iter().rev();
    let since = since.take_while(|removed| removed.at > asked.0);
    let by_us = since.filter(|removed| removed.by_us);
    by_us.map(|removed| removed.id.as_str()).collect()
}
