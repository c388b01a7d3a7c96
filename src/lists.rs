//! The last whole lists and stats of a backend, which are served while it does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::rpc::List;

/// A whole list as the backend gave it; at most `max_message` bytes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The encoded reply.
    pub message: Bytes,
    /// When it was asked for.
    pub taken: Instant,
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
    /// What was asked for before is no longer whole.
    outdated: Option<Instant>,
}

impl Lists {
    /// The last whole list of this kind.
    pub fn get(&self, list: List) -> Option<&Snapshot> {
        self.kept.get(&list)?.last.as_ref()
    }

    /// Keeps a whole list, unless a later one is there or it was outdated since it was asked for; of the same instant
    /// nobody knows which was first.
    pub fn keep(&mut self, list: List, snapshot: Snapshot) {
        let kept = self.kept.entry(list).or_default();
        let later = kept.last.as_ref().map(|kept| kept.taken);
        if later <= Some(snapshot.taken) && kept.outdated < Some(snapshot.taken) {
            kept.last = Some(snapshot);
        }
    }

    /// Keeps a reply to a call for all stats, if all stats that are kept take no more than `limit` bytes then; else the
    /// last ones of its kind are dropped, since they are outdated too.
    pub fn keep_stats(&mut self, list: List, snapshot: Snapshot, limit: usize) {
        let others = self.kept.iter().filter(|(other, _)| **other != list);
        let others = others.filter(|(other, _)| other.is_stats());
        let others = others.filter_map(|(_, kept)| kept.last.as_ref());
        let taken: usize = others.map(|other| other.message.len()).sum();
        match snapshot.message.len() <= limit.saturating_sub(taken) {
            true => self.keep(list, snapshot),
            false => drop(self.kept.remove(&list)),
        }
    }

    /// There may be more by now than was listed: an image came or went, or a client has seen a list that nobody here
    /// has.
    pub fn outdate(&mut self, list: List) {
        let outdated = Kept {
            last: None,
            outdated: Some(Instant::now()),
        };
        self.kept.insert(list, outdated);
    }
}
