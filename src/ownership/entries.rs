//! The owners of the ids of one kind (pods or containers), and when each owner was learned. In memory only; does no
//! I/O.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID};
use foldhash::fast::RandomState;

use super::{BackendId, Changed, Claim, LONGEST_ID, LearnedList, MOST, Mark, Owner, Unlearned};

/// All entries of one kind, by id.
pub(super) type Entries<T> = HashMap<String, Entry<T>, RandomState>;
/// Some of the ids of one kind.
pub(crate) type Ids<'a> = HashSet<&'a str, RandomState>;

/// The known facts of one id. `T` has the facts of its kind: the names of a pod, or the pod of a container.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) backend: BackendId,
    pub(super) source: Evidence,
    /// Whether a claim of another backend on the id was reported.
    pub(super) claimed: bool,
    /// Another backend that also lists the id.
    pub(super) rival: Option<Rival>,
    /// When the backend first returned or listed the id.
    pub(super) first: u64,
    /// When the entry was last learned.
    pub(super) at: u64,
    /// A hash that distinguishes the listed item from another item with the same id; see [`Shape::print`].
    pub(super) print: u64,
    pub(super) more: T,
}

/// The evidence that a backend owns an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The backend returned the id from a call that creates a pod or container.
    Created,
    /// In the saved state of the last run of criswitch, the backend owned the id, and the id was not disputed.
    Saved,
    /// The backend was the first to list the id.
    Listed,
}

/// A backend that lists an id of another backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rival {
    pub(super) backend: BackendId,
    /// When the rival last listed the id.
    pub(super) at: u64,
    print: u64,
    /// Whether an earlier complete list of the rival lacked the id, although the owner already had it. A late rival
    /// does not dispute the owner.
    late: bool,
}

/// The times of the complete lists of one kind from a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeLists {
    /// When the first list was learned. The items of that list may be older than this run of criswitch.
    pub(super) first: u64,
    /// When the last list was requested.
    pub(super) last: u64,
}

/// Reads listed items of one kind.
pub(super) trait Shape<T> {
    /// The facts to keep of a listed item.
    fn more(&self, item: &[u8]) -> T;
    /// Updates the facts from an item that the same backend lists again. Returns whether a fact changed.
    fn again(&self, _more: &mut T, _item: &[u8]) -> bool {
        false
    }
    /// A hash of the item's names and its time of creation. If two backends are sockets of one runtime, both list the
    /// same names and time.
    fn print(&self, item: &[u8]) -> u64;
    /// The owner of the item's pod, and when the owner first returned or listed the pod. `None` if the item is a pod, or
    /// its pod is unknown.
    fn pods_owner(&self, _item: &[u8]) -> Option<(BackendId, u64)> {
        None
    }
    /// Whether the item's label says that it is part of another backend's pod, and its own pod shows that it is not.
    fn is_mislabelled(&self, _item: &[u8]) -> bool {
        false
    }
    /// Whether the item is part of another backend's pod.
    fn is_in_others_pod(&self, item: &[u8], backend: BackendId) -> bool {
        self.pods_owner(item)
            .is_some_and(|(owner, _)| owner != backend)
    }
}

impl<T> Entry<T> {
    /// The owner, when the owner first returned or listed the id, and whether it listed the id without having created it.
    pub(super) fn listed_since(&self) -> (BackendId, u64, bool) {
        (self.backend, self.first, self.source == Evidence::Listed)
    }

    pub(super) fn owner(&self) -> Owner {
        match self.rival {
            Some(rival)
                if self.source == Evidence::Listed && !rival.late && rival.print != self.print =>
            {
                Owner::Disputed(self.backend, rival.backend)
            }
            _ => Owner::One(self.backend),
        }
    }

    /// Whether the backend may have had the item before `asked`. The result is `true` for the items of the backend's
    /// first complete list, because these items may be older than this run of criswitch.
    fn was_there(&self, Mark(asked): Mark, whole: Option<WholeLists>) -> bool {
        let is_new = whole.is_some_and(|whole| self.first > whole.first.max(asked));
        self.source != Evidence::Listed || !is_new
    }
}

impl<T> Entry<T> {
    /// Makes `rival` the owner. The previous owner no longer lists the id, but `rival` does.
    fn pass_to(&mut self, rival: Rival) {
        (self.backend, self.rival) = (rival.backend, None);
        (self.source, self.claimed) = (Evidence::Listed, false);
        (self.first, self.at, self.print) = (rival.at, rival.at, rival.print);
    }

    /// Makes a change that may begin or end a dispute. The state of the owner says which ids are disputed.
    fn edit(&mut self, changed: &mut Changed, change: impl FnOnce(&mut Entry<T>)) {
        let before = self.owner();
        change(self);
        if self.owner() != before {
            changed.insert(self.backend);
        }
    }
}

/// The claim of `backend`, which returned `id` from a call that creates a pod or container. The call was sent at
/// `asked`. There is a claim if another backend created the id, or may have had it before `asked`. `whole` returns a
/// backend's `WholeLists`.
pub(super) fn claim<T>(
    entries: &Entries<T>,
    id: &str,
    backend: BackendId,
    asked: Mark,
    whole: impl Fn(BackendId) -> Option<WholeLists>,
) -> Option<Claim> {
    let entry = entries.get(id)?;
    let was_there = entry.was_there(asked, whole(entry.backend));
    (entry.backend != backend && was_there).then(|| Claim {
        id: id.to_owned(),
        owner: entry.backend,
    })
}

/// Learns all items of a list, or none if the list is invalid. Also returns whether the list repeats items, or has items
/// of other backends. `whole` has the times of the complete lists of `backend`.
pub(super) fn learn<T>(
    entries: &mut Entries<T>,
    (backend, whole): (BackendId, Option<WholeLists>),
    now: u64,
    list: &[u8],
    removed: &HashMap<&str, Option<BackendId>>,
    shape: &impl Shape<T>,
) -> Result<(LearnedList, bool), Unlearned> {
    let mut claims = Vec::new();
    let before = entries.len();
    let (mut changes, mut changed) = (false, Changed::new());
    let mut drops = false;
    let is_foreign =
        |item: &[u8]| shape.is_in_others_pod(item, backend) || shape.is_mislabelled(item);
    for (id, item) in items(list)? {
        match entries.get_mut(id) {
            // The list repeats the id.
            Some(entry) if entry.backend == backend && entry.at == now => drops = true,
            Some(entry) if entry.backend == backend && is_foreign(item) => drops = true,
            Some(entry) if entry.backend == backend => {
                entry.at = now;
                // A created item has no print before its first list.
                if entry.rival.is_some() || entry.print == 0 {
                    entry.edit(&mut changed, |entry| entry.print = shape.print(item));
                }
                changes |= shape.again(&mut entry.more, item);
            }
            Some(entry) => {
                let before = entry.rival.filter(|rival| rival.backend == backend);
                let late = before.map_or_else(
                    || whole.is_some_and(|whole| whole.last >= entry.first),
                    |rival| rival.late,
                );
                let rival = Rival {
                    backend,
                    at: now,
                    print: shape.print(item),
                    late,
                };
                entry.edit(&mut changed, |entry| entry.rival = Some(rival));
                if !std::mem::replace(&mut entry.claimed, true) {
                    let owner = entry.backend;
                    let id = id.to_owned();
                    claims.push(Claim { id, owner });
                }
                drops = true;
            }
            None if is_foreign(item) => drops = true,
            // The list was requested before the item was removed.
            None if removed.contains_key(id) => {
                changes = true;
                drops |= is_removed_from_another(removed, id, backend);
            }
            None => {
                let entry = Entry {
                    backend,
                    source: Evidence::Listed,
                    claimed: false,
                    rival: None,
                    first: now,
                    at: now,
                    print: shape.print(item),
                    more: shape.more(item),
                };
                entries.insert(id.to_owned(), entry);
            }
        }
    }
    let new = entries.len() - before;
    if new > 0 {
        changed.insert(backend);
    }
    let learned = LearnedList {
        claims,
        own: None,
        dropped: 0,
        new,
        changes: changes || new > 0 || drops,
        changed,
    };
    Ok((learned, drops))
}

/// Returns `list`, which must be learned already, without repeated items and the items of other backends. Keeps an item
/// of another backend if `is_later`, which gets the owner and the time when the owner first had the item. Also returns
/// the number of items that were dropped. Returns `None` if it is 0.
pub(super) fn own<T>(
    entries: &Entries<T>,
    backend: BackendId,
    list: &[u8],
    removed: &HashMap<&str, Option<BackendId>>,
    shape: &impl Shape<T>,
    is_later: impl Fn(BackendId, u64) -> bool,
) -> Result<(Option<Bytes>, usize), Unlearned> {
    let mut seen = Ids::default();
    let mut dropped = Vec::new();
    for (place, (id, item)) in items(list)?.into_iter().enumerate() {
        // The list was requested before the item was removed.
        let is_removed = removed.contains_key(id);
        let is_anothers =
            |(owner, first)| owner != backend && (is_removed || !is_later(owner, first));
        let is_dropped = shape.pods_owner(item).is_some_and(is_anothers)
            || shape.is_mislabelled(item)
            || match entries.get(id) {
                Some(entry) => is_anothers((entry.backend, entry.first)) || !seen.insert(id),
                None => is_removed_from_another(removed, id, backend),
            };
        if is_dropped {
            dropped.push(place);
        }
    }
    Ok((without(list, &dropped)?, dropped.len()))
}

/// Whether a client has removed `id`, and another backend owned it.
fn is_removed_from_another(
    removed: &HashMap<&str, Option<BackendId>>,
    id: &str,
    backend: BackendId,
) -> bool {
    removed
        .get(id)
        .is_some_and(|owner| owner.is_some_and(|owner| owner != backend))
}

/// Returns `list` without the items at the positions in `places`, which must be in ascending order. Returns `None` if
/// `places` is empty.
fn without(list: &[u8], places: &[usize]) -> Result<Option<Bytes>, Malformed> {
    if places.is_empty() {
        return Ok(None);
    }
    let mut places = places.iter().copied().peekable();
    let mut items = 0..;
    protobuf::retain(list, ITEMS, |_| {
        Ok(items
            .next()
            .is_none_or(|item| places.next_if_eq(&item).is_none()))
    })
}

/// The items of a list, with their ids.
pub(super) fn items(list: &[u8]) -> Result<Vec<(&str, &[u8])>, Unlearned> {
    let mut items = Vec::new();
    for field in protobuf::fields(list) {
        let field = field?;
        if field.number != ITEMS {
            continue;
        }
        let item = field.bytes()?;
        match protobuf::string(item, LISTED_ID)? {
            id if id.len() > LONGEST_ID => return Err(Unlearned::LongId),
            _ if items.len() == MOST => return Err(Unlearned::TooMany),
            id => items.push((id, item)),
        }
    }
    Ok(items)
}

/// Whether `backend` is at the entry limit.
pub(super) fn is_full<T>(entries: &Entries<T>, backend: BackendId) -> bool {
    entries.len() >= MOST && count(entries, backend) >= MOST
}

/// Removes and returns the entries that a complete list of `backend`, requested at `asked`, lacked. Considers only
/// entries for which `shows` is true. An entry that another backend lists passes to that backend. Counts each change in
/// `changes`, and adds the backends whose items changed to `changed`.
pub(super) fn settle<T>(
    entries: &mut Entries<T>,
    backend: BackendId,
    Mark(asked): Mark,
    (changes, changed): (&mut u64, &mut Changed),
    shows: impl Fn(&T) -> bool,
) -> Vec<(String, Entry<T>)> {
    for entry in entries.values_mut().filter(|entry| shows(&entry.more)) {
        match entry.rival {
            Some(rival) if rival.backend == backend && rival.at <= asked => {
                entry.edit(changed, |entry| entry.rival = None);
                *changes += 1;
            }
            Some(rival) if entry.backend == backend && entry.at <= asked => {
                entry.pass_to(rival);
                changed.extend([backend, rival.backend]);
                *changes += 1;
            }
            _ => {}
        }
    }
    let lacking = |_: &String, entry: &mut Entry<T>| {
        entry.backend == backend && entry.at <= asked && shows(&entry.more)
    };
    let gone: Vec<_> = entries.extract_if(lacking).collect();
    if !gone.is_empty() {
        changed.insert(backend);
    }
    *changes += gone.len() as u64;
    gone
}

pub(super) fn with_prefix<'a, T>(entries: &'a Entries<T>, prefix: &str) -> Vec<(&'a str, Owner)> {
    let hits = entries.iter().filter(|(id, _)| id.starts_with(prefix));
    hits.map(|(id, entry)| (id.as_str(), entry.owner()))
        .collect()
}

pub(super) fn of<T>(entries: &Entries<T>, backend: BackendId) -> Ids<'_> {
    let its = entries.iter().filter(|(_, entry)| is_of(entry, backend));
    its.map(|(id, _)| id.as_str()).collect()
}

pub(super) fn is_of<T>(entry: &Entry<T>, backend: BackendId) -> bool {
    entry.backend == backend
}

/// The disputed ids of `backend`: another backend lists them too, and their owner is unknown.
pub(super) fn disputed<T>(entries: &Entries<T>, backend: BackendId) -> Vec<String> {
    let its = entries.iter().filter(|(_, entry)| is_of(entry, backend));
    let disputed = its.filter(|(_, entry)| entry.owner() != Owner::One(backend));
    disputed.map(|(id, _)| id.clone()).collect()
}

/// Marks the listed entries of `backend` as restored from the saved state, except the `disputed` ids.
pub(super) fn restore<T>(entries: &mut Entries<T>, backend: BackendId, disputed: &HashSet<&str>) {
    for (id, entry) in entries {
        let is_listed = is_of(entry, backend) && entry.source == Evidence::Listed;
        if is_listed && !disputed.contains(id.as_str()) {
            entry.source = Evidence::Saved;
        }
    }
}

/// The number of items in `list` that are mislabelled.
pub(super) fn mislabelled<T>(list: &[u8], shape: &impl Shape<T>) -> usize {
    let items = items(list).unwrap_or_default().into_iter();
    items.filter(|(_, item)| shape.is_mislabelled(item)).count()
}

/// The number of ids that `backend` lists although they belong to another backend.
pub(super) fn claims<T>(entries: &Entries<T>, backend: BackendId) -> usize {
    let rivals = entries.values().filter_map(|entry| entry.rival);
    rivals.filter(|rival| rival.backend == backend).count()
}

/// For each entry of `backend` that another backend lists too, with the same names and time of creation: the other
/// backend.
pub(super) fn copies<T>(
    entries: &Entries<T>,
    backend: BackendId,
) -> impl Iterator<Item = BackendId> + '_ {
    let its = entries.values().filter(move |entry| is_of(entry, backend));
    its.filter_map(|entry| {
        let rival = entry.rival.filter(|rival| rival.print == entry.print);
        Some(rival?.backend)
    })
}

pub(super) fn count<T>(entries: &Entries<T>, backend: BackendId) -> usize {
    entries
        .values()
        .filter(|entry| entry.backend == backend)
        .count()
}
