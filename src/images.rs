//! Image calls that name neither a handler nor a pod: every backend has an image store of its own.

mod find;
mod names;
mod pods;
mod remove;
mod stores;

use std::sync::{Arc, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tonic::{Code, Status};

use crate::answer::Answer;
use crate::backend::Backend;
use crate::call::{Call, Failed, named};
use crate::fanout::Part;
use crate::owners::BackendId;
use crate::reply::{self, Reply};
use crate::rpc::{self, ImageRule, Then};
use crate::switch::Switch;
use crate::{status, wire};

pub(crate) use pods::PodRequests;

/// The reference in a request (`image.image`).
const REFERENCE: &[u32] = &[1, 1];
/// The image reference in a `CreateContainerRequest` (`config.image.image`).
const CONTAINER_IMAGE: &[u32] = &[2, 2, 1];
/// What the pod's manifest calls it (`config.image.user_specified_image`).
const CONTAINER_IMAGE_NAME: &[u32] = &[2, 2, 18];

impl Switch {
    /// Sends an image call to `backends` as its rule says.
    pub(crate) async fn to_image_stores(
        &self,
        call: &Call,
        rule: &ImageRule,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        match (rule, backends) {
            (ImageRule::Remove, _) if !call.live.is_alone() => {
                self.remove_image(call, backends).await
            }
            (_, [only]) if call.row.changes() => self.send(call, only, None).await,
            (_, [only]) => only.patiently(self.send(call, only, None)).await,
            (ImageRule::Find(_), _) => self.find_image(call, backends).await,
            (ImageRule::Pull(_), _) => self.pull_everywhere(call, backends).await,
            _ => self.remove_image(call, backends).await,
        }
    }

    /// An answer to `ImageStatus`, and whether it has the image.
    fn has_image(
        &self,
        backend: &Backend,
        result: Result<Answer, Status>,
    ) -> Result<(Answer, bool), Failed> {
        let answer = result?;
        match answer.code() {
            Code::Ok => {
                let message = backend.message(&answer)?;
                let has = wire::has(&message, 1).map_err(|fault| backend.malformed(&fault))?;
                Ok((answer, has))
            }
            // A backend without images has none.
            Code::Unimplemented => Ok((answer, false)),
            _ => Err(named(backend, answer)),
        }
    }

    /// Pulls into every image store at once; the reply is the first backend's, a failure names its own.
    async fn pull_everywhere(
        &self,
        call: &Call,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        let parts = self.change(call, backends).await;
        self.all_well(parts, &[Code::Unimplemented])
    }

    /// Sends `call`, which changes something, to `backends` at once.
    async fn change(&self, call: &Call, backends: &[Arc<Backend>]) -> Vec<Part> {
        let sent = backends.iter().cloned().map(|backend| async move {
            let result = self.change_at(call, &backend).await;
            Part { backend, result }
        });
        join_all(sent).await
    }

    /// Sends `call`, which changes something. A call that a backend has got runs to its end: a backend that is busy with
    /// it may leave a probe unanswered. A backend that hangs already does not get it.
    async fn change_at(&self, call: &Call, backend: &Backend) -> Result<Answer, Status> {
        match backend.hangs() {
            Some(status) => Err(status),
            None => {
                let headers = call.reading_headers();
                let answer = backend.ask(call.row, &headers, call.body.clone()).await?;
                backend.saved().await?;
                Ok(answer)
            }
        }
    }

    /// The first reply that went well, if every backend's did or has one of `fine`; else every one that failed.
    fn all_well(&self, parts: Vec<Part>, fine: &[Code]) -> Result<Reply, Failed> {
        let (mut well, mut other, mut failed) = (None, None, Vec::new());
        for Part { backend, result } in parts {
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
            None => Err(status::no_backend().into()),
        }
    }

    /// Learns from the answer of `backend` to a pod that its image is present or was pulled.
    pub(crate) fn learn_image(&self, call: &Call, backend: BackendId, reply: &[u8]) {
        if let Then::HaveImage(path) | Then::NewImage(path) = call.row.then {
            let id = wire::string(reply, path).unwrap_or_default();
            self.note_asking(call, vec![backend], id);
        }
    }

    /// `call`, a `CreateContainer`, with the owner's own id of its image if it names one that the owner does not have.
    pub(crate) async fn with_own_image(&self, call: &Call, owner: &Arc<Backend>) -> Call {
        match self.own_image(call, owner).await {
            Some(id) => call.with_string(CONTAINER_IMAGE, &id),
            None => call.clone(),
        }
    }

    /// The owner's id of the image, if it has to be another one than the call names. Whatever fails here, the owner
    /// will say better itself.
    async fn own_image(&self, call: &Call, owner: &Arc<Backend>) -> Option<String> {
        let message = call.message();
        let image = wire::string(&message, CONTAINER_IMAGE).ok()?;
        let name = wire::string(&message, CONTAINER_IMAGE_NAME).ok()?;
        let is_known = self.has_answered(call, owner.id, image, name) || call.live.is_alone();
        if is_known
            || name.is_empty()
            || name == image
            || self.image_at(call, owner, image).await?.is_some()
        {
            return None;
        }
        self.image_at(call, owner, name).await?
    }

    /// Whether the pod of `call`, a `CreateContainer`, has the id of its image from `owner`.
    fn has_answered(&self, call: &Call, owner: BackendId, image: &str, name: &str) -> bool {
        let message = call.message();
        let answered = find::seen_by(call, &message)
            .and_then(|seen| self.pod_requests().creates(seen, image, name));
        answered.is_some_and(|answered| answered.id == image && answered.stores == [owner])
    }

    /// The id of an image at a backend; `Some(None)` if it has none, `None` if it does not say.
    async fn image_at(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        image: &str,
    ) -> Option<Option<String>> {
        let ask = image_status(call, image);
        let result = backend
            .ask(ask.row, &ask.reading_headers(), ask.body.clone())
            .await;
        let (answer, has) = self.has_image(backend, result).ok()?;
        if !has {
            return Some(None);
        }
        let message = backend.message(&answer).ok()?;
        wire::string(&message, &[1, 1])
            .ok()
            .map(|id| Some(id.to_owned()))
    }

    fn pod_requests(&self) -> MutexGuard<'_, PodRequests> {
        let requests = self.pod_requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner)
    }
}

/// An `ImageStatus` for a reference or id, asked for the sake of `call`.
fn image_status(call: &Call, reference: &str) -> Call {
    Call {
        row: &rpc::IMAGE_STATUS,
        body: wire::frame(&wire::with_string(&[], REFERENCE, reference)),
        ..call.clone()
    }
}
