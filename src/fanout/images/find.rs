//! `ImageStatus` for an unknown pod, and for no pod.

use std::sync::Arc;

use super::stores::{Content, StoreAnswer, Stored, Wait, agree};
use crate::backend::Backend;
use crate::call::reply::{self, Reply};
use crate::call::route::Stores;
use crate::call::{Call, Failed};
use crate::codec::protobuf;
use crate::errors;
use crate::fanout::images::stores;
use crate::forward;
use crate::rpc::fields::{IMAGE_REFERENCE, LISTED_ID};
use crate::switch::{Switch, image_references, pod_requests};

/// Answers an `ImageStatus` without a pod. The kubelet sends it to read the user of a container from the image.
///
/// Asks the stores of the pods that need this image first. If none of them has the image, asks all stores. The stores
/// that have the image must agree: a wrong user, or a wrong "absent", makes the container run as another user.
pub(crate) async fn find_image(
    switch: &Switch,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Reply, Failed> {
    if let [only] = backends {
        return only.patiently(forward::send(switch, call, only)).await;
    }
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let of_pods = switch.pod_requests.lock().stores_of(reference);
    let theirs = backends.iter().filter(|it| of_pods.contains(&it.id));
    let theirs: Vec<_> = theirs.cloned().collect();
    let mut said = ask_in_any_form(call, &theirs, Wait::ListTimeout).await;
    if !has_any(&said) {
        said = ask_in_any_form(call, backends, Wait::ListTimeout).await;
    }
    if !has_any(&said) && said.iter().any(|said| said.is_late) {
        // A cached list does not prove that an image is absent.
        said = ask_in_any_form(call, backends, Wait::Answer).await;
    }
    let answered = one_image(reference, said);
    if answered.is_err() {
        // Forget these pods soon: a pod that the kubelet restarts later must not fail because of them.
        switch.pod_requests.lock().fail(reference);
    }
    answered
}

/// The answer of the first store that has the image, if all stores with the image have the same one. "Absent" needs the
/// answer of every store.
fn one_image(reference: &str, mut said: Vec<StoreAnswer>) -> Result<Reply, Failed> {
    let is_open = match has_any(&said) {
        true => |said: &StoreAnswer| matches!(said.image, Stored::Unknown),
        false => |said: &StoreAnswer| !said.has_answered(),
    };
    if let Some(place) = said.iter().position(is_open)
        && let Some(failed) = said.swap_remove(place).into_failed()
    {
        return Err(failed);
    }
    if !agree(&said) {
        return Err(differ(reference, &said).into());
    }
    match has_any(&said) {
        true => present(said),
        false => Ok(absent(said)),
    }
}

/// Answers a pod whose annotations are unknown, such as any older pod after a restart of the kubelet.
///
/// The image is present if all stores that the pod may use have the same image. Otherwise the answer is "absent":
/// the kubelet then pulls the image, and the pull names the pod. A pod that asks again without a pull never pulls,
/// and gets the image of a store that has it.
pub(crate) async fn find_for_some_pod(
    switch: &Switch,
    call: &Call,
    stores: &Stores,
) -> Result<Reply, Failed> {
    let all = stores.all.iter().map(|id| call.live.backend(*id).cloned());
    let all = all.collect::<Result<Vec<Arc<Backend>>, _>>()?;
    let mut said = stores::ask_stores(call, &all, Wait::ListTimeout).await;
    // The stores that the pod likely uses come first.
    let is_likely = |said: &StoreAnswer| stores.likely.contains(&said.backend.id);
    said.sort_by_key(|said| !is_likely(said));
    let is_known = |said: &&StoreAnswer| !matches!(said.image, Stored::Unknown);
    let mut likely = said.iter().filter(|said| is_likely(said)).filter(is_known);
    if likely.clone().next().is_none() {
        // If no likely store answers, the call fails. The pod loses nothing: its backend could not start the container
        // either.
        let failed = said.into_iter().find_map(StoreAnswer::into_failed);
        return Err(failed.unwrap_or_else(|| errors::no_backend().into()));
    }
    let is_present = likely.all(|said| said.image().is_some()) && agree(&said);
    if !has_any(&said) || !is_present && !asks_again(switch, call) {
        return Ok(absent(said));
    }
    said.retain(|said| said.image().is_some());
    if said.iter().any(is_likely) {
        said.retain(is_likely);
    }
    let having = said.iter().map(|said| said.backend.id).collect();
    if let Some(image) = said.first().and_then(StoreAnswer::image) {
        pod_requests::note_asking(
            switch,
            call,
            having,
            protobuf::string(image, LISTED_ID).unwrap_or_default(),
        );
    }
    present(said)
}

/// Asks `backends` for the image under the reference of `call`. If that is an id, asks for its other form, too: all
/// stores if none has the image, otherwise the stores that reject the id. CRI-O takes containerd's form for a name
/// without a registry, which is an error where no registries are configured for such names.
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
    let is_enough = |said: &StoreAnswer| is_found && !said.has_rejected();
    let (mut said, first): (Vec<_>, Vec<_>) = said.into_iter().partition(is_enough);
    let again: Vec<_> = first.iter().map(|said| Arc::clone(&said.backend)).collect();
    let call = call.with_string(IMAGE_REFERENCE, &other);
    let second = stores::ask_stores(&call, &again, wait).await;
    let both = first.into_iter().zip(second);
    said.extend(both.map(|(first, second)| match second.has_rejected() {
        true if first.has_answered() => first,
        _ => second,
    }));
    said
}

/// Whether the pod that sends `call` got the answer "absent" before and did not pull the image.
fn asks_again(switch: &Switch, call: &Call) -> bool {
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    let seen = pod_requests::seen_by(call, &message);
    seen.is_some_and(|seen| switch.pod_requests.lock().is_absent_again(seen, reference))
}

fn has_any(said: &[StoreAnswer]) -> bool {
    said.iter().any(|said| said.image().is_some())
}

fn differ(reference: &str, said: &[StoreAnswer]) -> tonic::Status {
    let having = said.iter().filter_map(|said| {
        let content = Content::of(said.image()?).ok()?;
        Some((said.backend.name(), content.to_string()))
    });
    errors::images_differ(reference, &having.collect::<Vec<_>>())
}

/// The answer of the first store that has the image. An answer made of a cached image comes last.
fn present(said: Vec<StoreAnswer>) -> Result<Reply, Failed> {
    let mut having: Vec<_> = said
        .into_iter()
        .filter(|said| said.image().is_some())
        .collect();
    having.sort_by_key(|said| !said.has_answered());
    let first = having.into_iter().next().ok_or_else(errors::no_backend)?;
    Ok(first.into_reply())
}

/// The answer of the first store that reports that it lacks the image.
fn absent(said: Vec<StoreAnswer>) -> Reply {
    match said.into_iter().find(StoreAnswer::says_absent) {
        Some(lacking) => lacking.into_reply(),
        None => reply::of_message(Vec::new()),
    }
}
