//! Learns owners, images and cached lists from replies.

use std::cell::Cell;
use std::collections::HashSet;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::backend::lists::Snapshot;
use crate::call::route::Target;
use crate::call::{Call, Lesson, Listing, Request, log, pod_names};
use crate::codec::protobuf::{self, Path};
use crate::errors;
use crate::ownership::{
    BackendId, Changed, Claim, LONGEST_ID, Learned, MOST, Mark, Owned, PodNames, Unlearned,
};
use crate::rpc::fields::{CONTAINER_LABELS, CONTAINER_POD, LISTED_HANDLER};
use crate::rpc::filter::{first_of_each, without_inside};
use crate::rpc::{Kind, List, StateChange, UID_LABEL, fields};
use crate::switch::{
    Switch, handlers, labels, listed, pod_requests, readable, reload, saved, urls,
};

/// The moment at which criswitch sent a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The moment's position in the order in which facts were learned.
    pub mark: Mark,
    /// The time of the clock at the moment.
    pub at: Instant,
}

impl Asked {
    /// The list that criswitch requested at this moment.
    pub(crate) fn snapshot(self, message: &Bytes) -> Snapshot {
        Snapshot::new(message.clone(), self.at, self.mark)
    }
}

/// The result of learning from a reply.
#[derive(Default)]
pub(crate) struct Effects {
    /// The message for the client, if it differs from the reply.
    pub message: Option<Bytes>,
    /// The backends whose items changed. The client gets its reply after their state is saved.
    pub changed: Changed,
}

impl Effects {
    fn of_message(message: Option<Bytes>) -> Effects {
        let changed = Changed::new();
        Effects { message, changed }
    }

    fn of_changed(changed: Changed) -> Effects {
        let message = None;
        Effects { message, changed }
    }
}

/// Learns from the successful reply to `call`.
///
/// # Errors
/// `Internal` if the reply does not follow the CRI.
pub(crate) fn learn(
    switch: &Switch,
    call: &Call,
    backend: &Backend,
    asked: Asked,
    reply: &Bytes,
) -> Result<Effects, Status> {
    let mut changed = Changed::new();
    match &call.lesson {
        Lesson::Nothing | Lesson::ChangedImages => {}
        Lesson::Disks => backend.report_disks(reply),
        Lesson::Image(path) => {
            let id = protobuf::string(reply, path).unwrap_or_default();
            pod_requests::note_asking(switch, call, vec![backend.id], id);
        }
        Lesson::Pod(path, names) => {
            let id = own_pod(switch, names, backend, reply, path, asked, &mut changed)?;
            add_created(backend, List::Pods, id, call);
        }
        Lesson::Container(path, pod) => {
            let id = created(backend, reply, path)?;
            changed = learn_container(switch, call, backend, id, pod, asked)?;
        }
        Lesson::Restored(path, containers, names) => {
            let pod = own_pod(switch, names, backend, reply, path, asked, &mut changed)?;
            for container in all_created(backend, reply, containers)? {
                changed.extend(own_container(
                    switch,
                    backend,
                    container,
                    (pod, None),
                    asked,
                )?);
            }
            backend.has_changed();
        }
        Lesson::Gone(kind, id) => {
            changed = switch.owners().forget(*kind, id);
            saved::note(switch, &changed);
            backend.has_changed();
            reload::remove_unneeded(switch);
        }
        Lesson::ChangedState(changes, id) => change_states(backend, changes, id),
        Lesson::List(listing) => return learn_listing(switch, listing, backend, reply, asked),
        Lesson::Handler(path) => {
            let renamed = handlers::renamed(switch, backend, reply, path)?;
            return Ok(Effects::of_message(renamed));
        }
        Lesson::Url(path) => {
            return Ok(Effects::of_message(urls::completed(backend, reply, path)?));
        }
    }
    Ok(Effects::of_changed(changed))
}

/// Learns from the reply to a call for a list. Stats are only cached, because they show no owners.
fn learn_listing(
    switch: &Switch,
    listing: &Listing,
    backend: &Backend,
    reply: &Bytes,
    asked: Asked,
) -> Result<Effects, Status> {
    let list = listing.list;
    match (list.is_stats(), listing.is_whole) {
        (true, is_whole) => {
            if readable(switch, Some(list), backend, reply)? && is_whole {
                keep_stats(list, backend, reply, asked);
            }
            Ok(Effects::of_message(listed_as(
                switch, list, backend, reply,
            )?))
        }
        (false, false) => {
            readable(switch, Some(list), backend, reply)?;
            learn_part(switch, list, backend, reply, asked)
        }
        (false, true) => learn_whole(switch, list, backend, reply, asked),
    }
}

/// Whether clients can decode `reply`, so that it may be cached and merged with the replies of other backends. Without
/// a `list`, the reply is that of `ImageFsInfo`. [`Owners::learn`](crate::ownership::Owners::learn) checks the number
/// of pods and of containers.
///
/// # Errors
/// `Internal` if the list has more items than any backend can have, or if clients cannot decode the reply. With one
/// backend only the latter is no error, because its replies pass unchanged.
pub(crate) fn readable(
    switch: &Switch,
    list: Option<List>,
    backend: &Backend,
    reply: &[u8],
) -> Result<bool, Status> {
    let shows_owners = list.is_some_and(|list| list.kind().is_some());
    if !shows_owners && protobuf::fields(reply).nth(MOST).is_some() {
        return Err(backend.bad_reply(&Unlearned::TooMany.to_string()));
    }
    match readable::fault(list, reply) {
        None => Ok(true),
        Some(_) if switch.live().is_alone() => Ok(false),
        Some(fault) => Err(backend.bad_reply(&fault)),
    }
}

/// Learns and caches a complete list. If the last list had the same items and nothing has changed since, the list is
/// not decoded.
pub(crate) fn learn_whole(
    switch: &Switch,
    list: List,
    backend: &Backend,
    reply: &Bytes,
    asked: Asked,
) -> Result<Effects, Status> {
    let snapshot = asked.snapshot(reply);
    let changes = switch.owners().changes();
    if let Some(kind) = list.kind()
        && backend.learn(|known| known.lists.repeats(list, &snapshot, changes))
    {
        let message = listed_as(switch, list, backend, reply)?;
        backend.keep_list(list, snapshot);
        switch.owners().listed_again(kind, backend.id, asked.mark);
        settled(switch, list, backend, asked);
        return Ok(Effects::of_message(message));
    }
    let readable = readable(switch, Some(list), backend, reply)?;
    let mut effects = learn_list(switch, list, backend, reply, asked)?;
    if readable {
        backend.keep_list(list, snapshot);
    }
    effects
        .changed
        .append(&mut settle(switch, list, backend, asked));
    let owners = switch.owners();
    let items = protobuf::fields(reply).flatten();
    let items = items.filter(|field| field.number == fields::ITEMS).count();
    // If the backend owns an item that the list lacks, the item may be newer than the list. The same list, requested
    // later, would remove the item, so the later list must be decoded.
    let is_all = |kind| owners.count_of(kind, backend.id) == items;
    if owners.changes() == changes
        && owners.claims(backend.id) == 0
        && list.kind().is_some_and(is_all)
    {
        drop(owners);
        backend.learn(|known| known.lists.learned(list, reply, changes));
    }
    Ok(effects)
}

/// Learns that a backend has created the container `id` in `pod`.
fn learn_container(
    switch: &Switch,
    call: &Call,
    backend: &Backend,
    id: &str,
    pod: &str,
    asked: Asked,
) -> Result<Changed, Status> {
    log::note_id(Kind::Container, id);
    if !has(switch, backend) {
        return Ok(Changed::new());
    }
    let message = call.message();
    let label = protobuf::entry(&message, CONTAINER_LABELS, UID_LABEL);
    let changed = own_container(switch, backend, id, (pod, label.ok().flatten()), asked)?;
    // The request may have a short id of the pod. Lists always have the full id.
    let call = call.with_string(CONTAINER_POD, pod);
    add_created(backend, List::Containers, id, &call);
    Ok(changed)
}

/// Returns the current moment. Call this before a call is sent, and pass the result on with the reply.
pub(crate) fn asked(switch: &Switch) -> Asked {
    Asked {
        mark: switch.owners().mark(),
        at: Instant::now(),
    }
}

/// Caches a complete list, and forgets the items that the list lacks. Returns the backends whose items changed.
pub(crate) fn keep_whole(
    switch: &Switch,
    list: List,
    backend: &Backend,
    message: &Bytes,
    asked: Asked,
) -> Changed {
    backend.keep_list(list, asked.snapshot(message));
    settle(switch, list, backend, asked)
}

/// Forgets the items that a complete list lacks. The list itself was learned before. Returns the backends whose items
/// changed.
pub(crate) fn settle(switch: &Switch, list: List, backend: &Backend, asked: Asked) -> Changed {
    let mut changed = Changed::new();
    if let Some(kind) = list.kind() {
        let mut owners = switch.owners();
        changed = owners.settle(kind, backend.id, asked.mark);
        let (claims, doubles) = (owners.claims(backend.id), owners.doubles(backend.id));
        drop(owners);
        saved::note(switch, &changed);
        let doubled = backend.learn(|known| {
            known.claims = claims;
            std::mem::replace(&mut known.doubles, doubles)
        });
        if doubles > doubled {
            tracing::warn!(
                backend = %backend.name(), pods = doubles,
                "backend lists ready pods with the uid of a pod that criswitch created at another backend; remove \
                 these pods, or repair the runtime"
            );
        }
    }
    settled(switch, list, backend, asked);
    changed
}

/// Runs the steps that follow a complete list: settles calls that created pods, saves lists that are complete now, and
/// removes each backend that the configuration does not name and that no pod or container needs.
fn settled(switch: &Switch, list: List, backend: &Backend, asked: Asked) {
    if list == List::Pods {
        switch.owners().settle_creating(backend.id, asked.at);
        backend.nudges.listed.notify_one();
    }
    saved::complete(switch, backend);
    reload::remove_unneeded(switch);
}

fn own_pod<'a>(
    switch: &Switch,
    names: &PodNames,
    backend: &Backend,
    reply: &'a [u8],
    path: Path,
    asked: Asked,
    changed: &mut Changed,
) -> Result<&'a str, Status> {
    let id = created(backend, reply, path)?;
    log::note_id(Kind::Pod, id);
    let mut owners = switch.owners();
    let owned = owners.own_pod(id, backend.id, names.clone(), asked.mark);
    drop(owners);
    changed.append(&mut owned_by(switch, owned, backend)?);
    Ok(id)
}

fn own_container(
    switch: &Switch,
    backend: &Backend,
    id: &str,
    pod: (&str, Option<&str>),
    asked: Asked,
) -> Result<Changed, Status> {
    let mut owners = switch.owners();
    let owned = owners.own_container(id, backend.id, pod, asked.mark);
    drop(owners);
    owned_by(switch, owned, backend)
}

/// Returns the backends whose items changed when `backend` returned the id of a new pod or container. Rejects an id
/// that another backend owns. Without the rejection, calls for the id would go to the other backend.
fn owned_by(switch: &Switch, owned: Owned, backend: &Backend) -> Result<Changed, Status> {
    let Some(claim) = owned.claim else {
        saved::note(switch, &owned.changed);
        return Ok(owned.changed);
    };
    warn_of(switch, slice::from_ref(&claim), backend);
    let (id, owner) = (errors::shown(&claim.id), name_of(switch, claim.owner));
    let cause = format!(
        "it returned the id {id:?} for a new pod or container, but backend {owner:?} owns that id"
    );
    Err(backend.bad_reply(&cause))
}

fn name_of(switch: &Switch, backend: BackendId) -> Arc<str> {
    let live = switch.live();
    let backend = live.backend(backend);
    backend.map_or("?".into(), |backend| backend.name())
}

/// Learns a list that is or may be incomplete. Rejects the list if `backend` is at the entry limit, because only a
/// complete list shows which entries can be forgotten.
pub(crate) fn learn_part(
    switch: &Switch,
    list: List,
    backend: &Backend,
    message: &Bytes,
    asked: Asked,
) -> Result<Effects, Status> {
    let kind = list.kind();
    if kind.is_some_and(|kind| switch.owners().is_full(kind, backend.id)) {
        return Err(backend.bad_reply(&Unlearned::TooMany.to_string()));
    }
    learn_list(switch, list, backend, message, asked)
}

/// Learns a list that was requested at `asked`. The list for the client is without the items of other backends, and
/// with the routing table's names for handlers.
pub(crate) fn learn_list(
    switch: &Switch,
    list: List,
    backend: &Backend,
    message: &Bytes,
    asked: Asked,
) -> Result<Effects, Status> {
    let mut effects = Effects::default();
    if let Some(kind) = list.kind()
        && has(switch, backend)
    {
        let learned = switch.owners().learn(kind, backend.id, message, asked.mark);
        let Learned {
            claims,
            own,
            dropped,
            changed,
            ..
        } = learned.map_err(|unlearned| backend.bad_reply(&unlearned.to_string()))?;
        warn_of(switch, &claims, backend);
        saved::note(switch, &changed);
        backend.drops(dropped);
        effects = Effects {
            message: own,
            changed,
        };
    } else if let Some(kind) = list.kind() {
        // Nothing is learned from a removed backend, but its items may have passed to another backend.
        let own = switch.owners().own(kind, backend.id, message, asked.mark);
        effects.message = own.map_err(|unlearned| backend.bad_reply(&unlearned.to_string()))?;
    }
    let own = effects.message.as_ref().unwrap_or(message);
    effects.message = listed_as(switch, list, backend, own)?.or(effects.message);
    Ok(effects)
}

/// Learns the names of the pod in a request, if the request has the pod's configuration.
pub(crate) fn learn_names(switch: &Switch, request: &Request, target: &Target) {
    if let (Target::Owner(_, Kind::Pod, id), Some(config)) = (target, request.row.pod_config()) {
        switch.owners().rename(id, pod_names(request, config));
    }
}

/// Whether `backend` is still in the routing table. Late replies of a removed backend are ignored.
pub(crate) fn has(switch: &Switch, backend: &Backend) -> bool {
    switch.live.borrow().backend(backend.id).is_ok()
}

/// Logs that a backend lists or returns ids of other backends. Either two sockets belong to one runtime, or the backend
/// has a fault.
fn warn_of(switch: &Switch, claims: &[Claim], backend: &Backend) {
    let Some(Claim { id, owner }) = claims.first() else {
        return;
    };
    let (name, owner, ids) = (backend.name(), name_of(switch, *owner), claims.len());
    tracing::warn!(
        backend = %name, %owner, ids, first = errors::shown(id),
        "backend lists or returns ids that another backend owns; the owner keeps these ids, and criswitch drops what \
         this backend reports about them. If both sockets belong to one runtime, configure one backend for both"
    );
}

/// Returns a backend's list as the client gets it, if it differs from `message`.
pub(crate) fn listed_as(
    switch: &Switch,
    list: List,
    backend: &Backend,
    message: &Bytes,
) -> Result<Option<Bytes>, Status> {
    match list {
        List::Pods => handlers::renamed(switch, backend, message, LISTED_HANDLER),
        List::PodMetrics => {
            let own = without_others(switch, list, backend, message)?;
            let metrics = own.as_ref().unwrap_or(message);
            Ok(labels::under_given_labels(switch, backend, metrics)?.or(own))
        }
        _ => without_others(switch, list, backend, message),
    }
}

/// Removes repeated stats, and the stats of other backends' pods and containers, from `reply`. Stats of other backends'
/// containers are also removed from the stats of a pod. Returns `None` if nothing is removed.
///
/// # Errors
/// `Internal` if the reply is malformed.
fn without_others(
    switch: &Switch,
    list: List,
    backend: &Backend,
    reply: &[u8],
) -> Result<Option<Bytes>, Status> {
    let Some((kind, path)) = list.about() else {
        return Ok(None);
    };
    let owners = switch.owners();
    let dropped = Cell::new(0);
    let is_own = |kind, id: &str| {
        let is_own = !owners.is_of_another(kind, id, backend.id);
        dropped.set(dropped.get() + usize::from(!is_own));
        is_own
    };
    let inside = Cell::new(0);
    let is_own_inside = |id: &str| {
        inside.set(inside.get() + 1);
        inside.get() > MOST || is_own(Kind::Container, id)
    };
    // An item whose id cannot be read counts as the backend's own.
    let own = protobuf::retain(reply, fields::ITEMS, |item| {
        Ok(is_own(
            kind,
            protobuf::string(item, path).unwrap_or_default(),
        ))
    });
    let own = own.and_then(|own| {
        let items = own.as_deref().unwrap_or(reply);
        let inside = without_inside(list, items, is_own_inside)?;
        let own = inside.or(own);
        let items = own.as_deref().unwrap_or(reply);
        Ok(first_of_each(list, items, &mut HashSet::new(), MOST)?.or(own))
    });
    drop(owners);
    backend.drops(dropped.get());
    if inside.get() > MOST {
        return Err(backend.bad_reply(&Unlearned::TooMany.to_string()));
    }
    own.map_err(|fault| backend.malformed(&fault))
}

/// Adds the item that `call` created to the cached list of its backend. The item has only the fields of the request;
/// the backend's next list has all fields.
fn add_created(backend: &Backend, list: List, id: &str, call: &Call) {
    if let Ok(item) = listed::created(list, id, &call.message()) {
        let mut held = backend.memory.held();
        let fits = held.grow(item.len()).is_ok();
        let item = fits.then(|| held.with(item));
        backend.learn(|known| known.lists.add(list, item, backend.max_message));
    }
    backend.has_changed();
}

/// Updates the cached lists after a call that changed the state of the pod or container `id`.
fn change_states(backend: &Backend, changes: &[StateChange], id: &str) {
    let mut is_new = false;
    backend.learn(|known| {
        for change in changes {
            is_new |= known.lists.change_state(change, id);
        }
    });
    if is_new {
        backend.has_changed();
    }
}

/// Caches a reply to a call for all stats. criswitch serves it if the backend's next reply is late.
pub(crate) fn keep_stats(list: List, backend: &Backend, message: &Bytes, asked: Asked) {
    let snapshot = asked.snapshot(message);
    let limit = backend.max_message;
    let mut is_new = false;
    backend.learn(|known| is_new = known.lists.keep_stats(list, snapshot, limit));
    // Metric descriptors are saved on disk, other stats are not.
    if is_new && list == List::MetricDescriptors {
        backend.has_changed();
    }
}

/// Reads the id of the pod or container that a backend has created.
fn created<'a>(backend: &Backend, reply: &'a [u8], path: &[u32]) -> Result<&'a str, Status> {
    match protobuf::string(reply, path) {
        Ok("") => Err(backend.bad_reply("it returned no id for a new pod or container")),
        Ok(id) if id.len() > LONGEST_ID => {
            let cause = format!(
                "it returned an id of more than {LONGEST_ID} bytes for a new pod or container"
            );
            Err(backend.bad_reply(&cause))
        }
        Ok(id) => Ok(id),
        Err(fault) => Err(backend.malformed(&fault)),
    }
}

/// Reads the ids of all items that a backend has created in one call.
fn all_created<'a>(backend: &Backend, reply: &'a [u8], path: Path) -> Result<Vec<&'a str>, Status> {
    let (items, id) = path.split_at(path.len().saturating_sub(1));
    let items = protobuf::all_bytes(reply, items).map_err(|fault| backend.malformed(&fault))?;
    let ids = items.into_iter().map(|item| created(backend, item, id));
    ids.collect()
}
