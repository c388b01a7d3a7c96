//! Replaces a backend's part of a merged reply if the part cannot be used: the backend does not answer, returns an
//! error, or sends a reply that criswitch cannot read or that is too large. The backend's cached list replaces the
//! part. Without such a list, the backend is omitted if the call allows that.

use std::time::Duration;

use criswitch_config::{BackendId, duration_text};
use criswitch_cri::rpc::filter::{filter, without_nested_containers};
use criswitch_cri::rpc::{IfUnimplemented, Items, Kind, List, Patience, Row, Silent};
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::backend::known::Failure;
use crate::backend::lists::Snapshot;
use crate::backend::{Backend, Replaced};
use crate::call::{Call, Failed, Listing};
use crate::dispatch::fanout::Share;
use crate::errors;
use crate::gate::Readable;
use crate::ownership::Owners;
use crate::ownership::lookup::OwnerLookup;
use crate::switch::view::View;
use crate::switch::{Switch, cached};
use crate::topology::Live;

/// The largest age of cached stats that are served: about the time that a pod takes to end. The kubelet evicts pods
/// without stats first, so cached stats are better than none. Older stats would hide a pod that uses up the node's
/// memory.
pub(crate) const STALE_STATS: Duration = Duration::from_secs(120);

/// The longest wait for an answer that nothing can replace, such as a list without a cached one.
pub(crate) const NEEDED_LIMIT: Duration = Duration::from_secs(10);

/// A backend's part of a merged reply: its own reply (the result of `own`). If that reply cannot be used (the backend
/// is silent, returns an error, or its reply cannot be read), cached items replace it. Without cached items, the
/// backend is omitted if the call allows that.
///
/// Waits for `own` for `list_timeout` or `stats_timeout`. If nothing is cached by then and the call may not omit the
/// backend, waits until `own` ends or a probe has proven that the backend hangs. For a list this wait takes at most
/// [`NEEDED_LIMIT`]. Does not wait for a backend that has not answered an earlier call of the RPC.
///
/// # Errors
/// The error of `own` if nothing can replace it, or if clients act on its code; `Unavailable` if the backend hangs or
/// is late.
pub(crate) async fn with_replacement(
    part: Part<'_>,
    own: impl Future<Output = Result<Share, Failed>>,
) -> Result<Share, Failed> {
    part.noted(part.own_or_cached(own).await)
}

/// Like [`with_replacement`], for an answer that has come already: `answered`.
///
/// # Errors
/// The error in `answered` if nothing can replace it, or if clients act on its code.
pub(crate) fn or_replacement(
    part: Part<'_>,
    answered: Result<Share, Failed>,
) -> Result<Share, Failed> {
    part.noted(part.usable(answered))
}

/// The part of `backend` in the merged reply to `call`.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub switch: &'a Switch,
    pub call: &'a Call,
    pub how: &'a Items,
    pub backend: &'a Backend,
}

impl Part<'_> {
    /// Records whether the backend's answer can be used, if the call asks for all items.
    fn noted(self, share: Result<Share, Failed>) -> Result<Share, Failed> {
        let Part { call, backend, .. } = self;
        let failed = match &share {
            _ if !call.asks_for_all() => return share,
            // Whether a large part can be used is known only when all backends have answered.
            Ok(Share::Large(..) | Share::Lacking(_)) => return share,
            Ok(Share::Own(_)) => None,
            Ok(Share::Replaced(_, why)) if why.is_silence() => return share,
            Err(why) if self.is_acted_on(why) => return share,
            Ok(Share::Replaced(_, why)) | Err(why) if why.is_of_clients() => {
                backend.record.doubt(call.row);
                return share;
            }
            Ok(Share::Replaced(_, why)) | Err(why) => Some(why.code_and_text()),
        };
        backend.record.note_answer(call.row, failed.as_deref());
        share
    }

    async fn own_or_cached(
        self,
        own: impl Future<Output = Result<Share, Failed>>,
    ) -> Result<Share, Failed> {
        let Part { call, backend, .. } = self;
        let is_list = call
            .listing()
            .is_some_and(|listing| !listing.list.is_stats());
        // A default backend that has not reported its file systems yet may still be starting.
        let is_short = call.row.patience == Patience::Short
            && backend.record.learn(|known| known.disks.has_reported());
        if let Some(status) = backend.silence(call.contribution()) {
            // A backend that is down may be back, so the call waits for the next attempt to connect. If the backend is
            // late with the call, the session asks it.
            let is_late = backend.record.known().is_late_with(call.row);
            let fails_at_once = is_short || is_late || backend.connection.is_ready();
            match self.replacement(status.into()) {
                Ok(share) => return Ok(share),
                Err(why) if fails_at_once => return Err(why),
                Err(_) => {}
            }
        }
        let mut own = std::pin::pin!(own);
        let answered = match call.within(backend.timeout(call.row), &mut own).await {
            Ok(answered) => answered,
            Err(late) => {
                let why = backend.timed_out(call.row);
                let share = self.replacement(if late.is_fault_of_backend {
                    why.into()
                } else {
                    errors::of_deadline(why).into()
                });
                // Ask again in the background, so that the next call may find a newer list in the cache.
                if late.is_fault_of_backend && (share.is_ok() || is_list || is_short) {
                    backend.record.note_late(call.contribution())
                } else {
                    backend.wakeups.suspected.notify_one()
                }
                match share {
                    Ok(share) => return Ok(share),
                    Err(why) if is_short => return Err(why),
                    Err(why) if is_list || call.row.patience == Patience::Short => {
                        call.within(NEEDED_LIMIT, own).await.map_err(|late| {
                            if late.is_fault_of_backend {
                                backend.record.note_late(call.contribution());
                            }
                            why
                        })?
                    }
                    Err(_) => own.await,
                }
            }
        };
        self.usable(answered)
    }

    /// The part in `answered`. If it cannot be used, its replacement.
    fn usable(self, answered: Result<Share, Failed>) -> Result<Share, Failed> {
        let Part { call, backend, .. } = self;
        let why = match answered {
            Err(why) if !self.is_acted_on(&why) => why,
            answered => return answered,
        };
        let share = self.replacement(why)?;
        // The connection may stay open although the backend is silent. So the session repeats the call in the
        // background: the reply shows that the backend answers again.
        if let Share::Replaced(_, why) = &share
            && why.is_silence()
            && call.counts_for_all()
        {
            backend.record.miss(call.row);
        }
        Ok(share)
    }

    /// Replaces a part of `backend` that cannot be used because of `why`: by cached items or by an omission.
    ///
    /// # Errors
    /// `why`, if neither is possible.
    fn replacement(self, why: Failed) -> Result<Share, Failed> {
        let Part { call, backend, .. } = self;
        let mut contribution = call.contribution();
        if !why.is_silence() || why.is_of_clients() {
            // Only the next good answer to a call for all items shows that the answers can be used again.
            contribution.is_of_all = call.asks_for_all() && !why.is_of_clients();
        }
        let is_default = backend.id == call.live.default_backend();
        let (by, message) = match (self.how.silent, call.listing()) {
            (Silent::LastKnown, Some(listing)) => match self.renamed_list(listing) {
                Some(message) => {
                    let message = self.counted(listing.list, message)?;
                    (Replaced::CachedList, Some(message))
                }
                None => return Err(why),
            },
            (Silent::LastKnownOrOmitted, Some(listing)) => match self.last_stats(listing) {
                Some(message) => {
                    let message = self.counted(listing.list, message)?;
                    (Replaced::CachedStats, Some(message))
                }
                // An empty reply to a call that names one pod or container would be wrong, because the backend may have
                // the stats.
                None if listing.names_one => return Err(why),
                None => (Replaced::Nothing, None),
            },
            (Silent::OmittedUnlessDefault, _) if !is_default => (Replaced::Nothing, None),
            (Silent::OmittedUnlessDefault, _) => {
                match backend.record.learn(|known| known.disks.last_reply()) {
                    // Cached file systems replace a failure that criswitch found itself, but not an error that the
                    // backend returned.
                    reply @ Some(_) if matches!(why, Failed::Status(_)) => {
                        (Replaced::CachedStats, reply)
                    }
                    _ => return Err(why),
                }
            }
            _ => return Err(why),
        };
        backend.record.note_replaced(contribution, by, &why);
        Ok(Share::Replaced(message, why))
    }

    /// `message`, which replaces the backend's answer. If it is a copy of the cached list, its memory is counted,
    /// because the call may wait for other backends.
    ///
    /// # Errors
    /// `ResourceExhausted` if the backend's memory for replies is full.
    fn counted(self, list: List, message: Readable) -> Result<Readable, Status> {
        let Part { call, backend, .. } = self;
        let cached = backend.record.known().lists.message(list);
        if cached.is_some_and(|cached| cached.as_ptr() == message.as_ptr()) {
            return Ok(message);
        }
        let held = backend.memory.of(call.user, call.row).held();
        let held = backend.resized(held, message.len())?;
        Ok(message.holding(held))
    }

    /// The backend's own list `message`, as `show` makes it for the client. The memory of a copy is counted, because
    /// the client may read the reply slowly; that of a rewritten copy before it is made.
    ///
    /// # Errors
    /// The errors of `show`; `ResourceExhausted` if the backend's memory for replies is full.
    pub(super) fn shown(
        self,
        list: List,
        message: Readable,
        show: impl FnOnce(&View<'_>, &Readable) -> Result<Option<Readable>, Status>,
    ) -> Result<Readable, Status> {
        let Part {
            switch,
            call,
            backend,
            ..
        } = self;
        let view = View::of(switch);
        let rewritten = view.rewrites(list, backend).then_some(message.len());
        let held = backend.memory.of(call.user, call.row).held();
        let held = backend.resized(held, rewritten.unwrap_or_default())?;
        let Some(shown) = show(&view, &message)? else {
            return Ok(message);
        };
        let held = backend.resized(held, shown.len())?;
        Ok(shown.holding(held))
    }

    /// Whether clients act on the code of this failure, so that nothing may replace it: a client that gets
    /// `Unimplemented` makes a different call. This does not hold for an RPC that every runtime must have, because
    /// clients cannot work without it.
    fn is_acted_on(self, why: &Failed) -> bool {
        why.code() == Code::Unimplemented && self.how.lacking != IfUnimplemented::Error
    }

    /// The cached list of `backend`, filtered by `call`, with the routing table's names for handlers. `None` if the
    /// list cannot be served, or if it may lack the item that the call names: a pod whose creation has an unknown
    /// result, or an image that was pulled later. A call for all images gets even an outdated list, so that the kubelet
    /// can still remove the images in it.
    fn renamed_list(self, listing: &Listing) -> Option<Readable> {
        let (switch, call, backend) = (self.switch, self.call, self.backend);
        let (list, uid) = (listing.list, &listing.uid);
        if !uid.is_empty() && switch.owners().creations.may_have(backend.id, uid) {
            return None;
        }
        if !call.asks_for_all() && backend.record.known().lists.is_outdated(list) {
            return None;
        }
        let message = whole_list(&switch.owners(), list, backend, &call.message())?;
        Some(
            View::of(switch)
                .shown(list, backend, &message)
                .ok()?
                .unwrap_or(message),
        )
    }

    /// Makes the cached part of a list of pods or containers again, with the owners that are known now: items may have
    /// passed to `backend` since [`Part::replacement`] made the part.
    ///
    /// # Errors
    /// `Unavailable` if the cached list can no longer be served; `ResourceExhausted` if the backend's memory for
    /// replies is full.
    pub(super) fn cached_again(self, listing: &Listing) -> Result<Readable, Status> {
        let Part {
            switch, backend, ..
        } = self;
        let message = self.renamed_list(listing).ok_or_else(|| {
            let cause = unserved(&self.call.live, &switch.question, listing.list, backend);
            backend.unavailable(&cause)
        })?;
        self.counted(listing.list, message)
    }

    /// The cached stats of the items that `backend` still owns, filtered as the call asks. `None` if the stats are too
    /// old. Also `None` if the call has a filter and no item matches: the item may be newer than the stats.
    fn last_stats(self, listing: &Listing) -> Option<Readable> {
        let (switch, backend, list) = (self.switch, self.backend, listing.list);
        let most = match list {
            // Descriptors have no age limit, because clients keep the descriptors that they received, and samples must
            // fit these descriptors.
            List::MetricDescriptors => Duration::MAX,
            _ => backend.stale_lists().min(STALE_STATS),
        };
        let message = cached(list, backend, most)?;
        let message = still_owned(&switch.owners(), self.call, listing, backend.id, &message)?;
        if message.is_empty() && !listing.is_whole {
            return None;
        }
        Some(
            View::of(switch)
                .shown(list, backend, &message)
                .ok()?
                .unwrap_or(message),
        )
    }
}

/// The cached list of `backend`, filtered by `request`. Handlers have the backend's own names. `None` if no list is
/// cached, the list is too old, or it lacks items that the backend is known to own.
fn whole_list(owners: &Owners, list: List, backend: &Backend, request: &[u8]) -> Option<Readable> {
    let message = cached(list, backend, backend.stale_lists())?;
    cached::own_items(owners, list, backend, &message, request)
}

/// Returns why merged lists of the kind `list` fail now because of `backend`; `None` if `backend` does not make them
/// fail.
pub(crate) fn list_problem(
    live: &Live,
    owners: &Mutex<Owners>,
    question: &OwnerLookup,
    list: List,
    backend: &Backend,
) -> Option<String> {
    if !backend.has_joined() {
        return None;
    }
    let known = backend.record.known();
    let is_away = !backend.connection.is_ready();
    let is_silent = is_away && !backend.is_awaited() || known.misses(list);
    let failure = known.failure_of(list).filter(|_| !is_away);
    let is_served = || {
        !live.has_one_backend()
            && cached(list, backend, backend.stale_lists())
                .is_some_and(|message| cached::is_whole(owners, list, backend, &message))
    };
    if (is_silent || failure.is_some()) && !is_served() {
        let cause = unserved(live, question, list, backend);
        return Some(match failure {
            Some(failure) => failed(failure, &format!(", and {cause}")),
            None if is_away => cause,
            None => format!("it did not answer a list call in time, and {cause}"),
        });
    }
    if let Some(failure) = failure
        && !live.joined().iter().any(|it| is_usable(it, list))
    {
        return Some(failed(failure, ""));
    }
    let cause = backend.saving.failure()?;
    Some(format!(
        "{cause}; free space in runtime_dir and state_dir, or fix their permissions"
    ))
}

fn failed(failure: &Failure, more: &str) -> String {
    let cause = &failure.cause;
    format!("its list failed: {cause}{more}; see the log of its runtime")
}

/// Whether the last answer of `backend` to a call for this list can be used.
fn is_usable(backend: &Backend, list: List) -> bool {
    let known = backend.record.known();
    backend.connection.is_ready() && !known.misses(list) && known.failure_of(list).is_none()
}

/// Why a merged list of pods, containers or images fails now because of `backend`; `None` if `backend` makes none of
/// them fail.
pub(crate) fn lists_problem(
    live: &Live,
    owners: &Mutex<Owners>,
    question: &OwnerLookup,
    backend: &Backend,
) -> Option<String> {
    List::OF_ITEMS
        .into_iter()
        .find_map(|(list, _)| list_problem(live, owners, question, list, backend))
}

/// Whether merged lists of all pods and of all containers would succeed now. Cached lists count for backends that do
/// not answer.
pub(crate) fn lists_are_whole(switch: &Switch) -> bool {
    let (live, owners, question) = (switch.live(), &switch.owners, &switch.question);
    live.joined().iter().all(|backend| {
        question.has_listed(backend.id)
            && [List::Pods, List::Containers]
                .into_iter()
                .all(|list| list_problem(&live, owners, question, list, backend).is_none())
    })
}

/// Why the cached list of `backend` cannot be served.
fn unserved(live: &Live, question: &OwnerLookup, list: List, backend: &Backend) -> String {
    let age = backend.record.known().lists.get(list).map(Snapshot::age);
    let limit = backend.stale_lists();
    match age {
        _ if !question.has_listed(backend.id) => "it has not been listed yet".to_owned(),
        _ if live.has_one_backend() => {
            "its cached list is not served, because no other backend takes part in lists".to_owned()
        }
        Some(age) if age >= limit => {
            format!(
                "its cached list is older than `stale_lists` ({})",
                duration_text(limit)
            )
        }
        None => "it has no cached list".to_owned(),
        Some(_) => "its cached list is incomplete".to_owned(),
    }
}

/// Whether criswitch must request the list of `row` again: the cached list lacks items that clients may know or was
/// dropped as outdated, and no task requests the list yet.
pub(crate) fn lacks(owners: &Owners, backend: &Backend, row: &Row) -> bool {
    let known = backend.record.known();
    let Some(list) = row.list() else {
        return false;
    };
    if known.is_late_with(row) {
        return false;
    }
    match list.kind() {
        Some(_) => known.lists.message(list).is_some_and(|message| {
            cached::own_items(owners, list, backend, &message, &[]).is_none()
        }),
        None => known.lists.is_outdated(list),
    }
}

fn still_owned(
    owners: &Owners,
    call: &Call,
    listing: &Listing,
    backend: BackendId,
    message: &Readable,
) -> Option<Readable> {
    let Listing { list, pod, .. } = listing;
    let Some((kind, _)) = list.about() else {
        return Some(message.clone());
    };
    let items = owners.of(kind, backend);
    let containers = owners.of(Kind::Container, backend);
    let left = filter(*list, message, &call.message(), |id| {
        items.contains(id) && (pod.is_empty() || is_in_pod(owners, id, pod))
    })
    .ok()?;
    Some(
        without_nested_containers(*list, &left, |id| containers.contains(id))
            .ok()?
            .unwrap_or(left),
    )
}

/// Whether the id of the container's pod begins with `pod`.
fn is_in_pod(owners: &Owners, container: &str, pod: &str) -> bool {
    let of = owners.containers.pod_of(container);
    of.is_some_and(|of| of.starts_with(pod))
}

fn cached(list: List, backend: &Backend, most: Duration) -> Option<Readable> {
    let lists = backend.record.known().lists;
    let age = lists.get(list)?.age();
    (age < most).then(|| lists.message(list)).flatten()
}
