//! The last whole lists and stats of a backend, which are served while it does not answer.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::codec::protobuf::{self, Edit};
use crate::ownership::Mark;
use crate::rpc::fields::{ITEMS, LISTED_ID};
use crate::rpc::{List, StateChange};

/// How many created items, and how many items in another state, are kept until they are listed; the kubelet lists every
/// second.
const MOST_CHANGED: usize = 1024;

/// A whole list as the backend gave it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Bytes,
    /// When it was asked for.
    pub taken: Instant,
    /// The same, in the order of what was learned.
    pub mark: Mark,
}

impl Snapshot {
    /// How old it is.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

/// One backend's last whole lists, of at most three times `max_message` bytes, and its last stats, of at most
/// `max_message` bytes together.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    kept: BTreeMap<List, Kept>,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    last: Option<Snapshot>,
    /// What was created since the list was asked for, as a list would show it.
    created: Vec<Created>,
    /// The state that items are in since the list was asked for, by their ids.
    states: BTreeMap<String, Changed>,
    /// A hash of a list that does not depend on the order of its items; 0 for stats.
    print: u64,
    /// What was asked for before is no longer whole.
    outdated: Option<Instant>,
}

/// An item of a list that clients know of, and the cached list may lack.
#[derive(Clone, Debug)]
struct Created {
    item: Bytes,
    at: Instant,
}

/// The state of an item that clients know of; the cached list may show an earlier one.
#[derive(Clone, Debug)]
struct Changed {
    field: u32,
    state: u64,
    at: Instant,
}

impl Kept {
    /// What differs if the content does.
    fn shape(&self) -> (bool, u64, usize, usize) {
        let (created, states) = (self.created.len(), self.states.len());
        (self.last.is_some(), self.print, created, states)
    }

    /// The last whole list, and after it what was created since. An item may be in both.
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

    /// The same, each item in its state of now.
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
    /// `item` in this state: of a field that is there twice, the last value counts.
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

    /// The last whole list of this kind, with what was created and what changed its state since. An item may be in it
    /// twice.
    pub(crate) fn message(&self, list: List) -> Option<Bytes> {
        self.kept.get(&list)?.message()
    }

    /// Keeps a whole list, unless a later one is there or it was outdated since it was asked for; of the same instant
    /// nobody knows which was first. Returns whether the content is different from before.
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
        let same = kept.last.as_ref().map(|last| &last.message) == Some(&snapshot.message);
        // Stats are not saved, and always different.
        if !same && !list.is_stats() {
            kept.print = print(&snapshot.message);
        }
        kept.last = Some(snapshot);
        before != kept.shape()
    }

    /// Adds an item that a client knows of to the cached list, until a list that was asked for later is kept.
    pub(crate) fn add(&mut self, list: List, item: Bytes) {
        let created = &mut self.kept.entry(list).or_default().created;
        if created.len() == MOST_CHANGED {
            created.remove(0);
        }
        let at = Instant::now();
        created.push(Created { item, at });
    }

    /// Sets the state of the items that `change` is about for the pod or container `id`, until a list that was asked for
    /// later is kept. Returns whether it was another one.
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

    /// Whether a list was cached, but lacks something by now.
    pub(crate) fn is_outdated(&self, list: List) -> bool {
        let kept = self.kept.get(&list);
        kept.is_some_and(|kept| kept.last.is_none() && kept.outdated.is_some())
    }

    /// Keeps a reply to a call for all stats, if all stats that are kept take no more than `limit` bytes then; else the
    /// last ones of its kind are dropped, since they are outdated too. Returns whether the content is different from before.
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

    /// There may be more by now than was listed: an image came or went, or a client has seen a list that nobody here
    /// has. Returns whether something was cached until now.
    pub fn outdate(&mut self, list: List) -> bool {
        let outdated = Kept {
            outdated: Some(Instant::now()),
            ..Kept::default()
        };
        let before = self.kept.insert(list, outdated);
        before.is_some_and(|kept| kept.last.is_some() || !kept.created.is_empty())
    }
}

/// A hash of the items: containerd lists them in another order each time.
fn print(message: &[u8]) -> u64 {
    let fields = protobuf::fields(message).flatten();
    fields.fold(0, |print, field| {
        let mut hasher = DefaultHasher::new();
        hasher.write(field.raw);
        print.wrapping_add(hasher.finish())
    })
}
