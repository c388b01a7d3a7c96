//! The cached lists and stats of a backend: the last complete ones, served while the backend does not answer. Only a
//! list of images may lack a later item.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Edit, Edited};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID};
use criswitch_cri::rpc::{List, StateChange};
use tokio::time::Instant;

use crate::gate::Readable;
use crate::ownership::Mark;

/// The most created items, and the most changed states, that criswitch adds to one cached list. A newer list replaces
/// these additions, and the kubelet requests one every second. The removal of an item drops its additions.
const MOST_CHANGED: usize = 1024;

/// A complete list as the backend sent it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Readable,
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
/// each, with the items created since; all stats together have at most `max_message` bytes.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    kept: BTreeMap<List, Kept>,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    last: Option<Snapshot>,
    /// The items created since the list was requested.
    created: Vec<Created>,
    /// The states that changed since the list was requested, by the id of the item.
    states: BTreeMap<String, NewState>,
    /// The value of [`Owners::changes`](crate::ownership::Owners::changes) when criswitch learned `last` and nothing
    /// changed. While the value is the same, criswitch would learn nothing new from `last`.
    learned_at: Option<u64>,
    /// A list that was requested before this time may lack items.
    outdated: Option<Instant>,
}

/// A created item: clients know it, but the cached list may lack it.
#[derive(Clone, Debug)]
struct Created {
    /// A list with only this item.
    item: Readable,
    at: Instant,
}

/// The new state of an item: clients know this state, but the cached list may show an earlier one.
#[derive(Clone, Debug)]
struct NewState {
    field: u32,
    state: u64,
    at: Instant,
}

impl Kept {
    /// Whether the last list, if there is one, may lack items.
    fn is_outdated(&self) -> bool {
        self.outdated.is_some() && self.outdated >= self.last.as_ref().map(|last| last.taken)
    }

    /// The last complete list, then the items created since. An item may occur twice.
    fn with_created(&self) -> Option<Readable> {
        let last = &self.last.as_ref()?.message;
        if self.created.is_empty() {
            return Some(last.clone());
        }
        Some(last.followed_by(self.created.iter().map(|created| &created.item)))
    }

    /// The list of `with_created`, with each item in its latest known state.
    fn message(&self) -> Option<Readable> {
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

impl NewState {
    /// `item` with the new state.
    fn item(&self, item: &[u8]) -> Edited {
        Edited::with_varint(item, self.field, self.state)
    }
}

impl Lists {
    /// The last list of this kind, without the items created and the states changed since. A list of images may be
    /// outdated.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        self.kept.get(&list)?.last.as_ref()
    }

    /// The list of images, unless it is outdated.
    pub(crate) fn complete_images(&self) -> Option<&Snapshot> {
        self.get(List::Images)
            .filter(|_| !self.is_outdated(List::Images))
    }

    /// The last list of this kind, with the items created and the states changed since. An item may occur twice. A list
    /// of images may be outdated.
    pub(crate) fn message(&self, list: List) -> Option<Readable> {
        self.kept.get(&list)?.message()
    }

    /// The items created since the last list, each as a list, and the last list. The states may be earlier ones.
    pub(crate) fn parts(&self, list: List) -> Vec<Readable> {
        let kept = self.kept.get(&list).into_iter();
        kept.flat_map(|kept| {
            let created = kept.created.iter().map(|created| created.item.clone());
            created.chain(kept.last.iter().map(|last| last.message.clone()))
        })
        .collect()
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
        let additions = kept.created.len() + kept.states.len();
        kept.created.retain(|created| created.at >= snapshot.taken);
        kept.states
            .retain(|_, changed| changed.at >= snapshot.taken);
        let is_same = !kept.is_outdated()
            && kept.last.as_ref().is_some_and(|last| {
                if list.is_stats() {
                    // Stats need no hash, because `keep_stats` compares their bytes.
                    last.message.is(&snapshot.message)
                } else {
                    last.message.has_items_of(&snapshot.message)
                }
            });
        if !is_same {
            kept.learned_at = None;
        }
        kept.last = Some(snapshot);
        !is_same || additions != kept.created.len() + kept.states.len()
    }

    /// `message` as a [`Readable`], if it has the items of the cached list, in any order, and if criswitch would learn
    /// nothing new from that list: [`Lists::learned`] was called with the same `changes`. criswitch then need not
    /// decode `message`.
    pub(crate) fn repeated(&self, list: List, message: &Bytes, changes: u64) -> Option<Readable> {
        self.learned_list(list, changes)?.message.repeated(message)
    }

    /// Records that criswitch has learned `message` without a change, and would learn nothing new from it as long as
    /// [`Owners::changes`](crate::ownership::Owners::changes) is `changes`. Does nothing if the cached list differs.
    pub(crate) fn learned(&mut self, list: List, message: &Bytes, changes: u64) {
        if let Some(kept) = self.kept.get_mut(&list)
            && let Some(last) = &kept.last
            && last.message.is(message)
        {
            kept.learned_at = Some(changes);
        }
    }

    /// Whether `message` is the cached list, and has exactly the items that the backend owns: [`Lists::learned`] was
    /// called with the same `changes`.
    pub(crate) fn is_current(&self, list: List, message: &Bytes, changes: u64) -> bool {
        let last = self.learned_list(list, changes);
        last.is_some_and(|last| last.message.is(message))
    }

    /// The cached list, if [`Lists::learned`] was called with the same `changes`.
    fn learned_list(&self, list: List, changes: u64) -> Option<&Snapshot> {
        let kept = self.kept.get(&list)?;
        let last = kept.last.as_ref()?;
        (kept.learned_at == Some(changes)).then_some(last)
    }

    /// Adds a created item to the cached list, because a client knows the item. The item stays until criswitch caches a
    /// list that it requested later. If the list is then too long, or there is no memory for the item (`None`), drops
    /// the list as outdated: without the item, the list is not complete. The list has at most `limit` bytes.
    pub(crate) fn add(&mut self, list: List, item: Option<Readable>, limit: usize) {
        let kept = self.kept.entry(list).or_default();
        let of_last = kept.last.as_ref().map_or(0, |last| last.message.len());
        let of_created: usize = kept.created.iter().map(|it| it.item.len()).sum();
        let left = limit.saturating_sub(of_last + of_created);
        match item.filter(|item| item.len() <= left && kept.created.len() < MOST_CHANGED) {
            Some(item) => kept.created.push(Created {
                item,
                at: Instant::now(),
            }),
            None => drop(self.outdate(list)),
        }
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
            let changed = NewState {
                field: change.field,
                state: change.now,
                at: Instant::now(),
            };
            kept.states.insert((*id).to_owned(), changed);
        }
        !changed.is_empty()
    }

    /// Drops the additions of items for which `is_left` does not hold, because the backend has these items no more.
    pub(crate) fn retain(&mut self, list: List, is_left: impl Fn(&str) -> bool) {
        if let Some(kept) = self.kept.get_mut(&list) {
            kept.created.retain(|created| {
                let item = protobuf::submessage(&created.item, &[ITEMS]);
                item.is_ok_and(|item| protobuf::string(&item, LISTED_ID).is_ok_and(&is_left))
            });
            kept.states.retain(|id, _| is_left(id));
        }
    }

    /// Whether a list became outdated and no list has been cached since.
    pub(crate) fn is_outdated(&self, list: List) -> bool {
        self.kept.get(&list).is_some_and(Kept::is_outdated)
    }

    /// Caches a reply to a call for all stats, if all cached stats then take at most `limit` bytes. Otherwise drops the
    /// cached stats of this kind, because they are outdated. Returns whether the content changed.
    pub fn keep_stats(&mut self, list: List, snapshot: Snapshot, limit: usize) -> bool {
        let before = self.content(list).cloned();
        let taken: usize = self
            .kept
            .iter()
            .filter(|(other, _)| **other != list)
            .filter(|(other, _)| other.is_stats())
            .filter_map(|(_, kept)| kept.last.as_ref())
            .map(|other| other.message.len())
            .sum();
        if snapshot.message.len() <= limit.saturating_sub(taken) {
            self.keep(list, snapshot);
        } else {
            self.kept.remove(&list);
        }
        before.as_deref() != self.content(list).map(|content| &**content)
    }

    fn content(&self, list: List) -> Option<&Readable> {
        Some(&self.get(list)?.message)
    }

    /// Records that a list may be outdated: an image was added or removed, a client received a list that criswitch did
    /// not read, or more states changed than criswitch remembers. Drops the list, except for a list of images: a client
    /// that asks for all images can do without the newest. Returns whether a whole list or a created item was cached.
    pub fn outdate(&mut self, list: List) -> bool {
        let was_outdated = self.is_outdated(list);
        let kept = self.kept.remove(&list).unwrap_or_default();
        let was_whole = kept.last.is_some() && !was_outdated || !kept.created.is_empty();
        let outdated = Kept {
            outdated: Some(Instant::now()),
            last: kept.last.filter(|_| list == List::Images),
            ..Kept::default()
        };
        self.kept.insert(list, outdated);
        was_whole
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::codec::cri;

    use super::*;
    use crate::ownership::Owners;
    use prost::Message;

    /// A list with these pods.
    fn pods(ids: &str) -> Bytes {
        let pod = |id: char| cri::PodSandbox {
            id: id.to_string(),
            metadata: Some(cri::PodSandboxMetadata::default()),
            ..Default::default()
        };
        let items = ids.chars().map(pod).collect();
        cri::ListPodSandboxResponse { items }.encode_to_vec().into()
    }

    fn readable(ids: &str) -> Readable {
        Readable::list(List::Pods, &pods(ids)).unwrap()
    }

    fn keep(lists: &mut Lists, ids: &str) -> bool {
        let snapshot = Snapshot {
            message: readable(ids),
            taken: Instant::now(),
            mark: Owners::default().mark(),
        };
        lists.keep(List::Pods, snapshot)
    }

    /// Caches these pods, which criswitch has learned while the changes were 7.
    fn learned(lists: &mut Lists, ids: &str) {
        keep(lists, ids);
        lists.learned(List::Pods, &pods(ids), 7);
    }

    fn repeats(lists: &Lists, ids: &str, changes: u64) -> bool {
        lists.repeated(List::Pods, &pods(ids), changes).is_some()
    }

    const AB: &str = "ab";
    const BA: &str = "ba";
    const AC: &str = "ac";

    #[test]
    fn a_list_repeats_while_its_items_and_all_facts_are_the_same() {
        let mut lists = Lists::default();
        keep(&mut lists, AB);
        assert!(!repeats(&lists, AB, 7), "not recorded");
        learned(&mut lists, AB);
        assert!(repeats(&lists, AB, 7));
        assert!(!repeats(&lists, AB, 8), "later facts");
        assert!(!repeats(&lists, AC, 7), "another item");
        keep(&mut lists, AC);
        assert!(!repeats(&lists, AC, 7), "a new list");
        lists.learned(List::Pods, &pods(AB), 7);
        assert!(!repeats(&lists, AC, 7), "an old list");
    }

    #[test]
    fn a_list_in_another_order_repeats_and_takes_the_place_of_the_cached_list() {
        let mut lists = Lists::default();
        learned(&mut lists, AB);
        assert!(repeats(&lists, BA, 7));
        assert!(!keep(&mut lists, BA), "no item has changed");
        assert_eq!(*lists.get(List::Pods).unwrap().message, pods(BA));
        assert!(repeats(&lists, AB, 7), "the items are still the same");
        assert!(keep(&mut lists, AC), "an item has changed");
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
        lists.add(List::Pods, Some(readable("c")), 100);
        assert!(!is_current(&lists, 7), "a created item");
    }

    #[test]
    fn a_list_is_dropped_as_outdated_if_a_created_item_has_no_room() {
        let pod = || Some(readable("c"));
        let limit = pods(AB).len() + 2 * pods("c").len();
        for (fitting, last, limit) in [
            (2, pod(), limit),
            (0, None, limit),
            (MOST_CHANGED, pod(), usize::MAX),
        ] {
            let mut lists = Lists::default();
            keep(&mut lists, AB);
            for _ in 0..fitting {
                lists.add(List::Pods, pod(), limit);
            }
            assert!(lists.message(List::Pods).is_some(), "{fitting}");
            lists.add(List::Pods, last, limit);
            assert!(lists.is_outdated(List::Pods), "{fitting}");
            assert!(lists.message(List::Pods).is_none(), "{fitting}");
        }
    }

    #[test]
    fn a_list_whose_bytes_are_no_longer_protobuf_does_not_repeat() {
        let mut lists = Lists::default();
        learned(&mut lists, AB);
        for cut in 1..pods(AB).len() {
            let mut broken = pods(AB).to_vec();
            broken.rotate_left(cut);
            let repeats = lists.repeated(List::Pods, &broken.into(), 7).is_some();
            assert_eq!(repeats, cut == pods("a").len(), "{cut}");
        }
    }
}
