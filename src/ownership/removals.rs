//! The latest removals of pods and containers. A list that is under way may still show a removed item, and later calls
//! for the item may go to the backend that had it. In memory only; does no I/O.

use std::collections::{HashMap, VecDeque};

use super::entries::Entry;
use super::{BackendId, Mark};

/// The most removed pods and containers that are remembered.
const REMOVALS: usize = 4096;

/// The latest removals, the newest at the end.
#[derive(Debug, Default)]
pub struct Removals(VecDeque<Removed>);

/// A removed pod or container.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) id: String,
    pub(super) at: u64,
    /// The owner, if known.
    pub(super) backend: Option<BackendId>,
    /// The uid of a pod; `None` for a container.
    pub(super) uid: Option<String>,
    /// Whether a client removed the item through criswitch. Otherwise a complete list lacked the item.
    pub(super) by_us: bool,
}

impl Removed {
    /// An item that a client removed through criswitch. `entry` has the facts that were known of it.
    pub(super) fn by_us<T>(
        id: String,
        at: u64,
        entry: Option<&Entry<T>>,
        uid: Option<String>,
    ) -> Removed {
        Removed {
            id,
            at,
            backend: entry.map(|entry| entry.backend),
            uid,
            by_us: true,
        }
    }
}

impl Removals {
    pub(super) fn add(&mut self, removed: Removed) {
        if self.0.len() == REMOVALS {
            self.0.pop_front();
        }
        self.0.push_back(removed);
    }

    /// The items that clients removed through criswitch after `asked`, and their owners.
    pub(super) fn since(&self, asked: Mark) -> HashMap<&str, Option<BackendId>> {
        self.after(asked)
            .filter(|removed| removed.by_us)
            .map(|removed| (removed.id.as_str(), removed.backend))
            .collect()
    }

    /// The ids and uids of the pods of `backend` that were removed after `since`, or that a complete list after `since`
    /// lacked.
    pub fn pods_of(&self, backend: BackendId, since: Mark) -> Vec<(String, String)> {
        self.after(since)
            .filter(|removed| removed.backend == Some(backend))
            .filter_map(|removed| Some((removed.id.clone(), removed.uid.clone()?)))
            .collect()
    }

    fn after(&self, mark: Mark) -> impl Iterator<Item = &Removed> {
        let removed = self.0.iter().rev();
        removed.take_while(move |removed| removed.at > mark.0)
    }

    /// The backend that had this pod or container, if a client removed it through criswitch.
    pub fn owner_of(&self, id: &str) -> Option<BackendId> {
        let mut removed = self.0.iter().rev().filter(|it| it.id == id && it.by_us);
        removed.find_map(|it| it.backend)
    }

    /// The backend of the last removed pod with this uid.
    pub fn last_with_uid(&self, uid: &str) -> Option<BackendId> {
        self.0
            .iter()
            .rev()
            .find(|it| it.uid.as_deref() == Some(uid))?
            .backend
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::{B, C};
    use super::*;

    fn removed(id: &str, at: u64, by_us: bool) -> Removed {
        Removed {
            id: id.to_owned(),
            at,
            backend: Some(B),
            uid: Some(format!("uid-of-{id}")),
            by_us,
        }
    }

    #[test]
    fn the_latest_removals_are_found_by_time_id_and_uid() {
        let mut removals = Removals::default();
        removals.add(removed("old", 1, true));
        removals.add(removed("missing", 2, false));
        removals.add(removed("new", 3, true));
        assert_eq!(removals.since(Mark(1)), [("new", Some(B))].into());
        let ids = |since| removals.pods_of(B, Mark(since)).len();
        assert_eq!([0, 1, 3].map(ids), [3, 2, 0]);
        assert!(removals.pods_of(C, Mark(0)).is_empty());
        assert_eq!(removals.owner_of("old"), Some(B));
        assert_eq!(removals.owner_of("missing"), None);
        assert_eq!(removals.last_with_uid("uid-of-missing"), Some(B));
        for at in 0..REMOVALS as u64 {
            removals.add(removed("later", at, true));
        }
        assert_eq!(removals.owner_of("old"), None);
    }
}
