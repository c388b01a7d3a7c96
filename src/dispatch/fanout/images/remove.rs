//! `RemoveImage` with several stores. Removes only the image that the request names, and only from stores where no
//! container uses the image and no pod is about to use it.
//!
//! The kubelet knows one age for an image id, the age of the oldest copy. So its garbage collection may remove a new
//! copy of an image that a different store has had for long. criswitch prevents that, because it knows for each store
//! which pods have just got the image.
//!
//! criswitch first asks every store for the image. If any store lists exactly the requested id, only stores that list
//! this id get the request. Otherwise containerd would remove its own copy of the image too, because containerd also
//! accepts CRI-O's form of an id.

use std::pin::pin;
use std::slice;
use std::sync::Arc;

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{IMAGE_REFERENCE, ITEMS, LISTED_ID, container, image, image_spec};
use criswitch_cri::rpc::{self, List};
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::stores::{self, StoreAnswer, Stored, Wait};
use crate::backend::answer::Answer;
use crate::backend::{Backend, Contribution};
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed};
use crate::dispatch::fanout::images::{self, find};
use crate::dispatch::fanout::{self, BackendResult};
use crate::dispatch::own::OwnCalls;
use crate::errors;
use crate::switch::Switch;
use crate::switch::image_references::{ImageNames, ImageReference, bare_id};

/// Why an image is not removed from a store whose containers are unknown.
const NO_CONTAINERS: &str = "the image is not removed: criswitch has no list of its containers, so one may use the image; \
                             try again";

/// The answers, besides OK, of a store that has nothing to remove.
const FINE: [Code; 1] = [Code::NotFound];

/// How a request names an image of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// By the id as the store lists it.
    Id,
    /// By a tag or digest.
    Name,
    /// By another form of the id: its beginning, or the id with `sha256:` added or removed.
    Form,
}

/// An image that the request may mean.
#[derive(Debug)]
struct Meant {
    backend: Arc<Backend>,
    id: String,
    image: bytes::Bytes,
    by: By,
    is_pinned: bool,
}

/// The result of a removal at one store. `Err` means that a container uses the image or that a pod is about to use it.
type Removal = Result<BackendResult, Status>;

/// Removes the image that the request names from each store that has it, unless a container there uses the image or a
/// pod is about to use it.
pub(crate) async fn remove_image(
    switch: &Switch,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let ask = images::image_status(call, reference);
    let said = find::ask_in_any_form(&ask, backends, Wait::OnlyListTimeout).await;
    let (said, silent): (Vec<_>, Vec<_>) = said.into_iter().partition(StoreAnswer::has_answered);
    let meant = meant(&said, reference)?;
    let by = meant.first().map(|image| image.by);
    let silent = silent.into_iter().filter(|said| match by {
        // A store that does not answer may list exactly this id. Until it answers, no image with another form of the id
        // is removed.
        None | Some(By::Form) => true,
        Some(By::Name) => !matches!(said.image, Stored::Nothing),
        // The client has the id from a list. That list has the same images of a silent store, even if an image was
        // pulled since.
        Some(By::Id) => {
            let last = stores::last_image(&ask, &said.backend);
            !matches!(last, Some(Stored::Nothing))
        }
    });
    let failed: Vec<_> = silent.filter_map(StoreAnswer::into_failed).collect();
    if by == Some(By::Form) && !failed.is_empty() {
        return Ok(removed(failed, Vec::new())?.into());
    }
    let sent = meant
        .iter()
        .map(|image| remove_at(switch, call, reference, image));
    Ok(Unsent::of(removed(failed, join_all(sent).await)?, backends))
}

/// Removes an image from its store, unless a container there uses it or a pod is about to use it. An error counts only
/// if the store still has the image: another call may have removed it meanwhile.
async fn remove_at(switch: &Switch, call: &Call, reference: &str, image: &Meant) -> Removal {
    let backend = &image.backend;
    let by_id = (image.by == By::Form).then(|| call.with_string(IMAGE_REFERENCE, &image.id));
    let call = by_id.as_ref().unwrap_or(call);
    let is_awaited = switch
        .pod_requests
        .lock()
        .is_awaited(backend.id, &image.image);
    if is_awaited.map_err(|fault| backend.malformed(&fault))? {
        return Err(errors::image_awaited(reference, &backend.name()));
    }
    let mut result = match container_of(call, OwnCalls::new(switch, backend, None), image).await {
        Ok(Some(container)) => {
            return Err(errors::image_in_use(reference, &backend.name(), &container));
        }
        Ok(None) => fanout::ask(call, backend)
            .await
            .and_then(|answer| images::decodable(call.row, backend, answer)),
        Err(status) => Err(status),
    };
    let code = result.as_ref().ok().map(Answer::code);
    if !code.is_some_and(|it| it == Code::Ok || FINE.contains(&it))
        && is_absent(call, backend).await
    {
        result = Ok(Answer::of_message(&[]));
    }
    let backend = Arc::clone(backend);
    Ok(BackendResult { backend, result })
}

/// Whether the store says that it does not have the image that `call` names.
async fn is_absent(call: &Call, backend: &Arc<Backend>) -> bool {
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let ask = images::image_status(call, reference);
    let said = stores::ask_stores(&ask, slice::from_ref(backend), Wait::Answer).await;
    said.iter().all(StoreAnswer::says_absent)
}

/// The id of a container that uses the image, from a list of the store's containers that was requested after this call.
/// Calls that wait while another one lists the containers share the next list, because each list takes memory.
async fn container_of(
    call: &Call,
    own: OwnCalls<'_>,
    image: &Meant,
) -> Result<Option<String>, Status> {
    let backend = own.backend;
    let row = &rpc::LIST_CONTAINERS;
    let contribution = Contribution {
        row,
        is_of_all: true,
    };
    if let Some(silent) = backend.silence(contribution) {
        return Err(silent);
    }
    let begun = Instant::now();
    let turn = pin!(backend.listing.lock());
    // The backend is not late because of other removals.
    let Ok(_turn) = call.within(backend.list_timeout(), turn).await else {
        return Err(backend.timed_out(row));
    };
    let listed = pin!(async {
        let known = backend.record.known();
        if known
            .lists
            .get(List::Containers)
            .is_some_and(|list| list.taken > begun)
        {
            return Ok(());
        }
        own.list_kind(List::Containers, row).await
    });
    call.within(backend.list_timeout(), listed)
        .await
        .unwrap_or_else(|late| {
            if !late.is_fault_of_backend {
                return Err(backend.unavailable(errors::BEFORE_DEADLINE));
            }
            backend.record.note_late(contribution);
            Err(backend.timed_out(row))
        })?;
    let known = backend.record.known();
    let list = known
        .lists
        .message(List::Containers)
        .ok_or_else(|| backend.unavailable(NO_CONTAINERS))?;
    let malformed = |fault| backend.malformed(&fault);
    let names = ImageNames::of(&image.image).map_err(malformed)?;
    for container in protobuf::all_bytes(&list, &[ITEMS]).map_err(malformed)? {
        if uses(container, &names).map_err(malformed)? {
            let id = protobuf::string(container, LISTED_ID).map_err(malformed)?;
            return Ok(Some(id.to_owned()));
        }
    }
    Ok(None)
}

/// Combines the removals of an image or a security profile into one reply. The reply is an error if a store failed, or
/// if a container or pod needs the image and no store removed it. An item that no store has counts as removed.
pub(super) fn removed(mut failed: Vec<Failed>, removals: Vec<Removal>) -> Result<Reply, Failed> {
    let (mut parts, mut needed) = (Vec::new(), Vec::new());
    for removal in removals {
        match removal {
            Ok(part) => parts.push(part),
            Err(status) => needed.push(status.into()),
        }
    }
    let mut reply = reply::of_message(Vec::new());
    if parts.is_empty() {
        failed.extend(needed);
    } else {
        match images::all_well(parts, &FINE) {
            Ok(removed) => reply = removed,
            Err(other) => failed.insert(0, other),
        }
    }
    Failed::all(failed).map_or(Ok(reply), Err)
}

/// Returns the images with exactly the id `reference`. If there are none, returns the images with the name `reference`,
/// else the images whose id has `reference` as another form. If only some of these images are pinned, returns the
/// others: a merged list has the image as not pinned, so the kubelet's garbage collection may remove it.
///
/// # Errors
/// If `reference` is the beginning of several ids.
fn meant(said: &[StoreAnswer], reference: &str) -> Result<Vec<Meant>, Failed> {
    let mut all = Vec::new();
    for said in said {
        if let Some(image) = said.image() {
            let malformed = |fault| Failed::from(said.backend.malformed(&fault));
            let id = protobuf::string(image, LISTED_ID)
                .map_err(malformed)?
                .to_owned();
            let by = by(image, &id, reference).map_err(malformed)?;
            let pinned = protobuf::varint(image, &[image::PINNED]).map_err(malformed)?;
            let (backend, image) = (Arc::clone(&said.backend), image.clone());
            all.push(Meant {
                backend,
                id,
                image,
                by,
                is_pinned: pinned != 0,
            });
        }
    }
    let by = all.iter().map(|image| image.by).min();
    all.retain(|image| Some(image.by) == by);
    let mut ids = all.iter().map(|image| bare_id(&image.id));
    let first = ids.next();
    if by == Some(By::Form) && ids.any(|id| Some(id) != first) {
        return Err(errors::ambiguous(reference).into());
    }
    if !all.iter().all(|image| image.is_pinned) {
        all.retain(|image| !image.is_pinned);
    }
    Ok(all)
}

fn by(image: &[u8], id: &str, reference: &str) -> Result<By, Malformed> {
    if id == reference {
        return Ok(By::Id);
    }
    let is_form = !ImageReference::of(reference).is_name_of(image)?
        && bare_id(id).starts_with(bare_id(reference));
    Ok(if is_form { By::Form } else { By::Name })
}

/// Whether a listed container uses this image. A container without an image id is compared by the name of its image.
fn uses(container: &[u8], image: &ImageNames<'_>) -> Result<bool, Malformed> {
    let ids = [
        protobuf::string(container, &[container::IMAGE_ID])?,
        protobuf::string(container, &[container::IMAGE_REF])?,
    ];
    let name = [protobuf::string(
        container,
        &[container::IMAGE, image_spec::IMAGE],
    )?];
    let has_id = ids.iter().any(|id| !id.is_empty());
    let its = if has_id { &ids[..] } else { &name[..] };
    Ok(its.iter().any(|it| !it.is_empty() && image.have(it)))
}
