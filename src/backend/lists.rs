//! The last whole lists and stats of a backend, served while it does not answer.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::codec::protobuf::{self, Edit};
use crate::ownership::Mark;
use crate::rpc::fields::{ITEMS, LISTED_ID};
use crate::rpc::{List, StateChange};

/// The most created items, and the most items in a changed state, that are kept until they are listed. The kubelet
/// lists every second.
const MOST_CHANGED: usize = 1024;

/// A whole list as the backend sent it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Bytes,
    /// When criswitch asked for the list.
    pub taken: Instant,
    /// The moment's position in the order in which facts were learned.
    pub mark: Mark,
}

impl Snapshot {
    /// The age of the list.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

/// One backend's last whole lists, at most three times `max_message` bytes, and its last stats, at most `max_message`
/// bytes together.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    kept: BTreeMap<List, Kept>,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    last: Option<Snapshot>,
    /// The items created since the list was asked for, encoded as in a list.
    created: Vec<Created>,
    /// The states of the items that changed since the list was asked for, by id.
    states: BTreeMap<String, Changed>,
    /// The [`Owners::changes`](crate::ownership::Owners::changes) at which `last` was read and changed nothing.
    unchanged_at: Option<u64>,
    /// A hash of the list, the same in any order of its items; 0 for stats.
    print: u64,
    /// A list that was asked for before this moment is no longer whole.
    outdated: Option<Instant>,
}

/// An item that clients know, and the cached list may lack.
#[derive(Clone, Debug)]
struct Created {
    item: Bytes,
    at: Instant,
}

/// The state of an item that clients know; the cached list may show an earlier state.
#[derive(Clone, Debug)]
struct Changed {
    field: u32,
    state: u64,
    at: Instant,
}

impl Kept {
    /// Values that differ if the content differs.
    fn shape(&self) -> (bool, u64, usize, usize) {
        let (created, states) = (self.created.len(), self.states.len());
        (self.last.is_some(), self.print, created, states)
    }

    /// The last whole list, then the items created since. An item may be in both.
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

    /// The list of `with_created`, each item in its current state.
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
    /// The last whole list of this kind.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        self.kept.get(&list)?.last.as_ref()
    }

    /// The last whole list of this kind, with the items created and the states changed since. An item may occur twice.
    pub(crate) fn message(&self, list: List) -> Option<Bytes> {
        self.kept.get(&list)?.message()
    }

    /// Keeps a whole list, unless a later list is kept or the list was outdated after it was requested; within one
    /// instant the order is unknown. Returns whether the content changed.
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
            // Stats are not saved, and always differ.
            if !list.is_stats() {
                kept.print = print(&snapshot.message);
            }
        }
        kept.last = Some(snapshot);
        before != kept.shape()
    }

    /// Returns the cached message if it has the same bytes as `message`, and was read at these `changes` of the owners
    /// without changing anything.
    pub(crate) fn unchanged(&self, list: List, message: &Bytes, changes: u64) -> Option<Bytes> {
        let kept = self.kept.get(&list)?;
        let last = &kept.last.as_ref()?.message;
        (kept.unchanged_at == Some(changes) && is_same(last, message)).then(|| last.clone())
    }

    /// The cached list, if it is `message`, was read at these `changes` of the owners and changed nothing.
    pub(crate) fn changed_nothing(&mut self, list: List, message: &Bytes, changes: u64) {
        if let Some(kept) = self.kept.get_mut(&list)
            && let Some(last) = &kept.last
            && is_same(&last.message, message)
        {
            kept.unchanged_at = Some(changes);
        }
    }

    /// Adds an item to the cached list, because a client knows the item. The item stays until criswitch keeps a list
    /// that it requested later.
    pub(crate) fn add(&mut self, list: List, item: Bytes) {
        let created = &mut self.kept.entry(list).or_default().created;
        if created.len() == MOST_CHANGED {
            created.remove(0);
        }
        let at = Instant::now();
        created.push(Created { item, at });
    }

    /// Sets the new state of each item whose state changes with the pod or container `id`. The new state stays until
    /// criswitch keeps a list that it requested later. Returns whether a state changed.
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

    /// Whether a list was outdated and none has been cached since.
    pub(crate) fn is_outdated(&self, list: List) -> bool {
        let kept = self.kept.get(&list);
        kept.is_some_and(|kept| kept.last.is_none() && kept.outdated.is_some())
    }

    /// Keeps a reply to a call for all stats, if all kept stats then take at most `limit` bytes. Otherwise drops the
    /// earlier stats of this kind, which are outdated. Returns whether the content changed.
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
    /// not read, or more states changed than criswitch remembers. Returns whether a list was cached.
    pub fn outdate(&mut self, list: List) -> bool {
        let outdated = Kept {
            outdated: Some(Instant::now()),
            ..Kept::default()
        };
        let before = self.kept.insert(list, outdated);
        before.is_some_and(|kept| kept.last.is_some() || !kept.created.is_empty())
    }
}

/// Whether the bytes are the same, quickly for two references to the same bytes.
fn is_same(a: &Bytes, b: &Bytes) -> bool {
    std::ptr::eq(a.as_ref(), b.as_ref()) || a == b
}

/// A hash of the items in any order: containerd lists them in another order each time.
fn print(message: &[u8]) -> u64 {
    let fields = protobuf::fields(message).flatten();
    fields.fold(0, |print, field| {
        let mut hasher = DefaultHasher::new();
        hasher.write(field.raw);
        print.wrapping_add(hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::Owners;

    #[test]
    fn a_list_is_unchanged_while_its_bytes_and_all_facts_are() {
        let mut lists = Lists::default();
        let keep = |lists: &mut Lists, message: &'static [u8]| {
            lists.keep(
                List::Pods,
                Snapshot {
                    message: Bytes::from_static(message),
                    taken: Instant::now(),
                    mark: Owners::default().mark(),
                },
            );
        };
        let (one, other) = (Bytes::from_static(b"one"), Bytes::from_static(b"other"));
        keep(&mut lists, b"one");
        assert_eq!(lists.unchanged(List::Pods, &one, 7), None, "not recorded");
        lists.changed_nothing(List::Pods, &one, 7);
        assert_eq!(lists.unchanged(List::Pods, &one, 7), Some(one.clone()));
        assert_eq!(lists.unchanged(List::Pods, &one, 8), None, "later facts");
        assert_eq!(lists.unchanged(List::Pods, &other, 7), None, "other bytes");
        keep(&mut lists, b"other");
        assert_eq!(lists.unchanged(List::Pods, &other, 7), None, "a new list");
        lists.changed_nothing(List::Pods, &one, 7);
        assert_eq!(lists.unchanged(List::Pods, &other, 7), None, "an old list");
    }
}
