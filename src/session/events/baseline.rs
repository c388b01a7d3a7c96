//! The pods of a backend before a gap in its events: a time without an open stream. A pod that is missing after the gap
//! gets a deletion event.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::fields::LISTED_ID;
use criswitch_cri::rpc::{Kind, List};

use super::synthesized::{gone_pod, removed_pod};
use crate::backend::Backend;
use crate::ownership::{Mark, Owners};
use crate::switch::Switch;
use crate::switch::view::View;

/// The pods of a backend at the beginning of a gap in its events.
pub(super) struct Baseline {
    /// By pod id: a `PodSandboxStatus` that is not ready, for the deletion event.
    pods: HashMap<String, Bytes>,
    at: Mark,
}

impl Baseline {
    pub(super) fn now(switch: &Switch, backend: &Backend) -> Baseline {
        let at = switch.owners().mark();
        let pods = known_pods(&View::of(switch), backend);
        Baseline { pods, at }
    }

    /// Merges the baseline with `later`, the baseline of the next gap: both gaps count as one, because subscribers do
    /// not know the changes in between. Keeps an earlier pod only if it was removed in between.
    pub(super) fn and(self, later: Baseline, owners: &Owners, backend: BackendId) -> Baseline {
        let removed = owners
            .removals
            .pods_of(backend, self.at)
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        self.joined(later, &removed)
    }

    /// Keeps an earlier pod only if it is in `removed` or in `later`, so that the map does not grow with each stream
    /// that ends.
    fn joined(mut self, later: Baseline, removed: &BTreeSet<String>) -> Baseline {
        self.pods.retain(|id, _| removed.contains(id));
        self.pods.extend(later.pods);
        self
    }

    /// Returns the pods that were removed since the gap began and are not in `now`, including pods that were both
    /// created and removed during the gap. Omits pods that another backend owns.
    pub(super) fn gone(
        &self,
        owners: &Owners,
        backend: BackendId,
        now: &BTreeSet<String>,
    ) -> Vec<(String, Bytes)> {
        // An entry from a list replaces the entry from a removal, because the entry from the list has more fields.
        let all: BTreeMap<_, _> = owners
            .removals
            .pods_of(backend, self.at)
            .into_iter()
            .map(|(id, uid)| (id.clone(), removed_pod(&id, &uid)))
            .chain(self.pods.clone())
            .collect();
        all.into_iter()
            .filter(|(id, _)| !now.contains(id) && !owners.is_of_another(Kind::Pod, id, backend))
            .collect()
    }
}

/// Returns the pods that the backend owns, each as a `PodSandboxStatus` that is not ready, with the fields from the
/// backend's last list. The handlers are translated to the names that clients use, because criswitch forgets the
/// handler of a pod that is removed.
pub(super) fn known_pods(view: &View<'_>, backend: &Backend) -> HashMap<String, Bytes> {
    let lists = backend.record.known().lists;
    let listed = lists.message(List::Pods).unwrap_or_default();
    let renamed = view.shown(List::Pods, backend, &listed);
    let listed = renamed.ok().flatten().unwrap_or(listed);
    let mut listed: HashMap<&str, &[u8]> = protobuf::fields(&listed)
        .filter_map(|field| field.ok()?.bytes().ok())
        .filter_map(|pod| Some((protobuf::string(pod, LISTED_ID).ok()?, pod)))
        .collect();
    let gone = view.owners.of(Kind::Pod, backend.id).into_iter().map(|id| {
        let names = view.owners.pods.names(id, backend.id);
        let gone = match listed.remove(id) {
            Some(pod) => gone_pod(id, pod),
            None => removed_pod(id, names.map_or("", |names| &names.uid)),
        };
        (id.to_owned(), gone)
    });
    gone.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::Owners;

    fn known<const N: usize>(ids: [&str; N]) -> Baseline {
        let pods = ids.map(|id| (id.to_owned(), Bytes::new())).into();
        let at = Owners::default().mark();
        Baseline { pods, at }
    }

    #[test]
    fn known_pods_and_pods_removed_without_an_event_are_kept() {
        let removed = BTreeSet::from(["vanished".to_owned(), "another".to_owned()]);
        let before = known(["stays", "vanished", "forgotten"]);
        let joined = before.joined(known(["stays", "new"]), &removed);
        let kept: BTreeSet<_> = joined.pods.keys().map(String::as_str).collect();
        assert_eq!(kept, BTreeSet::from(["new", "stays", "vanished"]));
    }
}
