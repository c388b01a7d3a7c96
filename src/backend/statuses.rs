//! The last status of each pod and container of a backend: the replies to `PodSandboxStatus` and `ContainerStatus`.
//! criswitch serves them while the backend is away or late, as it serves the cached lists.
//!
//! A status is dropped when the item may have changed: when the backend has answered a client's call that changes the
//! item, at an event, or when a list shows a different state.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use lru::LruCache;

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID, container, pod_sandbox};
use criswitch_cri::rpc::{Kind, List};

/// The most memory of one status beyond its bytes: its id, the entry, the index of its pod, and the counter of its
/// memory.
const PER_STATUS: usize = 1024;

/// The most statuses. A list looks at each of them.
const MOST: usize = 4096;

/// The kind and the id of an item.
type ItemKey = (Kind, String);

/// A status, and the pod in whose entry of [`Statuses::by_pod`] it is.
#[derive(Debug)]
struct KeptStatus {
    status: ItemStatus,
    pod: String,
}

/// The last statuses of a backend's items.
#[derive(Debug)]
pub(crate) struct Statuses {
    /// The statuses, the longest unused first.
    kept: LruCache<ItemKey, KeptStatus>,
    /// The statuses of each pod and its containers. A container whose pod is unknown is under the empty id.
    by_pod: HashMap<String, HashSet<ItemKey>>,
    /// The memory of all kept statuses, in bytes.
    size: usize,
    /// The most memory of all kept statuses.
    limit: usize,
    /// Increases each time an item may have changed, so that `keep` can reject a status that was read before.
    changes: u64,
}

/// A reply to a call for the status of one item, which was not verbose.
#[derive(Clone, Debug)]
pub(crate) struct ItemStatus {
    /// The reply as the backend sent it. The gate reads it before it is served.
    pub(crate) message: Bytes,
    /// The state in the reply.
    pub(crate) state: u64,
}

impl ItemStatus {
    /// Reads the status in `reply`, whose state is at the path `state`. Copies the status, because a slice would keep a
    /// connection's whole buffer, or a whole file, in memory. Omits the statuses of a pod's containers, because a later
    /// list may show different states of these. Without them, the kubelet asks for each container.
    ///
    /// # Errors
    /// If the reply is malformed.
    pub(crate) fn of(reply: &Bytes, state: &[u32]) -> Result<ItemStatus, Malformed> {
        let status = state.first().copied().unwrap_or_default();
        Ok(ItemStatus {
            message: protobuf::only(reply, status, |_| Ok(true))?,
            state: protobuf::varint(reply, state)?,
        })
    }
}

impl Statuses {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Statuses {
        Statuses {
            kept: LruCache::unbounded(),
            by_pod: HashMap::new(),
            size: 0,
            limit,
            changes: 0,
        }
    }

    /// The number of times that items may have changed. Read this before a call for a status is sent.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Keeps the status of an item, unless an item may have changed since the call was sent. `changes` is the value of
    /// [`Statuses::changes`] at that time. `pod` is the pod of a container; empty if it is unknown. If there is no
    /// room, drops the statuses that were unused for longest.
    pub(crate) fn keep(
        &mut self,
        kind: Kind,
        id: &str,
        pod: &str,
        status: ItemStatus,
        changes: u64,
    ) {
        let size = size(&status);
        if self.changes != changes || size > self.limit {
            return;
        }
        let (key, pod) = match kind {
            Kind::Pod => ((kind, id.to_owned()), id.to_owned()),
            Kind::Container => ((kind, id.to_owned()), pod.to_owned()),
        };
        self.drop_status(&key);
        self.size += size;
        self.by_pod
            .entry(pod.clone())
            .or_default()
            .insert(key.clone());
        self.kept.put(key, KeptStatus { status, pod });
        while (self.size > self.limit || self.kept.len() > MOST)
            && let Some((unused, _)) = self.kept.peek_lru()
        {
            let unused = unused.clone();
            self.drop_status(&unused);
        }
    }

    fn drop_status(&mut self, key: &ItemKey) {
        let Some(KeptStatus { status, pod }) = self.kept.pop(key) else {
            return;
        };
        self.size -= size(&status);
        if let Some(of_pod) = self.by_pod.get_mut(&pod) {
            of_pod.remove(key);
            if of_pod.is_empty() {
                self.by_pod.remove(&pod);
            }
        }
    }

    /// The last status of an item.
    pub(crate) fn get(&mut self, kind: Kind, id: &str) -> Option<ItemStatus> {
        let kept = self.kept.get(&(kind, id.to_owned()))?;
        Some(kept.status.clone())
    }

    /// The kept statuses of this kind with their ids, the longest unused first.
    pub(crate) fn all(&self, kind: Kind) -> impl Iterator<Item = (&str, &ItemStatus)> {
        self.kept
            .iter()
            .rev()
            .filter(move |((of, _), _)| *of == kind)
            .map(|((_, id), kept)| (id.as_str(), &kept.status))
    }

    /// Drops the statuses of items that may have changed.
    pub(crate) fn changed<'a>(&mut self, items: impl IntoIterator<Item = (Kind, &'a str)>) {
        self.changes += 1;
        for (kind, id) in items {
            self.drop_status(&(kind, id.to_owned()));
        }
    }

    /// Drops the status of a pod that may have changed, the statuses of its containers, and those of the containers
    /// that may be in it. Looks at no other status: a backend may send many events.
    pub(crate) fn pod_changed(&mut self, pod: &str) {
        for pod in [pod, ""] {
            let dropped = self.by_pod.remove(pod).unwrap_or_default();
            dropped.iter().for_each(|key| self.drop_status(key));
        }
        self.changes += 1;
    }

    /// Drops the statuses of items that a complete list lacks or shows in another state.
    pub(crate) fn listed(&mut self, list: List, message: &[u8]) {
        let Some(kind) = list.kind() else { return };
        if self.kept.is_empty() {
            return;
        }
        let state = match kind {
            Kind::Pod => pod_sandbox::STATE,
            Kind::Container => container::STATE,
        };
        let states: HashMap<_, _> = protobuf::all_bytes(message, &[ITEMS])
            .unwrap_or_default()
            .into_iter()
            .filter_map(|item| {
                let id = protobuf::string(item, LISTED_ID).ok()?;
                Some((id, protobuf::varint(item, &[state]).ok()?))
            })
            .collect();
        let outdated: Vec<_> = self
            .kept
            .iter()
            .filter(|((of, id), kept)| {
                *of == kind && states.get(id.as_str()) != Some(&kept.status.state)
            })
            .map(|(key, _)| key.clone())
            .collect();
        outdated.iter().for_each(|key| self.drop_status(key));
        self.changes += u64::from(!outdated.is_empty());
    }

    /// Drops all statuses.
    pub(crate) fn clear(&mut self) {
        self.changes += 1;
        self.kept.clear();
        self.by_pod.clear();
        self.size = 0;
    }
}

fn size(status: &ItemStatus) -> usize {
    status.message.len() + PER_STATUS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: u64, length: usize) -> ItemStatus {
        let message = Bytes::from(vec![0; length]);
        ItemStatus { message, state }
    }

    fn statuses(limit: usize, ids: &[&str]) -> Statuses {
        let mut statuses = Statuses::new(limit);
        for id in ids {
            statuses.keep(Kind::Container, id, "", status(1, 10), 0);
        }
        statuses
    }

    fn has(statuses: &mut Statuses, id: &str) -> bool {
        statuses.get(Kind::Container, id).is_some()
    }

    /// A list of containers with these ids and states.
    fn list(containers: &[(&str, u64)]) -> Vec<u8> {
        let mut list = bytes::BytesMut::new();
        for (id, state) in containers {
            let mut item = bytes::BytesMut::new();
            protobuf::put_bytes(&mut item, container::ID, id.as_bytes());
            protobuf::put_varint(&mut item, container::STATE, *state);
            protobuf::put_bytes(&mut list, ITEMS, &item);
        }
        list.to_vec()
    }

    #[test]
    fn the_status_that_was_unused_for_longest_goes_first() {
        let mut statuses = statuses(2 * (10 + PER_STATUS), &["a", "b"]);
        assert!(has(&mut statuses, "a"));
        statuses.keep(Kind::Container, "c", "", status(1, 10), 0);
        assert!(has(&mut statuses, "a") && has(&mut statuses, "c"));
        assert!(!has(&mut statuses, "b"));
        statuses.keep(Kind::Container, "d", "", status(1, 3 * PER_STATUS), 0);
        assert!(!has(&mut statuses, "d"), "it has no room");
        assert!(has(&mut statuses, "a"), "it takes no room from others");
        statuses.keep(Kind::Container, "a", "", status(1, 10), 0);
        assert_eq!(statuses.size, 2 * (10 + PER_STATUS));
    }

    #[test]
    fn the_number_of_statuses_is_limited() {
        let mut statuses = statuses(usize::MAX, &["first", "second"]);
        for number in 1..MOST {
            statuses.keep(Kind::Container, &number.to_string(), "", status(1, 0), 0);
        }
        assert!(!has(&mut statuses, "first") && has(&mut statuses, "second"));
    }

    #[test]
    fn a_status_is_dropped_when_its_item_may_have_changed() {
        let mut statuses = statuses(usize::MAX, &["a", "b"]);
        let sent = statuses.changes();
        statuses.changed([(Kind::Container, "a")]);
        assert!(!has(&mut statuses, "a") && has(&mut statuses, "b"));
        statuses.keep(Kind::Container, "a", "", status(1, 10), sent);
        assert!(
            !has(&mut statuses, "a"),
            "the reply is older than the change"
        );
        statuses.clear();
        assert!(!has(&mut statuses, "b"));
    }

    #[test]
    fn a_list_drops_the_statuses_that_it_contradicts() {
        let mut statuses = statuses(usize::MAX, &["same", "changed", "missing"]);
        statuses.keep(Kind::Pod, "missing", "", status(0, 10), 0);
        statuses.listed(List::Containers, &list(&[("same", 1), ("changed", 2)]));
        assert!(has(&mut statuses, "same"));
        assert!(!has(&mut statuses, "changed") && !has(&mut statuses, "missing"));
        assert!(statuses.get(Kind::Pod, "missing").is_some());
    }

    #[test]
    fn a_changed_pod_drops_the_statuses_of_its_containers_and_of_containers_without_a_known_pod() {
        let mut statuses = statuses(usize::MAX, &["unknown"]);
        for (id, pod) in [
            ("a", "old"),
            ("a", "changed"),
            ("b", "changed"),
            ("c", "other"),
        ] {
            statuses.keep(Kind::Container, id, pod, status(1, 10), 0);
        }
        statuses.keep(Kind::Pod, "changed", "", status(1, 10), 0);
        statuses.pod_changed("changed");
        for id in ["a", "b", "unknown"] {
            assert!(!has(&mut statuses, id), "{id}");
        }
        assert!(has(&mut statuses, "c"));
        assert!(statuses.get(Kind::Pod, "changed").is_none());
        assert_eq!(statuses.size, 10 + PER_STATUS);
        statuses.changed([(Kind::Container, "c")]);
        assert!(statuses.by_pod.is_empty() && statuses.size == 0);
    }
}
