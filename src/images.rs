//! Image calls that name neither a handler nor a pod: every backend has an image store of its own.

mod find;
mod names;
mod pods;
mod stores;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
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

/// How many image references are remembered; a node has a few hundred.
const REFERENCES: usize = 4096;
/// The longest reference that is remembered, in bytes; a name has 255 at most, a tag 128, a digest less than 200.
const LONGEST_REFERENCE: usize = 1024;
/// The reference in a request (`image.image`).
const REFERENCE: &[u32] = &[1, 1];
/// The image reference in a `CreateContainerRequest` (`config.image.image`).
const CONTAINER_IMAGE: &[u32] = &[2, 2, 1];
/// What the pod's manifest calls it (`config.image.user_specified_image`).
const CONTAINER_IMAGE_NAME: &[u32] = &[2, 2, 18];

/// Which backend last answered for an image reference or id.
#[derive(Debug, Default)]
pub struct LastAnswers {
    backends: HashMap<String, BackendId>,
}

impl LastAnswers {
    fn note(&mut self, reference: &str, backend: BackendId) {
        // What is not remembered is asked for again.
        if reference.is_empty() || reference.len() > LONGEST_REFERENCE {
            return;
        }
        if self.backends.len() >= REFERENCES && !self.backends.contains_key(reference) {
            // Rarer than a restart; what is forgotten is asked for again.
            self.backends.clear();
        }
        self.backends.insert(reference.to_owned(), backend);
    }

    fn of(&self, reference: &str) -> Option<BackendId> {
        self.backends.get(reference).copied()
    }
}

impl Switch {
    /// Sends an image call to `backends` as its rule says.
    pub(crate) async fn to_image_stores(
        &self,
        call: &Call,
        rule: &ImageRule,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        match (rule, backends) {
            (_, [only]) if call.row.changes() => self.send(call, only, None).await,
            (_, [only]) => only.patiently(self.send(call, only, None)).await,
            (ImageRule::Find(_), _) => self.find_image(call, backends).await,
            (ImageRule::Pull(_), _) => self.pull_everywhere(call, backends).await,
            _ => self.remove_everywhere(call, backends).await,
        }
    }

    /// The backend that last had the image answers, else the first that has it; absent only if all say so.
    async fn find_image(&self, call: &Call, backends: &[Arc<Backend>]) -> Result<Reply, Failed> {
        let last = wire::string(&call.message(), REFERENCE)
            .ok()
            .and_then(|image| self.last_answers().of(image));
        let mut order: Vec<_> = backends.iter().collect();
        order.sort_by_key(|backend| Some(backend.id) != last);
        let headers = &call.reading_headers();
        let (mut absent, mut unanswered) = (None, None);
        let mut late = FuturesUnordered::new();
        for backend in order {
            let ask = backend.ask(call.row, headers, call.body.clone());
            let mut ask = Box::pin(backend.patiently(ask));
            match tokio::time::timeout(backend.list_timeout(), &mut ask).await {
                Ok(result) => match self.has_image(backend, result) {
                    Ok((answer, true)) => return self.found_image(call, backend, answer),
                    Ok((answer, false)) => absent = absent.or(Some(answer)),
                    Err(failed) => unanswered = unanswered.or(Some(failed)),
                },
                // The others may have it.
                Err(_) => late.push(async move { (backend, ask.await) }),
            }
        }
        while let Some((backend, result)) = late.next().await {
            match self.has_image(backend, result) {
                Ok((answer, true)) => return self.found_image(call, backend, answer),
                Ok((answer, false)) => absent = absent.or(Some(answer)),
                Err(failed) => unanswered = unanswered.or(Some(failed)),
            }
        }
        match (unanswered, absent) {
            (Some(failed), _) => Err(failed),
            (None, Some(answer)) => Ok(reply::of_answer(answer)),
            (None, None) => Err(status::no_backend().into()),
        }
    }

    fn found_image(&self, call: &Call, backend: &Backend, answer: Answer) -> Result<Reply, Failed> {
        self.remember_image(call, backend.id, &backend.message(&answer)?);
        Ok(reply::of_answer(answer))
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

    /// Removes from every image store; an image that one does not have is no failure.
    async fn remove_everywhere(
        &self,
        call: &Call,
        backends: &[Arc<Backend>],
    ) -> Result<Reply, Failed> {
        let parts = self.gather(call, backends).await;
        self.all_well(parts, &[Code::Unimplemented, Code::NotFound])
    }

    /// Sends `call`, which changes something, to `backends` at once. A call that a backend has got runs to its end: a
    /// backend that is busy with it may leave a probe unanswered. A backend that hangs already does not get it.
    async fn change(&self, call: &Call, backends: &[Arc<Backend>]) -> Vec<Part> {
        let headers = &call.reading_headers();
        let sent = backends.iter().cloned().map(|backend| async move {
            let result = match backend.hangs() {
                Some(status) => Err(status),
                None => backend.ask(call.row, headers, call.body.clone()).await,
            };
            Part { backend, result }
        });
        join_all(sent).await
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

    /// Notes that `backend` has the image of a call that went well.
    pub(crate) fn remember_image(&self, call: &Call, backend: BackendId, reply: &[u8]) {
        let (Then::HaveImage(path) | Then::NewImage(path)) = call.row.then else {
            return;
        };
        let message = call.message();
        let (Ok(reference), Ok(id)) =
            (wire::string(&message, REFERENCE), wire::string(reply, path))
        else {
            return;
        };
        if !id.is_empty() {
            let mut last = self.last_answers();
            last.note(reference, backend);
            last.note(id, backend);
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
        let known = call.live.is_alone() || self.last_answers().of(image) == Some(owner.id);
        if known
            || name.is_empty()
            || name == image
            || self.image_at(call, owner, image).await?.is_some()
        {
            return None;
        }
        self.image_at(call, owner, name).await?
    }

    /// The id of an image at a backend; `Some(None)` if it has none, `None` if it does not say.
    async fn image_at(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        image: &str,
    ) -> Option<Option<String>> {
        let body = wire::frame(&wire::with_string(&[], REFERENCE, image));
        let ask = Call {
            row: &rpc::IMAGE_STATUS,
            body,
            ..call.clone()
        };
        let result = backend
            .ask(ask.row, &ask.reading_headers(), ask.body.clone())
            .await;
        let (answer, has) = self.has_image(backend, result).ok()?;
        if !has {
            return Some(None);
        }
        let message = backend.message(&answer).ok()?;
        self.remember_image(&ask, backend.id, &message);
        wire::string(&message, &[1, 1])
            .ok()
            .map(|id| Some(id.to_owned()))
    }

    fn pod_requests(&self) -> MutexGuard<'_, PodRequests> {
        let requests = self.pod_requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner)
    }

    fn last_answers(&self) -> MutexGuard<'_, LastAnswers> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_remembered_up_to_a_number_and_a_length() {
        let mut last = LastAnswers::default();
        let (longest, longer) = ("x".repeat(1024), "x".repeat(1025));
        last.note(&longest, 1);
        last.note(&longer, 1);
        assert_eq!((last.of(&longest), last.of(&longer)), (Some(1), None));
        for number in 0..2 * REFERENCES {
            last.note(&number.to_string(), 1);
            assert!(last.backends.len() <= REFERENCES);
        }
    }
}
