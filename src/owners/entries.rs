//! What is known of the ids of one kind: which backend shows them, and since when. In memory only; does no I/O.

use std::collections::{HashMap, HashSet};

use super::{BackendId, Claim, LONGEST_ID, MOST, Mark, Owner, Unlearned};
use crate::wire;

/// All of one kind, by their ids.
pub(super) type Entries<T> = HashMap<String, Entry<T>>;

/// What is known of one id; `T` is what its kind adds: a pod's names, a container's pod.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) backend: BackendId,
    /// The backend gave us the id in answer to a call that creates.
    pub(super) created: bool,
    /// That another backend lists it all the same has been told.
    pub(super) claimed: bool,
    /// Another backend that lists it too, and when that was last seen.
    pub(super) rival: Option<(BackendId, u64)>,
    /// When it was last learned.
    pub(super) at: u64,
    pub(super) more: T,
}

impl<T> Entry<T> {
    pub(super) fn owner(&self) -> Owner {
        match self.rival {
            Some((rival, _)) => Owner::Disputed(self.backend, rival),
            None => Owner::One(self.backend),
        }
    }
}

/// The claim of `backend` on an id that another one gave us in answer to a call that creates.
pub(super) fn claim<T>(entries: &Entries<T>, id: &str, backend: BackendId) -> Option<Claim> {
    let entry = entries.get(id)?;
    (entry.created && entry.backend != backend).then(|| Claim {
        id: id.to_owned(),
        owner: entry.backend,
    })
}

/// Learns all of a list, or nothing.
pub(super) fn learn<T>(
    entries: &mut Entries<T>,
    backend: BackendId,
    now: u64,
    list: &[u8],
    removed: &HashSet<&str>,
    more: impl Fn(&[u8]) -> T,
) -> Result<Vec<Claim>, Unlearned> {
    let mut claims = Vec::new();
    for (id, item) in items(list)? {
        match entries.get_mut(id) {
            Some(entry) if entry.backend == backend => entry.at = now,
            Some(entry) if entry.created => {
                if !std::mem::replace(&mut entry.claimed, true) {
                    claims.extend(claim(entries, id, backend));
                }
            }
            Some(entry) => entry.rival = Some((backend, now)),
            None if removed.contains(id) => {}
            None => {
                let entry = Entry {
                    backend,
                    created: false,
                    claimed: false,
                    rival: None,
                    at: now,
                    more: more(item),
                };
                entries.insert(id.to_owned(), entry);
            }
        }
    }
    Ok(claims)
}

/// What a list shows, by its ids.
fn items(list: &[u8]) -> Result<Vec<(&str, &[u8])>, Unlearned> {
    let mut items = Vec::new();
    for field in wire::fields(list) {
        let field = field?;
        if field.number != 1 {
            continue;
        }
        let item = field.bytes()?;
        match wire::string(item, &[1])? {
            id if id.len() > LONGEST_ID => return Err(Unlearned::LongId),
            _ if items.len() == MOST => return Err(Unlearned::TooMany),
            id => items.push((id, item)),
        }
    }
    Ok(items)
}

/// Whether `backend` has as many as may be remembered.
pub(super) fn is_full<T>(entries: &Entries<T>, backend: BackendId) -> bool {
    entries.len() >= MOST && count(entries, backend) >= MOST
}

/// Of the entries that a list `shows` if they are there, those that are not: `backend` did not list them since `asked`.
pub(super) fn settle<T>(
    entries: &mut Entries<T>,
    backend: BackendId,
    Mark(asked): Mark,
    shows: impl Fn(&T) -> bool,
) -> Vec<(String, Entry<T>)> {
    for entry in entries.values_mut().filter(|entry| shows(&entry.more)) {
        match entry.rival {
            Some((rival, at)) if rival == backend && at <= asked => entry.rival = None,
            Some((rival, at)) if entry.backend == backend && entry.at <= asked => {
                (entry.backend, entry.at, entry.rival) = (rival, at, None);
            }
            _ => {}
        }
    }
    let lacking = |_: &String, entry: &mut Entry<T>| {
        entry.backend == backend && entry.at <= asked && shows(&entry.more)
    };
    entries.extract_if(lacking).collect()
}

pub(super) fn with_prefix<'a, T>(entries: &'a Entries<T>, prefix: &str) -> Vec<(&'a str, Owner)> {
    let hits = entries.iter().filter(|(id, _)| id.starts_with(prefix));
    hits.map(|(id, entry)| (id.as_str(), entry.owner()))
        .collect()
}

pub(super) fn of<T>(entries: &Entries<T>, backend: BackendId) -> HashSet<&str> {
    let its = entries.iter().filter(|(_, entry)| is_of(entry, backend));
    its.map(|(id, _)| id.as_str()).collect()
}

pub(super) fn is_of<T>(entry: &Entry<T>, backend: BackendId) -> bool {
    entry.backend == backend || entry.rival.is_some_and(|(rival, _)| rival == backend)
}

pub(super) fn would_lose<T>(
    entries: &Entries<T>,
    backend: BackendId,
    remains: &impl Fn(BackendId) -> bool,
) -> bool {
    entries.values().any(|entry| match entry.owner() {
        Owner::One(owner) => owner == backend,
        Owner::Disputed(one, other) => {
            one == backend && !remains(other) || other == backend && !remains(one)
        }
    })
}

pub(super) fn count<T>(entries: &Entries<T>, backend: BackendId) -> usize {
    entries
        .values()
        .filter(|entry| entry.backend == backend)
        .count()
}
