//! The owners of the ids of one kind (pods or containers), and when each owner was learned. In memory only; does no
//! I/O.

use std::collections::{HashMap, HashSet};

use criswitch_cri::codec::protobuf::{self, Editable, Malformed};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID};
use foldhash::fast::RandomState;

use super::{BackendId, Changed, Claim, LONGEST_ID, LearnedList, MOST, Mark, Unlearned};

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
    /// Another backend that lists the id too. It becomes the owner when the owner no longer lists the id.
    pub(super) next: Option<Lister>,
    /// When the backend first returned or listed the id.
    pub(super) first: u64,
    /// When the entry was last learned.
    pub(super) at: u64,
    pub(super) more: T,
}

/// The evidence that a backend owns an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The backend returned the id from a call that creates a pod or container.
    Created,
    /// In the saved state of the last run of criswitch, the backend owned the id.
    Saved,
    /// The backend was the first to list the id.
    Listed,
}

/// A backend that lists an id of another backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lister {
    pub(super) backend: BackendId,
    /// When the backend last listed the id.
    pub(super) at: u64,
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
    /// Whether the item is part of another backend's pod.
    fn is_in_others_pod(&self, _item: &[u8]) -> bool {
        false
    }
    /// Whether the item's label wrongly claims that the item is part of another backend's pod.
    fn is_mislabelled(&self, _item: &[u8]) -> bool {
        false
    }
    /// Whether the item belongs to another backend, whatever its id.
    fn is_foreign(&self, item: &[u8]) -> bool {
        self.is_in_others_pod(item) || self.is_mislabelled(item)
    }
}

impl<T> Entry<T> {
    /// Whether the backend may have had the item before `asked`. The result is `true` for the items of the backend's
    /// first complete list, because these items may be older than this run of criswitch.
    fn was_there(&self, Mark(asked): Mark, whole: Option<WholeLists>) -> bool {
        let is_new = whole.is_some_and(|whole| self.first > whole.first.max(asked));
        self.source != Evidence::Listed || !is_new
    }

    /// Makes `next` the owner, because the previous owner no longer lists the id.
    fn pass_to(&mut self, next: Lister) {
        (self.backend, self.next) = (next.backend, None);
        (self.source, self.claimed) = (Evidence::Listed, false);
        (self.first, self.at) = (next.at, next.at);
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
    (entry.backend != backend && entry.was_there(asked, whole(entry.backend))).then(|| Claim {
        id: id.to_owned(),
        owner: entry.backend,
    })
}

/// Learns all items of a list, or none if the list is invalid.
pub(super) fn learn<T>(
    entries: &mut Entries<T>,
    backend: BackendId,
    now: u64,
    list: &[u8],
    removed: &HashMap<&str, Option<BackendId>>,
    shape: &impl Shape<T>,
) -> Result<LearnedList, Unlearned> {
    let mut claims = Vec::new();
    let before = entries.len();
    let (mut changes, mut dropped) = (false, 0);
    for (id, item) in items(list)? {
        match entries.get_mut(id) {
            // The list repeats the id.
            Some(entry) if entry.backend == backend && entry.at == now => dropped += 1,
            Some(entry) if entry.backend == backend && shape.is_foreign(item) => dropped += 1,
            Some(entry) if entry.backend == backend => {
                entry.at = now;
                changes |= shape.again(&mut entry.more, item);
            }
            Some(entry) => {
                entry.next = Some(Lister { backend, at: now });
                if !std::mem::replace(&mut entry.claimed, true) {
                    let owner = entry.backend;
                    let id = id.to_owned();
                    claims.push(Claim { id, owner });
                }
                dropped += 1;
            }
            None if shape.is_foreign(item) => dropped += 1,
            // The list was requested before the item was removed.
            None if removed.contains_key(id) => {
                changes = true;
                dropped += usize::from(is_removed_from_another(removed, id, backend));
            }
            None => {
                let entry = Entry {
                    backend,
                    source: Evidence::Listed,
                    claimed: false,
                    next: None,
                    first: now,
                    at: now,
                    more: shape.more(item),
                };
                entries.insert(id.to_owned(), entry);
            }
        }
    }
    let new = entries.len() - before;
    Ok(LearnedList {
        claims,
        dropped,
        new,
        changes: changes || new > 0 || dropped > 0,
        changed: (new > 0).then_some(backend).into_iter().collect(),
    })
}

/// Returns `list`, which must be learned already, without repeated items and without the items of other backends.
/// Returns `None` if there is nothing to drop.
pub(super) fn without_foreign_items<T, M: Editable>(
    entries: &Entries<T>,
    backend: BackendId,
    list: &M,
    removed: &HashMap<&str, Option<BackendId>>,
    shape: &impl Shape<T>,
) -> Result<Option<M>, Unlearned> {
    let mut seen = Ids::default();
    let mut dropped = Vec::new();
    for (place, (id, item)) in items(list.as_ref())?.into_iter().enumerate() {
        let is_dropped = shape.is_foreign(item)
            || match entries.get(id) {
                Some(entry) => entry.backend != backend || !seen.insert(id),
                None => is_removed_from_another(removed, id, backend),
            };
        if is_dropped {
            dropped.push(place);
        }
    }
    Ok(without(list, &dropped)?)
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
fn without<M: Editable>(list: &M, places: &[usize]) -> Result<Option<M>, Malformed> {
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
pub(super) fn forget_missing<T>(
    entries: &mut Entries<T>,
    backend: BackendId,
    Mark(asked): Mark,
    (changes, changed): (&mut u64, &mut Changed),
    shows: impl Fn(&T) -> bool,
) -> Vec<(String, Entry<T>)> {
    for entry in entries.values_mut().filter(|entry| shows(&entry.more)) {
        match entry.next {
            Some(next) if next.backend == backend && next.at <= asked => entry.next = None,
            Some(next) if entry.backend == backend && entry.at <= asked => {
                entry.pass_to(next);
                changed.extend([backend, next.backend]);
            }
            _ => continue,
        }
        *changes += 1;
    }
    let gone: Vec<_> = entries
        .extract_if(|_, entry| entry.backend == backend && entry.at <= asked && shows(&entry.more))
        .collect();
    if !gone.is_empty() {
        changed.insert(backend);
    }
    *changes += gone.len() as u64;
    gone
}

pub(super) fn with_prefix<'a, T>(
    entries: &'a Entries<T>,
    prefix: &str,
) -> Vec<(&'a str, BackendId)> {
    entries
        .iter()
        .filter(|(id, _)| id.starts_with(prefix))
        .map(|(id, entry)| (id.as_str(), entry.backend))
        .collect()
}

pub(super) fn of<T>(entries: &Entries<T>, backend: BackendId) -> Ids<'_> {
    entries
        .iter()
        .filter(|(_, entry)| is_of(entry, backend))
        .map(|(id, _)| id.as_str())
        .collect()
}

/// The ids that backends other than `backend` own because they listed these ids after `since`.
pub(super) fn new_elsewhere<T>(entries: &Entries<T>, backend: BackendId, since: u64) -> Ids<'_> {
    let others = entries.iter().filter(|(_, it)| it.backend != backend);
    let new = others.filter(|(_, it)| it.source == Evidence::Listed && it.first > since);
    new.map(|(id, _)| id.as_str()).collect()
}

pub(super) fn is_of<T>(entry: &Entry<T>, backend: BackendId) -> bool {
    entry.backend == backend
}

/// Marks the listed entries of `backend` as restored from the saved state.
pub(super) fn restore<T>(entries: &mut Entries<T>, backend: BackendId) {
    entries
        .values_mut()
        .filter(|entry| is_of(entry, backend))
        .filter(|entry| entry.source == Evidence::Listed)
        .for_each(|entry| entry.source = Evidence::Saved);
}

/// The number of items in `list` that are mislabelled.
pub(super) fn mislabelled<T>(list: &[u8], shape: &impl Shape<T>) -> usize {
    items(list)
        .unwrap_or_default()
        .into_iter()
        .filter(|(_, item)| shape.is_mislabelled(item))
        .count()
}

/// The owner and the next owner of each id that several backends list.
pub(super) fn shared<T>(entries: &Entries<T>) -> impl Iterator<Item = (BackendId, BackendId)> + '_ {
    entries
        .values()
        .filter_map(|entry| Some((entry.backend, entry.next?.backend)))
}

pub(super) fn count<T>(entries: &Entries<T>, backend: BackendId) -> usize {
    entries
        .values()
        .filter(|entry| entry.backend == backend)
        .count()
}
