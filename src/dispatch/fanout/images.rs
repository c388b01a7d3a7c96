//! Image calls that may concern several backends, and the image of a new container. Every backend has its own image
//! store.

pub(crate) mod find;
pub(crate) mod profiles;
pub(crate) mod remove;
mod stores;

use std::pin::pin;
use std::sync::Arc;

use criswitch_config::BackendId;
use criswitch_cri::codec::{cri, frames, protobuf};
use criswitch_cri::rpc::fields::{
    CONTAINER_IMAGE, CONTAINER_IMAGE_NAME, IMAGE_REFERENCE, LISTED_ID,
};
use criswitch_cri::rpc::{self, Row};
use futures_util::future::join_all;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed, Lesson, named};
use crate::dispatch::fanout::{self, BackendResult};
use crate::dispatch::forward;
use crate::dispatch::forward::short;
use crate::errors;
use crate::switch::Switch;
use crate::switch::pod_requests::{self, PodRequests};
use stores::Stored;

/// Pulls an image or a security profile into the stores of all `backends` at once. Returns the first successful reply
/// if no backend fails. An error names each backend that failed.
pub(crate) async fn pull_everywhere(
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    let reply = all_well(change(call, backends).await, &[])?;
    Ok(Unsent::of(reply, backends))
}

/// Sends `call`, which changes image stores, to all `backends` at once.
async fn change(call: &Call, backends: &[Arc<Backend>]) -> Vec<BackendResult> {
    join_all(backends.iter().cloned().map(|backend| async move {
        let answer = fanout::ask(call, &backend).await;
        let result = answer.and_then(|answer| decodable(call.row, &backend, answer));
        BackendResult { backend, result }
    }))
    .await
}

/// The answer, if clients can decode it. The reply to a pull has the id of the image or the digest of the profile, and
/// one store answers for all stores.
///
/// # Errors
/// `Internal` if clients cannot.
pub(super) fn decodable(row: &Row, backend: &Backend, answer: Answer) -> Result<Answer, Status> {
    if answer.code() == Code::Ok {
        let message = backend.message(&answer)?;
        let read = match row.name {
            "PullImage" => cri::PullImageResponse::decode(message).map(drop),
            "PullSecurityProfile" => cri::PullSecurityProfileResponse::decode(message).map(drop),
            // The replies to removals are empty.
            _ => <()>::decode(message),
        };
        read.map_err(|fault| backend.bad_reply(&format!("its reply is malformed: {fault}")))?;
    }
    Ok(answer)
}

/// Returns the first successful reply, else the first reply with a code in `fine`. `NotFound` becomes an empty
/// successful reply. If any backend failed, returns an error with the texts of all failures.
fn all_well(parts: Vec<BackendResult>, fine: &[Code]) -> Result<Reply, Failed> {
    let (mut well, mut other, mut failed) = (None, None, Vec::new());
    for BackendResult { backend, result } in parts {
        match result {
            Ok(answer) if answer.code() == Code::Ok => well = well.or(Some(answer)),
            Ok(answer) if fine.contains(&answer.code()) => other = other.or(Some(answer)),
            Ok(answer) => failed.push(named(&backend, answer)),
            Err(status) => failed.push(status.into()),
        }
    }
    if let Some(failed) = Failed::all(failed) {
        return Err(failed);
    }
    match well.or(other) {
        Some(answer) if answer.code() == Code::NotFound => Ok(reply::of_message(Vec::new())),
        Some(answer) => Ok(reply::of_answer(answer)),
        None => Err(errors::no_backend().into()),
    }
}

/// Sends `call`, a `CreateContainer`, to the owner of its pod. If the owner does not know the image id in the request,
/// replaces that id with the owner's own id of the image.
pub(crate) async fn create_container(
    switch: &Switch,
    call: &Call,
    owner: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    let requests = &switch.pod_requests;
    let sent = match own_image(requests, call, owner).await {
        Ok(Some(id)) => forward::send(switch, &call.with_string(CONTAINER_IMAGE, &id), owner).await,
        // The owner then rejects the call with a better error.
        Ok(None) | Err(_) => forward::send(switch, call, owner).await,
    };
    if let Some(seen) = pod_requests::seen_by(call, &call.message()) {
        requests.lock().created(seen);
    }
    sent
}

/// The owner's own id of the image, if the owner does not know the id in the call.
///
/// # Errors
/// If the owner does not say whether it has the image.
async fn own_image(
    requests: &Mutex<PodRequests>,
    call: &Call,
    owner: &Arc<Backend>,
) -> Result<Option<String>, Failed> {
    let message = call.message();
    let image = protobuf::string(&message, CONTAINER_IMAGE).unwrap_or_default();
    let name = protobuf::string(&message, CONTAINER_IMAGE_NAME).unwrap_or_default();
    let is_known =
        has_answered(requests, call, owner.id, image, name) || call.live.has_one_backend();
    if is_known || name.is_empty() || name == image || image_at(call, owner, image).await?.is_some()
    {
        return Ok(None);
    }
    image_at(call, owner, name).await
}

/// Whether the image id in `call`, a `CreateContainer`, came from `owner` alone, so that `owner` knows the id.
fn has_answered(
    requests: &Mutex<PodRequests>,
    call: &Call,
    owner: BackendId,
    image: &str,
    name: &str,
) -> bool {
    let message = call.message();
    let answered = pod_requests::seen_by(call, &message)
        .and_then(|seen| requests.lock().creates(seen, image, name));
    answered.is_some_and(|answered| answered.id == image && answered.stores == [owner])
}

/// The id of an image at a backend; `None` if the backend lacks the image.
///
/// # Errors
/// If the backend gives no answer that can be used.
async fn image_at(
    call: &Call,
    backend: &Arc<Backend>,
    image: &str,
) -> Result<Option<String>, Failed> {
    let call = image_status(call, image);
    let answer = short::in_time(&call, backend, pin!(fanout::ask(&call, backend))).await?;
    if answer.code() != Code::Ok {
        return Err(named(backend, answer));
    }
    let Stored::Image(image) = stores::image_of(backend, call.user, &answer)? else {
        return Ok(None);
    };
    let id = protobuf::string(&image, LISTED_ID).map_err(|fault| backend.malformed(&fault))?;
    Ok(Some(id.to_owned()))
}

/// An `ImageStatus` call for `reference`, a name or an id. Its headers and routing table are those of `call`.
fn image_status(call: &Call, reference: &str) -> Call {
    let mut request = call.request.clone();
    request.row = &rpc::IMAGE_STATUS;
    request.body = frames::frame(&protobuf::with_string(&[], IMAGE_REFERENCE, reference));
    let lesson = Lesson::Nothing;
    Call { request, lesson }
}
