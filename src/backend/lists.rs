//! The cached lists and stats of a backend: the last complete ones, served while the backend does not answer.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use foldhash::quality::RandomState;
use tokio::time::Instant;

use crate::codec::protobuf::{self, Edit, Malformed};
use crate::ownership::Mark;
use crate::rpc::fields::{ITEMS, LISTED_ID};
use crate::rpc::{List, StateChange};

/// The most created items, and the most changed states, that criswitch adds to one cached list. A newer list replaces
/// these additions, and the kubelet requests one every second.
const MOST_CHANGED: usize = 1024;

/// A complete list as the backend sent it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Bytes,
    /// When criswitch asked for the list.
    pub taken: Instant,
    /// The time of `taken` as a position in the order in which criswitch learned its facts.
    pub mark: Mark,
}

impl Snapshot {
    /// The age of the list.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

/// The cached lists and stats of one backend. The lists of pods, containers and images have at most `max_message` bytes
/// each; all stats together have at most `max_message` bytes.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    kept: BTreeMap<List, Kept>,
    /// The seed of the hashes of items. The seed is random, so that no backend can make two lists with one hash.
    seed: RandomState,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    last: Option<Snapshot>,
    /// The items created since the list was requested, encoded as list items.
    created: Vec<Created>,
    /// The states that changed since the list was requested, by the id of the item.
    states: BTreeMap<String, Changed>,
    /// The value of [`Owners::changes`](crate::ownership::Owners::changes) when criswitch read `last` and learned
    /// nothing new from it.
    unchanged_at: Option<u64>,
    /// The hash of the list's items. `None` for stats, and for a list that is not valid protobuf.
    print: Option<u64>,
    /// A list that was requested before this time may lack items.
    outdated: Option<Instant>,
}

/// A created item: clients know it, but the cached list may lack it.
#[derive(Clone, Debug)]
struct Created {
    item: Bytes,
    at: Instant,
}

/// The new state of an item: clients know this state, but the cached list may show an earlier one.
#[derive(Clone, Debug)]
struct Changed {
    field: u32,
    state: u64,
    at: Instant,
}

impl Kept {
    /// Values that differ if [`Lists::keep`] has changed the content of a list. The order of the items does not count.
    /// The content of stats does not count either, because `keep_stats` compares it.
    fn shape(&self) -> (bool, Option<u64>, usize, usize) {
        let (created, states) = (self.created.len(), self.states.len());
        (self.last.is_some(), self.print, created, states)
    }

    /// The last complete list, then the items created since. An item may occur twice.
    fn with_created(&self) -> Option<Bytes> {
        let last = self.last.as_ref()?;
        if self.created.is_empty() {
            return Some(last.message.clone());
        }
        let mut message = BytesMut::from(&*last.message);
        for created in &self.created {
            protobuf::put_bytes(&mut message, ITEMS, &created.item);
        }
        Some(message.freeze())
    }

    /// The list of `with_created`, with each item in its latest known state.
    fn message(&self) -> Option<Bytes> {
        let message = self.with_created()?;
        if self.states.is_empty() {
            return Some(message);
        }
        let edited = protobuf::edited(&message, &[ITEMS], &mut |item| {
            let changed = self.states.get(protobuf::string(item, LISTED_ID)?);
            Ok(changed.map_or(Edit::Same, |changed| Edit::Other(changed.item(item))))
        });
        Some(edited.ok()?.unwrap_or(message))
    }
}

impl Changed {
    /// Appends the new state to `item`: if a field occurs twice, its last value counts.
    fn item(&self, item: &[u8]) -> Bytes {
        let mut item = BytesMut::from(item);
        protobuf::put_varint(&mut item, self.field, self.state);
        item.freeze()
    }
}

impl Lists {
    /// The last complete list of this kind, without the items created and the states changed since.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        self.kept.get(&list)?.last.as_ref()
    }

    /// The last complete list of this kind, with the items created and the states changed since. An item may occur
    /// twice.
    pub(crate) fn message(&self, list: List) -> Option<Bytes> {
        self.kept.get(&list)?.message()
    }

    /// Caches a complete list. Ignores a list that was requested before the cached list. Also ignores a list that was
    /// requested before or at the time of the last [`Lists::outdate`]: within one instant the order is unknown. Returns
    /// whether the content changed.
    pub fn keep(&mut self, list: List, snapshot: Snapshot) -> bool {
        let kept = self.kept.entry(list).or_default();
        let later = kept.last.as_ref().map(|kept| kept.taken);
        if later > Some(snapshot.taken) || kept.outdated >= Some(snapshot.taken) {
            return false;
        }
        let before = kept.shape();
        kept.created.retain(|created| created.at >= snapshot.taken);
        kept.states
            .retain(|_, changed| changed.at >= snapshot.taken);
        let last = kept.last.as_ref().map(|last| &last.message);
        if !last.is_some_and(|last| is_same(last, &snapshot.message)) {
            kept.unchanged_at = None;
            // Stats need no hash: `keep_stats` compares their bytes.
            if !list.is_stats() {
                kept.print = print(&self.seed, &snapshot.message).ok();
            }
        }
        kept.last = Some(snapshot);
        before != kept.shape()
    }

    /// Whether `message` has the items of the cached list, in any order, and criswitch learned nothing new from that
    /// list when [`Owners::changes`](crate::ownership::Owners::changes) was `changes`. criswitch then need not read
    /// `message`. Caches `message` in the place of the cached list: the order of the items may be new.
    pub(crate) fn repeats(&mut self, list: List, message: &Bytes, changes: u64) -> bool {
        let Some(kept) = self.kept.get_mut(&list) else {
            return false;
        };
        let Some(last) = &mut kept.last else {
            return false;
        };
        let has_its_items = || {
            last.message.len() == message.len()
                && kept.print.is_some()
                && kept.print == print(&self.seed, message).ok()
        };
        let repeats = kept.unchanged_at == Some(changes)
            && (is_same(&last.message, message) || has_its_items());
        if repeats {
            last.message = message.clone();
        }
        repeats
    }

    /// Records that criswitch read `message` and learned nothing new from it, while
    /// [`Owners::changes`](crate::ownership::Owners::changes) was `changes`. Does nothing if the cached list differs.
    pub(crate) fn changed_nothing(&mut self, list: List, message: &Bytes, changes: u64) {
        if let Some(kept) = self.kept.get_mut(&list)
            && let Some(last) = &kept.last
            && is_same(&last.message, message)
        {
            kept.unchanged_at = Some(changes);
        }
    }

    /// Whether `message` is the cached list, and has exactly the items that the backend owns:
    /// [`Lists::changed_nothing`] was called with the same `changes`.
    pub(crate) fn is_current(&self, list: List, message: &Bytes, changes: u64) -> bool {
        self.kept.get(&list).is_some_and(|kept| {
            let last = kept.last.as_ref();
            kept.unchanged_at == Some(changes)
                && last.is_some_and(|last| is_same(&last.message, message))
        })
    }

    /// Adds a created item to the cached list, because a client knows the item. The item stays until criswitch caches a
    /// list that it requested later.
    pub(crate) fn add(&mut self, list: List, item: Bytes) {
        let created = &mut self.kept.entry(list).or_default().created;
        if created.len() == MOST_CHANGED {
            created.remove(0);
        }
        let at = Instant::now();
        created.push(Created { item, at });
    }

    /// Sets the new state of each cached item whose state changes with the pod or container `id`. The new state stays
    /// until criswitch caches a list that it requested later. Returns whether the cached content changed.
    pub(crate) fn change_state(&mut self, change: &StateChange, id: &str) -> bool {
        let Some(kept) = self.kept.get_mut(&change.list) else {
            return false;
        };
        let message = kept.message().unwrap_or_default();
        let changed = change.items(&message, id).unwrap_or_default();
        if kept.states.len() + changed.len() > MOST_CHANGED {
            self.outdate(change.list);
            return true;
        }
        for id in &changed {
            let changed = Changed {
                field: change.field,
                state: change.now,
                at: Instant::now(),
            };
            kept.states.insert((*id).to_owned(), changed);
        }
        !changed.is_empty()
    }

    /// Whether a list was dropped as outdated and no list has been cached since.
    pub(crate) fn is_outdated(&self, list: List) -> bool {
        let kept = self.kept.get(&list);
        kept.is_some_and(|kept| kept.last.is_none() && kept.outdated.is_some())
    }

    /// Caches a reply to a call for all stats, if all cached stats then take at most `limit` bytes. Otherwise drops the
    /// cached stats of this kind, because they are outdated. Returns whether the content changed.
    pub fn keep_stats(&mut self, list: List, snapshot: Snapshot, limit: usize) -> bool {
        let before = self.content(list).cloned();
        let others = self.kept.iter().filter(|(other, _)| **other != list);
        let others = others.filter(|(other, _)| other.is_stats());
        let others = others.filter_map(|(_, kept)| kept.last.as_ref());
        let taken: usize = others.map(|other| other.message.len()).sum();
        match snapshot.message.len() <= limit.saturating_sub(taken) {
            true => drop(self.keep(list, snapshot)),
            false => drop(self.kept.remove(&list)),
        }
        before.as_ref() != self.content(list)
    }

    fn content(&self, list: List) -> Option<&Bytes> {
        Some(&self.get(list)?.message)
    }

    /// Drops a list that may be outdated: an image was added or removed, a client received a list that criswitch did
    /// not read, or more states changed than criswitch remembers. Returns whether a list or a created item was cached.
    pub fn outdate(&mut self, list: List) -> bool {
        let outdated = Kept {
            outdated: Some(Instant::now()),
            ..Kept::default()
        };
        let before = self.kept.insert(list, outdated);
        before.is_some_and(|kept| kept.last.is_some() || !kept.created.is_empty())
    }
}

/// Whether the bytes are equal. Two references to the same memory need no comparison.
fn is_same(a: &Bytes, b: &Bytes) -> bool {
    std::ptr::eq(a.as_ref(), b.as_ref()) || a == b
}

/// A hash of the items that does not depend on their order, because containerd lists items in a different order each
/// time.
fn print(seed: &RandomState, message: &[u8]) -> Result<u64, Malformed> {
    protobuf::fields(message).try_fold(0_u64, |print, field| {
        Ok(print.wrapping_add(seed.hash_one(field?.raw)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::Owners;

    /// Caches `message`, after which criswitch learned nothing new while the changes were 7.
    fn learned(lists: &mut Lists, message: &'static [u8]) {
        keep(lists, message);
        lists.changed_nothing(List::Pods, &Bytes::from_static(message), 7);
    }

    fn keep(lists: &mut Lists, message: &'static [u8]) {
        let snapshot = Snapshot {
            message: Bytes::from_static(message),
            taken: Instant::now(),
            mark: Owners::default().mark(),
        };
        lists.keep(List::Pods, snapshot);
    }

    fn repeats(lists: &mut Lists, message: &'static [u8], changes: u64) -> bool {
        lists.repeats(List::Pods, &Bytes::from_static(message), changes)
    }

    const AB: &[u8] = b"\x0a\x01a\x0a\x01b";
    const BA: &[u8] = b"\x0a\x01b\x0a\x01a";
    const AC: &[u8] = b"\x0a\x01a\x0a\x01c";

    #[test]
    fn a_list_repeats_while_its_items_and_all_facts_are_the_same() {
        let mut lists = Lists::default();
        keep(&mut lists, AB);
        assert!(!repeats(&mut lists, AB, 7), "not recorded");
        learned(&mut lists, AB);
        assert!(repeats(&mut lists, AB, 7));
        assert!(!repeats(&mut lists, AB, 8), "later facts");
        assert!(!repeats(&mut lists, AC, 7), "another item");
        keep(&mut lists, AC);
        assert!(!repeats(&mut lists, AC, 7), "a new list");
        lists.changed_nothing(List::Pods, &Bytes::from_static(AB), 7);
        assert!(!repeats(&mut lists, AC, 7), "an old list");
    }

    #[test]
    fn a_list_in_another_order_repeats_and_takes_the_place_of_the_cached_list() {
        let mut lists = Lists::default();
        learned(&mut lists, AB);
        assert!(repeats(&mut lists, BA, 7));
        assert_eq!(lists.get(List::Pods).unwrap().message, BA);
        keep(&mut lists, BA);
        assert!(repeats(&mut lists, AB, 7), "the items are still the same");
    }

    #[test]
    fn a_cached_list_is_current_until_an_item_or_a_fact_changes() {
        let is_current = |lists: &Lists, changes| {
            let message = lists.message(List::Pods).unwrap();
            lists.is_current(List::Pods, &message, changes)
        };
        let mut lists = Lists::default();
        keep(&mut lists, AB);
        assert!(!is_current(&lists, 7), "not recorded");
        learned(&mut lists, AB);
        assert!(is_current(&lists, 7));
        assert!(!is_current(&lists, 8), "later facts");
        lists.add(List::Pods, Bytes::from_static(b"c"));
        assert!(!is_current(&lists, 7), "a created item");
    }

    #[test]
    fn a_list_whose_bytes_are_no_longer_protobuf_does_not_repeat() {
        let mut lists = Lists::default();
        learned(&mut lists, b"\x0a\x01a\x12\x01b");
        for broken in [b"\x0a\x01a\x12\x02b", b"\x12\x01b\x0a\x02a"] {
            assert!(!repeats(&mut lists, broken, 7));
        }
    }
}
