//! What a merged reply has of a backend that does not answer: its last known list, or nothing where that is allowed.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::call::{Call, Failed};
use crate::fanout::Share;
use crate::filter::{filter, without_inside};
use crate::link::State;
use crate::lists::Snapshot;
use crate::owners::{BackendId, Owners};
use crate::rpc::{self, Kind, List, Row, Silent, Then};
use crate::switch::Switch;
use crate::wire;

/// How old cached stats may be. Without stats a pod is the first to be evicted, so those of a backend that is late for as
/// long as a pod takes to end are better than none; older ones would hide a pod that uses up the node's memory.
pub(crate) const STALE_STATS: Duration = Duration::from_secs(120);

impl Switch {
    /// A backend's part of a merged reply: its `own` share, or what is served from cache. A list is on disk before it is
    /// returned.
    ///
    /// The backend is waited for as long as its `list_timeout` or `stats_timeout` if something is cached, else until it is
    /// proven to hang.
    ///
    /// # Errors
    /// What `own` says; `Unavailable` if the backend hangs, or if a list cannot be saved.
    pub(crate) async fn with_stand_in(
        &self,
        call: &Call,
        backend: &Backend,
        own: impl Future<Output = Result<Share, Failed>>,
    ) -> Result<Share, Failed> {
        let share = self.own_or_cached(call, backend, own).await;
        backend.note_list(call, share.as_ref().err());
        let share = share?;
        if call.row.is_list() {
            // The cache has what could not be saved: it must not be served instead.
            backend.saved().await?;
        }
        Ok(share)
    }

    async fn own_or_cached(
        &self,
        call: &Call,
        backend: &Backend,
        own: impl Future<Output = Result<Share, Failed>>,
    ) -> Result<Share, Failed> {
        if let Some(status) = backend.silence(call)
            && let Some(share) = self.stand_in(call, backend, &status)
        {
            return Ok(share);
        }
        let mut own = std::pin::pin!(backend.patiently(own));
        let answered = match tokio::time::timeout(backend.timeout(call.row), &mut own).await {
            Ok(answered) => answered,
            Err(_) => {
                let status = backend.unavailable("it is late");
                let share = self.stand_in(call, backend, &status);
                // A last list may be had by the next call.
                match share.is_some() || call.row.is_list() {
                    true => backend.is_late(call),
                    false => backend.suspect(),
                }
                match share {
                    Some(share) => return Ok(share),
                    None => own.await,
                }
            }
        };
        match answered {
            Err(Failed::Status(status)) if status.code() == Code::Unavailable => {
                let Some(share) = self.stand_in(call, backend, &status) else {
                    return Err(Failed::Status(status));
                };
                // Its connection may live on, and then nothing else would tell that it answers again.
                if call.speaks_for_all() {
                    backend.miss(call.row);
                }
                Ok(share)
            }
            answered => answered,
        }
    }

    /// What stands in for `backend`, which is silent as `status` says; `None` if nothing can.
    fn stand_in(&self, call: &Call, backend: &Backend, status: &Status) -> Option<Share> {
        let is_default = backend.id == call.live.speaker();
        match (call.row.merge().and_then(rpc::silent)?, &call.row.then) {
            (Silent::LastKnown, Then::Learn(list)) => {
                let message = self.last_known(call, *list, backend)?;
                backend.stands_in(call.row, status);
                Some(Share::Message(message))
            }
            (Silent::LastKnownOrOmitted, Then::Keep(list)) => {
                self.cached_stats(call, *list, backend, status)
            }
            (Silent::OmittedUnlessDefault, _) if !is_default => Some(omit(call, backend, status)),
            _ => None,
        }
    }

    /// The last whole list of `backend`, as the call filters it; `None` if it is too old, or lacks what the backend
    /// is known to own.
    fn last_known(&self, call: &Call, list: List, backend: &Backend) -> Option<Bytes> {
        let message = self.whole_list(list, backend, &call.message())?;
        let renamed = self.listed_as(list, backend, &message).ok()?;
        Some(renamed.unwrap_or(message))
    }

    /// The same under the names that the backend has for handlers.
    fn whole_list(&self, list: List, backend: &Backend, request: &[u8]) -> Option<Bytes> {
        let message = self.cached(list, backend, backend.stale_lists())?;
        self.own_items(list, backend, &message, request)
    }

    /// Why lists of this kind fail now because of `backend`; `None` if they do not.
    pub(crate) fn list_problem(&self, list: List, backend: &Backend) -> Option<String> {
        if !backend.has_joined() {
            return None;
        }
        let known = backend.known();
        let is_away = !matches!(backend.link().state, State::Ready(_));
        let is_silent = is_away && !backend.is_awaited() || known.misses(list);
        if is_silent && self.whole_list(list, backend, &[]).is_none() {
            let cause = self.unserved(list, backend);
            return Some(match is_away {
                true => cause,
                false => format!("it is late with a list, and {cause}"),
            });
        }
        if let (false, Some(cause)) = (is_away, known.failed_lists.get(&list)) {
            return Some(format!(
                "a list of it failed with {cause}; see the log of its runtime"
            ));
        }
        let cause = backend.save_failure()?;
        Some(format!(
            "{cause}; make room in the directories of the state, or fix their permissions"
        ))
    }

    /// Why a list of pods, containers or images fails now because of `backend`; `None` if none does.
    pub(crate) fn lists_problem(&self, backend: &Backend) -> Option<String> {
        let mut lists = List::OF_ITEMS.into_iter();
        lists.find_map(|(list, _)| self.list_problem(list, backend))
    }

    /// Why the cached list of `backend` cannot be served.
    fn unserved(&self, list: List, backend: &Backend) -> String {
        let age = backend.known().lists.get(list).map(Snapshot::age);
        let limit = backend.stale_lists();
        match age {
            _ if !self.question.has_listed(backend.id) => "it has never answered".to_owned(),
            Some(age) if age >= limit => {
                format!("its cached list is older than `stale_lists` ({limit:?})")
            }
            _ => "its cached list is incomplete".to_owned(),
        }
    }

    /// The items of a cached list that `backend` still owns, as `request` filters them; `None` if the list lacks what
    /// clients may have seen.
    pub(crate) fn own_items(
        &self,
        list: List,
        backend: &Backend,
        message: &[u8],
        request: &[u8],
    ) -> Option<Bytes> {
        let Some(kind) = list.kind() else {
            return filter(list, message, request, |_| true).ok();
        };
        let owners = self.owners();
        // Quicker than a look at each, where there are very many.
        if owners.count_of(kind, backend.id) > wire::fields(message).count() {
            return None;
        }
        let mut missing = owners.of(kind, backend.id);
        // What was created since stands a second time behind the list.
        let filtered = filter(list, message, request, |id| missing.remove(id));
        // On a container whose pod no list of pods has, the kubelet crashes.
        let torn = kind == Kind::Container
            && (owners.has_stray(backend.id) || self.has_later_pod(backend, &owners));
        (missing.is_empty() && !torn).then_some(filtered.ok()?)
    }

    /// Whether the cached list of `row` lacks what clients may know of, and nobody has asked for the list again.
    pub(crate) fn lacks(&self, backend: &Backend, row: &Row) -> bool {
        let known = backend.known();
        let Then::Learn(list) = row.then else {
            return false;
        };
        if known.is_late_with(row) {
            return false;
        }
        let lacks = |message: Bytes| self.own_items(list, backend, &message, &[]).is_none();
        match list.kind() {
            Some(_) => known.lists.message(list).is_some_and(lacks),
            None => known.lists.is_outdated(list),
        }
    }

    /// Whether `backend` showed a pod that others created after its containers were listed: the pod would have none.
    fn has_later_pod(&self, backend: &Backend, owners: &Owners) -> bool {
        let containers = backend
            .known()
            .lists
            .get(List::Containers)
            .map(|list| list.mark);
        containers.is_some_and(|listed| owners.has_pod_since(backend.id, listed))
    }

    /// The cached stats of `backend`, else nothing; `None` where nothing would be an answer that is wrong: the call is
    /// for one pod or container, which its owner may know.
    fn cached_stats(
        &self,
        call: &Call,
        list: List,
        backend: &Backend,
        status: &Status,
    ) -> Option<Share> {
        if let Some(message) = self.last_stats(call, list, backend) {
            backend.is_served_from_cache(call, status);
            return Some(Share::Message(message));
        }
        (!call.names_one()).then(|| omit(call, backend, status))
    }

    /// The last stats of `backend`, as the call filters them, of what it still owns; `None` if they are too old, or have
    /// nothing of what the call asks for: that may have come since.
    fn last_stats(&self, call: &Call, list: List, backend: &Backend) -> Option<Bytes> {
        let most = match list {
            // Samples come under the descriptors that clients were given, however long a backend has been away.
            List::MetricDescriptors => Duration::MAX,
            _ => backend.stale_lists().min(STALE_STATS),
        };
        let message = self.cached(list, backend, most)?;
        let message = self.still_owned(call, list, backend.id, &message)?;
        if message.is_empty() && !call.asks_for_all() {
            return None;
        }
        let changed = self.listed_as(list, backend, &message).ok()?;
        Some(changed.unwrap_or(message))
    }

    fn still_owned(
        &self,
        call: &Call,
        list: List,
        backend: BackendId,
        message: &Bytes,
    ) -> Option<Bytes> {
        let Some((kind, _)) = list.about() else {
            return Some(message.clone());
        };
        let owners = self.owners();
        let (items, containers) = (
            owners.of(kind, backend),
            owners.of(Kind::Container, backend),
        );
        let request = call.message();
        let pod = call.filters_pod(&request);
        let wanted = |id: &str| {
            let in_pod = |pod| owners.pod_of(id).is_some_and(|of| of.starts_with(pod));
            items.contains(id) && pod.is_none_or(in_pod)
        };
        let left = filter(list, message, &request, wanted).ok()?;
        let inside = without_inside(list, &left, |id| containers.contains(id)).ok()?;
        Some(inside.unwrap_or(left))
    }

    fn cached(&self, list: List, backend: &Backend, most: Duration) -> Option<Bytes> {
        let lists = backend.known().lists;
        let age = lists.get(list)?.age();
        (age < most).then(|| lists.message(list)).flatten()
    }
}

fn omit(call: &Call, backend: &Backend, status: &Status) -> Share {
    backend.is_omitted(call, status);
    Share::Nothing(status.clone().into())
}
