//! Learns owners, images and cached lists from replies. Changes only the owners and the facts of the backend, and
//! returns the further steps, which `act` takes.

use std::slice;

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Path};
use criswitch_cri::rpc::fields::{CONTAINER_LABELS, CONTAINER_POD, restored_container};
use criswitch_cri::rpc::{Kind, List, StateChange, UID_LABEL, fields};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::backend::lists::Snapshot;
use crate::call::route::Target;
use crate::call::{Call, Lesson, Listing, Request, log, pod_names};
use crate::errors;
use crate::gate::Readable;
use crate::ownership::{
    self, Changed, Claim, LONGEST_ID, Mark, Owned, Owners, PodNames, Unlearned,
};
use crate::switch::pod_requests::{self, PodRequests};
use crate::switch::usable::{has_room, readable, usable};
use crate::switch::view::View;
use crate::switch::{Switch, listed, urls};
use crate::topology::Live;

/// The moment at which criswitch sent a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallMoment {
    /// The moment's position in the order in which facts were learned.
    pub mark: Mark,
    /// The time of the clock at the moment.
    pub at: Instant,
    /// [`Backend::forgets`] of the backend that got the call.
    pub forgets: u64,
}

impl CallMoment {
    /// Returns the current moment. Call this before a call is sent to `backend`, and pass the result on with the reply.
    pub(crate) fn now(owners: &Owners, backend: &Backend) -> CallMoment {
        CallMoment {
            mark: owners.mark(),
            at: Instant::now(),
            forgets: backend.forgets(),
        }
    }

    /// The list that criswitch requested at this moment.
    pub(crate) fn snapshot(self, message: Readable) -> Snapshot {
        Snapshot {
            message,
            taken: self.at,
            mark: self.mark,
        }
    }
}

/// The result of learning from a reply. The caller passes it to [`act`](super::act::act).
#[derive(Debug)]
#[must_use]
pub(crate) struct Learned {
    /// The message for the client, if it differs from the reply. The error says why the reply cannot be used.
    pub message: Result<Option<Bytes>, Status>,
    /// The reply, if every client can decode it and other backends' parts may be merged with it.
    pub readable: Option<Readable>,
    /// The backends whose state on disk is outdated.
    pub save: Changed,
    /// Whether an item was removed or a complete list came: a backend that the configuration does not name may have
    /// lost its last item.
    pub retire: bool,
    /// Whether the backend may have reported other handlers.
    pub republish: bool,
    /// Faults of the backend that are logged.
    pub warn: Vec<Warning>,
}

/// A fault of a backend that does not make its reply unusable.
#[derive(Debug)]
pub(crate) enum Warning {
    /// The backend lists or returns ids that other backends own: the first of these ids, and their number. Either two
    /// sockets belong to one runtime, or the backend has a fault.
    Claims(Claim, usize),
    /// The backend lists this many ready pods with the uid of a pod that criswitch created at another backend.
    Doubles(usize),
    /// The backend lists this many containers with the uid label of another backend's pod.
    Mislabelled(usize),
}

impl Default for Learned {
    fn default() -> Learned {
        Learned {
            message: Ok(None),
            readable: None,
            save: Changed::new(),
            retire: false,
            republish: false,
            warn: Vec::new(),
        }
    }
}

impl Learned {
    /// The result of learning a backend's status, which may report other handlers.
    pub(crate) fn of_status() -> Learned {
        Learned {
            republish: true,
            ..Learned::default()
        }
    }

    /// Logs the faults of `backend`.
    pub(super) fn log(&self, live: &Live, backend: &Backend) {
        let name = backend.name();
        for warning in &self.warn {
            match warning {
                Warning::Claims(Claim { id, owner }, ids) => tracing::warn!(
                    backend = %name, owner = %live.name_of(*owner), ids, first = errors::shown(id),
                    "backend lists or returns ids that another backend owns; the owner keeps these ids, and criswitch \
                     drops what this backend reports about them. If both sockets belong to one runtime, configure one \
                     backend for both"
                ),
                Warning::Doubles(pods) => tracing::warn!(
                    backend = %name, pods,
                    "backend lists ready pods with the uid of a pod that criswitch created at another backend; remove \
                     these pods, or repair the runtime"
                ),
                Warning::Mislabelled(containers) => tracing::warn!(
                    backend = %name, containers,
                    "backend lists containers with the uid label of another backend's pod, in pods with another uid or \
                     in no known pod; criswitch drops them. Repair the runtime"
                ),
            }
        }
    }
}

/// Learns from a reply of `backend`. criswitch learns owners from a backend only while merged calls include the
/// backend. It learns and caches nothing from a backend that has not joined or was removed, nor from a call that was
/// sent before the backend was forgotten. The client still gets the reply, without the items of other backends.
pub(crate) struct Learner<'a> {
    view: View<'a>,
    pod_requests: &'a Mutex<PodRequests>,
    backend: &'a Backend,
    asked: CallMoment,
    may_learn_from: bool,
    /// Whether the reply is a list that may have items of other backends.
    may_have_others: bool,
    learned: Learned,
}

impl<'a> Learner<'a> {
    /// Learns from the reply to a call that was sent to `backend` at `asked`.
    pub(crate) fn new(switch: &'a Switch, backend: &'a Backend, asked: CallMoment) -> Learner<'a> {
        let view = View::of(switch);
        let is_removed = view.live.backend(backend.id).is_err();
        Learner {
            may_learn_from: backend.may_learn_from(asked.forgets) && !is_removed,
            view,
            pod_requests: &switch.pod_requests,
            backend,
            asked,
            may_have_others: false,
            learned: Learned::default(),
        }
    }

    /// Learns from the successful reply to `call`. The reply cannot be used if it does not follow the CRI. The client
    /// gets a list without the items of other backends, and with the routing table's names for handlers.
    pub(crate) fn learn(mut self, call: &Call, reply: &Bytes) -> Learned {
        let learned = self.reply(call, reply);
        let shown = learned.and_then(|message| match call.listing() {
            Some(listing) => self.shown(listing.list, reply),
            None => Ok(message),
        });
        self.end(shown)
    }

    /// Learns from the successful reply to `call`, a part of a merged reply. The client gets a list only after all
    /// parts were learned, because a part may change the owners of another part's items.
    pub(crate) fn learn_share(mut self, call: &Call, reply: &Bytes) -> Learned {
        let message = self.reply(call, reply);
        self.end(message)
    }

    /// Learns and caches a complete list. If the last list had the same items and nothing has changed since, the list
    /// is not decoded.
    pub(crate) fn learn_whole(mut self, list: List, reply: &Bytes) -> Learned {
        let learned = self.whole(list, reply);
        self.end(learned.map(|()| None))
    }

    /// Learns a list.
    pub(crate) fn learn_list(mut self, list: List, message: &Bytes) -> Learned {
        let learned = self.list(list, message);
        self.end(learned.map(|()| None))
    }

    fn end(self, message: Result<Option<Bytes>, Status>) -> Learned {
        Learned {
            message,
            ..self.learned
        }
    }

    fn reply(&mut self, call: &Call, reply: &Bytes) -> Result<Option<Bytes>, Status> {
        let backend = self.backend;
        match &call.lesson {
            Lesson::Nothing | Lesson::ChangedImages => {}
            Lesson::Disks => {
                self.learned.readable = readable(&self.view.live, None, backend, reply)?;
                if let Some(disks) = &self.learned.readable {
                    backend.report_disks(disks);
                }
            }
            Lesson::Image(path, handlers) => {
                let id = protobuf::string(reply, path).unwrap_or_default();
                pod_requests::note_asking(self.pod_requests, call, vec![backend.id], id);
                if let Some(handlers) = handlers {
                    return self.view.renamed(backend, reply, handlers);
                }
            }
            Lesson::Pod(path, names) => {
                let id = self.own_pod(names, reply, path)?;
                self.add_created(List::Pods, id, &call.message());
            }
            Lesson::Container(path, pod) => {
                self.created_container(call, created(backend, reply, path)?, pod)?;
            }
            Lesson::Restored(path, containers, names) => {
                let pod = self.own_pod(names, reply, path)?;
                let request = call.message();
                let mut restored = listed::RestoreRequest::of(&request);
                self.add_created(List::Pods, pod, &restored.pod());
                for (name, id) in all_created(backend, reply, containers)? {
                    self.own_container(id, (pod, None))?;
                    self.add_created(List::Containers, id, &restored.container(pod, name));
                }
            }
            Lesson::Gone(kind, id) => {
                let owners = &mut self.view.owners;
                self.learned.save.extend(owners.forget(*kind, id));
                for (list, kind) in [(List::Pods, Kind::Pod), (List::Containers, Kind::Container)] {
                    let is_left = |id: &str| owners.find(kind, id) == Some(backend.id);
                    backend
                        .record
                        .learn(|known| known.lists.retain(list, is_left));
                }
                self.learned.save.insert(backend.id);
                self.learned.retire = true;
            }
            Lesson::ChangedState(changes, id) => self.change_states(changes, id),
            Lesson::List(listing) => self.listing(listing, reply)?,
            Lesson::Handler(paths) => return self.view.renamed(backend, reply, paths),
            Lesson::Url(path) => return urls::completed(backend, reply, path),
        }
        Ok(None)
    }

    /// Learns from the reply to a call for a list. Stats are only cached, because they show no owners.
    fn listing(&mut self, listing: &Listing, reply: &Bytes) -> Result<(), Status> {
        let list = listing.list;
        if !list.is_stats() && listing.is_whole {
            return self.whole(list, reply);
        }
        let readable = readable(&self.view.live, Some(list), self.backend, reply)?;
        self.learned.readable.clone_from(&readable);
        if !list.is_stats() {
            return self.part(list, reply);
        }
        if let Some(stats) = readable.filter(|_| listing.is_whole) {
            keep_stats(list, self.backend, stats, self.asked);
        }
        Ok(())
    }

    fn whole(&mut self, list: List, reply: &Bytes) -> Result<(), Status> {
        let backend = self.backend;
        if !self.may_learn_from {
            self.learned.readable = readable(&self.view.live, Some(list), backend, reply)?;
            return self.list(list, reply);
        }
        let changes = self.view.owners.changes();
        if let Some(kind) = list.kind()
            && let Some(repeated) = backend
                .record
                .learn(|known| known.lists.repeated(list, reply, changes))
        {
            self.learned.readable = Some(repeated.clone());
            backend.keep_list(list, self.asked.snapshot(repeated));
            let mark = self.asked.mark;
            self.view.owners.listed_again(kind, backend.id, mark);
            self.settled(list);
            return Ok(());
        }
        let read = backend.last_list(list).next_list(list, reply);
        let readable = usable(&self.view.live, Some(list), backend, reply, read)?;
        self.list(list, reply)?;
        self.learned.readable.clone_from(&readable);
        if let Some(readable) = readable {
            self.keep(list, self.asked.snapshot(readable));
        }
        self.count_mislabelled(list, reply);
        self.forget_missing(list);
        let owners = &self.view.owners;
        let items = protobuf::fields(reply)
            .flatten()
            .filter(|field| field.number == fields::ITEMS)
            .count();
        // If the backend owns an item that the list lacks, the item may be newer than the list. The same list,
        // requested later, would remove the item, so the later list must be decoded.
        if let Some(kind) = list.kind()
            && owners.changes() == changes
            && owners.claims(backend.id) == 0
            && owners.count_of(kind, backend.id) == items
        {
            backend
                .record
                .learn(|known| known.lists.learned(list, reply, changes));
        }
        Ok(())
    }

    /// Caches a complete list; keeps the last one instead if merged lists have no room for this one.
    fn keep(&self, list: List, snapshot: Snapshot) {
        if has_room(&self.view, list, self.backend, &snapshot.message) {
            self.backend.keep_list(list, snapshot);
        }
    }

    /// Learns a list that is or may be incomplete. Rejects the list if the backend is at the entry limit, because only
    /// a complete list shows which entries can be forgotten.
    fn part(&mut self, list: List, message: &Bytes) -> Result<(), Status> {
        if let Some(kind) = list.kind()
            && self.view.owners.is_full(kind, self.backend.id)
        {
            return Err(self.backend.bad_reply(&Unlearned::TooMany.to_string()));
        }
        self.list(list, message)
    }

    /// Learns the owners in a list.
    fn list(&mut self, list: List, message: &Bytes) -> Result<(), Status> {
        let Some(kind) = list.kind() else {
            return Ok(());
        };
        let (backend, owners) = (self.backend, &mut self.view.owners);
        let bad = |unlearned: Unlearned| backend.bad_reply(&unlearned.to_string());
        if !self.may_learn_from {
            self.may_have_others = true;
            return ownership::check(message).map_err(bad);
        }
        let learned = owners
            .learn(kind, backend.id, message, self.asked.mark)
            .map_err(bad)?;
        self.warn_of(&learned.claims);
        self.learned.save.extend(learned.changed);
        self.may_have_others = learned.dropped > 0;
        backend.record.drops(learned.dropped);
        Ok(())
    }

    /// The list that was just learned as the client gets it, if it differs from `message`.
    fn shown(&self, list: List, message: &Bytes) -> Result<Option<Bytes>, Status> {
        if self.may_have_others {
            return self.view.shown_without_foreign_items(
                list,
                self.backend,
                message,
                self.asked.mark,
            );
        }
        self.view.shown(list, self.backend, message)
    }

    /// Learns that the backend has created the container `id` in `pod`.
    fn created_container(&mut self, call: &Call, id: &str, pod: &str) -> Result<(), Status> {
        log::note_id(Kind::Container, id);
        let message = call.message();
        let label = protobuf::entry(&message, CONTAINER_LABELS, UID_LABEL);
        self.own_container(id, (pod, label.ok().flatten()))?;
        // The request may have a short id of the pod. Lists always have the full id.
        let request = call.with_string(CONTAINER_POD, pod);
        self.add_created(List::Containers, id, &request.message());
        Ok(())
    }

    fn own_pod<'r>(
        &mut self,
        names: &PodNames,
        reply: &'r [u8],
        path: Path,
    ) -> Result<&'r str, Status> {
        let id = created(self.backend, reply, path)?;
        log::note_id(Kind::Pod, id);
        if !self.may_learn_from {
            return Ok(id);
        }
        let (backend, asked) = (self.backend.id, self.asked.mark);
        let owned = self.view.owners.own_pod(id, backend, names.clone(), asked);
        self.owned(owned)?;
        Ok(id)
    }

    fn own_container(&mut self, id: &str, pod: (&str, Option<&str>)) -> Result<(), Status> {
        if !self.may_learn_from {
            return Ok(());
        }
        let (backend, asked) = (self.backend.id, self.asked.mark);
        let owned = self.view.owners.own_container(id, backend, pod, asked);
        self.owned(owned)
    }

    /// Learns that the backend returned the id of a new pod or container. Rejects an id that another backend owns.
    /// Without the rejection, calls for the id would go to the other backend.
    fn owned(&mut self, owned: Owned) -> Result<(), Status> {
        let Some(claim) = owned.claim else {
            self.learned.save.extend(owned.changed);
            return Ok(());
        };
        self.warn_of(slice::from_ref(&claim));
        let id = errors::shown(&claim.id);
        let owner = self.view.live.name_of(claim.owner);
        Err(self.backend.bad_reply(&format!(
            "it returned the id {id:?} for a new pod or container, but backend {owner:?} owns that id"
        )))
    }

    fn warn_of(&mut self, claims: &[Claim]) {
        if let Some(first) = claims.first().cloned() {
            self.learned.warn.push(Warning::Claims(first, claims.len()));
        }
    }

    fn forget_missing(&mut self, list: List) {
        let backend = self.backend;
        if !self.may_learn_from {
            return;
        }
        if let Some(kind) = list.kind() {
            let owners = &mut self.view.owners;
            let changed = owners.forget_missing(kind, backend.id, self.asked.mark);
            self.learned.save.extend(changed);
            let (claims, doubles) = (owners.claims(backend.id), owners.pods.doubles(backend.id));
            let doubled = backend.record.learn(|known| {
                known.claims = claims;
                std::mem::replace(&mut known.doubles, doubles)
            });
            if doubles > doubled {
                self.learned.warn.push(Warning::Doubles(doubles));
            }
        }
        self.settled(list);
    }

    /// Counts the containers in a complete list, which must be learned already, that have the uid label of another
    /// backend's pod.
    fn count_mislabelled(&mut self, list: List, message: &Bytes) {
        if list != List::Containers {
            return;
        }
        let backend = self.backend;
        let count = self.view.owners.mislabelled(backend.id, message);
        let record = &backend.record;
        let before = record.learn(|known| std::mem::replace(&mut known.mislabelled, count));
        if count > before {
            self.learned.warn.push(Warning::Mislabelled(count));
        }
    }

    /// Runs the steps that follow a complete list: settles calls that created pods.
    fn settled(&mut self, list: List) {
        if list == List::Pods {
            let creations = &mut self.view.owners.creations;
            if creations.listed(self.backend.id, self.asked.at) {
                self.learned.save.insert(self.backend.id);
            }
            self.backend.wakeups.listed.notify_one();
        }
        self.learned.retire = true;
    }

    /// Adds the item that `request` created to the cached list of its backend. The item has only the fields of the
    /// request; the backend's next list has all fields.
    fn add_created(&mut self, list: List, id: &str, request: &[u8]) {
        let backend = self.backend;
        if !self.may_learn_from {
            return;
        }
        if let Ok(item) = listed::created(list, id, request) {
            let mut held = backend.memory.all().held();
            let item = Readable::item(list, &item)
                .ok()
                .filter(|item| held.grow(item.len()).is_ok())
                .map(|item| item.holding(held));
            backend
                .record
                .learn(|known| known.lists.add(list, item, backend.max_message));
        }
        self.learned.save.insert(backend.id);
    }

    /// Updates the cached lists after a call that changed the state of the pod or container `id`.
    fn change_states(&mut self, changes: &[StateChange], id: &str) {
        let record = &self.backend.record;
        for change in changes {
            if record.learn(|known| known.lists.change_state(change, id)) {
                self.learned.save.insert(self.backend.id);
            }
        }
    }
}

/// Caches a reply to a call for all stats. criswitch serves it if the backend's next reply is late.
pub(crate) fn keep_stats(list: List, backend: &Backend, stats: Readable, asked: CallMoment) {
    if !backend.may_learn_from(asked.forgets) {
        return;
    }
    let snapshot = asked.snapshot(stats);
    // Metric descriptors are saved on disk, other stats are not.
    backend.learn_saved(|known| {
        known.lists.keep_stats(list, snapshot, backend.max_message)
            && list == List::MetricDescriptors
    });
}

/// Learns the names of the pod in a request, if the request has the pod's configuration.
pub(crate) fn learn_names(owners: &mut Owners, request: &Request, target: &Target) {
    if let (Target::Owner(_, Kind::Pod, id), Some(config)) = (target, request.row.pod_config()) {
        owners.pods.rename(id, pod_names(request, config));
    }
}

/// The most containers that a backend may create in one call.
const MOST_CREATED: usize = 4096;

/// Reads the id of the pod or container that a backend has created.
fn created<'a>(backend: &Backend, reply: &'a [u8], path: &[u32]) -> Result<&'a str, Status> {
    match protobuf::string(reply, path) {
        Ok("") => Err(backend.bad_reply("it returned no id for a new pod or container")),
        Ok(id) if id.len() > LONGEST_ID => Err(backend.bad_reply(&format!(
            "it returned an id of more than {LONGEST_ID} bytes for a new pod or container"
        ))),
        Ok(id) => Ok(id),
        Err(fault) => Err(backend.malformed(&fault)),
    }
}

/// Reads the names and the ids of all containers that a backend has created in one call, at most [`MOST_CREATED`].
fn all_created<'a>(
    backend: &Backend,
    reply: &'a [u8],
    path: Path,
) -> Result<Vec<(&'a str, &'a str)>, Status> {
    let (items, id) = path.split_at(path.len().saturating_sub(1));
    let malformed = |fault| backend.malformed(&fault);
    if protobuf::count(reply, items).map_err(malformed)? > MOST_CREATED {
        let cause = format!("it returned more than {MOST_CREATED} new containers");
        return Err(backend.bad_reply(&cause));
    }
    let items = protobuf::all_bytes(reply, items).map_err(malformed)?;
    items
        .into_iter()
        .map(|item| {
            let name = protobuf::string(item, &[restored_container::NAME]).map_err(malformed)?;
            Ok((name, created(backend, item, id)?))
        })
        .collect()
}
