//! Answers `ImageStatus` calls that name an unknown pod, or no pod.

use std::sync::Arc;

use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc;
use criswitch_cri::rpc::fields::{IMAGE_REFERENCE, LISTED_ID};
use parking_lot::Mutex;

use super::stores::{ImageProperties, StoreAnswer, Stored, Wait, agree};
use crate::backend::Backend;
use crate::call::reply::{self, Reply, Unsent};
use crate::call::route::Stores;
use crate::call::{Call, Failed};
use crate::dispatch::fanout::images::stores;
use crate::dispatch::forward;
use crate::errors;
use crate::switch::pod_requests::{self, PodRequests};
use crate::switch::{Switch, image_references};

/// Answers an `ImageStatus` that names no pod. The kubelet sends such a call to learn a container's user from the
/// image, and takes "absent" for root. So the image is "present" if any store has it.
///
/// First asks the stores of the pods that now ask for this image. If no such store has the image, asks all stores. All
/// stores that have the image must have the same one: after a wrong answer the container would run as a wrong user.
pub(crate) async fn find_image(
    switch: &Switch,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    if let [only] = backends {
        return forward::send(switch, call, only).await;
    }
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let of_pods = switch.pod_requests.lock().stores_of(reference);
    let theirs: Vec<_> = backends
        .iter()
        .filter(|it| of_pods.contains(&it.id))
        .cloned()
        .collect();
    let mut said = ask_in_any_form(call, &theirs, Wait::ListTimeout).await;
    if !has_any(&said) {
        said = ask_in_any_form(call, backends, Wait::ListTimeout).await;
    }
    if !has_any(&said) && said.iter().any(|said| said.is_late) {
        // A cached list does not prove that an image is absent, so wait for the answers.
        said = ask_in_any_form(call, backends, Wait::Answer).await;
    }
    said.iter().for_each(|said| said.note_late(call));
    let answered = one_image(reference, said);
    if answered.is_err() {
        // Forget soon that pods ask for this image: a pod that the kubelet starts later must not fail because of these
        // pods.
        switch.pod_requests.lock().fail(reference);
    }
    answered.map(Unsent::from)
}

/// The answer of the first store that has the image. The result is an error if another store has a different image, or
/// if it is unknown whether another store has the image. The answer "absent" requires that every store has answered.
fn one_image(reference: &str, mut said: Vec<StoreAnswer>) -> Result<Reply, Failed> {
    let is_open = if has_any(&said) {
        |said: &StoreAnswer| matches!(said.image, Stored::Unknown)
    } else {
        |said: &StoreAnswer| !said.has_answered()
    };
    if let Some(place) = said.iter().position(is_open)
        && let Some(failed) = said.swap_remove(place).into_failed()
    {
        return Err(failed);
    }
    if !agree(&said) {
        return Err(differ(reference, &said).into());
    }
    if has_any(&said) {
        present(said)
    } else {
        absent_reply(said)
    }
}

/// Answers an `ImageStatus` for a pod whose annotations are unknown. After a restart of the kubelet, each older pod is
/// unknown.
///
/// The answer is "present" if every store that the pod likely uses has the image, and no store has a different one.
/// Otherwise the answer is "absent": the kubelet then pulls the image, and the pull names the pod. A pod that asks
/// again without a pull will never pull, so it gets the image of a store that has it.
pub(crate) async fn find_for_some_pod(
    requests: &Mutex<PodRequests>,
    call: &Call,
    stores: &Stores,
) -> Result<Reply, Failed> {
    let all = stores
        .all
        .iter()
        .map(|id| call.live.backend(*id).cloned())
        .collect::<Result<Vec<Arc<Backend>>, _>>()?;
    let mut said = stores::ask_stores(call, &all, Wait::OnlyListTimeout).await;
    // The stores that the pod likely uses come first.
    let is_likely = |said: &StoreAnswer| stores.likely.contains(&said.backend.id);
    said.sort_by_key(|said| !is_likely(said));
    let mut likely = said
        .iter()
        .filter(|said| is_likely(said) && !matches!(said.image, Stored::Unknown));
    if likely.clone().next().is_none() {
        // If no likely store answers or has a usable cached list, the call fails. The pod loses nothing by that: its
        // backend could not start the container either.
        let failed = said.into_iter().find_map(StoreAnswer::into_failed);
        return Err(failed.unwrap_or_else(|| errors::no_backend().into()));
    }
    let is_present = likely.all(|said| said.image().is_some()) && agree(&said);
    if !has_any(&said) || !is_present && !asks_again(requests, call) {
        return absent_reply(said);
    }
    said.retain(|said| said.image().is_some());
    if said.iter().any(is_likely) {
        said.retain(is_likely);
    }
    let having = said.iter().map(|said| said.backend.id).collect();
    if let Some(image) = said.first().and_then(StoreAnswer::image) {
        pod_requests::note_asking(
            requests,
            call,
            having,
            protobuf::string(image, LISTED_ID).unwrap_or_default(),
        );
    }
    present(said)
}

/// Asks `backends` for the image that `call` names. If the name is a whole id, asks again for the other form of the id,
/// with or without `sha256:`. If no store has the image, the second question goes to all stores that are not late.
/// Otherwise it goes only to the stores that returned an error, because CRI-O treats containerd's form of an id as a
/// name without a registry, and returns an error if no registries are configured for such names.
pub(super) async fn ask_in_any_form(
    call: &Call,
    backends: &[Arc<Backend>],
    wait: Wait,
) -> Vec<StoreAnswer> {
    let said = stores::ask_stores(call, backends, wait).await;
    let message = call.message();
    let other = protobuf::string(&message, IMAGE_REFERENCE).map(image_references::other_form);
    let Ok(Some(other)) = other else {
        return said;
    };
    let is_found = has_any(&said);
    let (mut said, first): (Vec<_>, Vec<_>) = said
        .into_iter()
        .partition(|said| said.is_late || is_found && !said.has_rejected());
    let again: Vec<_> = first.iter().map(|said| Arc::clone(&said.backend)).collect();
    let second = stores::ask_stores(&call.with_string(IMAGE_REFERENCE, &other), &again, wait).await;
    said.extend(first.into_iter().zip(second).map(|(first, second)| {
        if second.has_rejected() && first.has_answered() {
            first
        } else {
            second
        }
    }));
    said
}

/// Whether the pod in `call` already got the answer "absent" for this image. If not, remembers that the pod gets this
/// answer now.
fn asks_again(requests: &Mutex<PodRequests>, call: &Call) -> bool {
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let seen = pod_requests::seen_by(call, &message);
    seen.is_some_and(|seen| requests.lock().note_absent_image(seen, reference))
}

fn has_any(said: &[StoreAnswer]) -> bool {
    said.iter().any(|said| said.image().is_some())
}

fn differ(reference: &str, said: &[StoreAnswer]) -> tonic::Status {
    let having = said.iter().filter_map(|said| {
        let content = ImageProperties::of(said.image()?).ok()?;
        Some((said.backend.name(), content.to_string()))
    });
    errors::images_differ(reference, &having.collect::<Vec<_>>())
}

/// The answer of the first store that has the image. A fresh answer is preferred to a cached image.
fn present(said: Vec<StoreAnswer>) -> Result<Reply, Failed> {
    let mut having: Vec<_> = said
        .into_iter()
        .filter(|said| said.image().is_some())
        .collect();
    having.sort_by_key(|said| !said.has_answered());
    let first = having
        .into_iter()
        .next()
        .ok_or_else(|| errors::impossible(rpc::IMAGE_STATUS.name))?;
    first.into_reply()
}

/// The answer of the first store that reports the image as absent, else an empty reply.
fn absent_reply(said: Vec<StoreAnswer>) -> Result<Reply, Failed> {
    match said.into_iter().find(StoreAnswer::says_absent) {
        Some(lacking) => lacking.into_reply(),
        None => Ok(reply::of_message(Vec::new())),
    }
}
