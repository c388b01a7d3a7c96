//! `ImageStatus` of a pod that is not known, and of no pod.

use std::sync::Arc;

use super::REFERENCE;
use super::stores::{Said, Stored, agree};
use crate::backend::Backend;
use crate::call::{Call, Failed};
use crate::reply::{self, Reply};
use crate::route::Stores;
use crate::rpc::{Goes, ImageRule, SEEN_ANNOTATION};
use crate::switch::Switch;
use crate::{status, wire};

impl Switch {
    /// Answers a pod that is not known by its annotations. After a restart of the kubelet no older pod is.
    ///
    /// The image is present if all stores that the pod may use have the same image. Otherwise the answer is "absent":
    /// the kubelet then pulls the image, and the pull names the pod. A pod that asks again without a pull never pulls,
    /// and gets the image of a store that has it.
    pub(crate) async fn find_for_some_pod(
        &self,
        call: &Call,
        stores: &Stores,
    ) -> Result<Reply, Failed> {
        let all = stores.all.iter().map(|id| call.live.backend(*id).cloned());
        let all = all.collect::<Result<Vec<Arc<Backend>>, _>>()?;
        let mut said = self.ask_stores(call, &all).await;
        // The stores that the pod likely uses come first.
        let is_likely = |said: &Said| stores.likely.contains(&said.backend.id);
        said.sort_by_key(|said| !is_likely(said));
        let is_known = |said: &&Said| !matches!(said.image, Stored::Unknown);
        let mut likely = said.iter().filter(|said| is_likely(said)).filter(is_known);
        if likely.clone().next().is_none() {
            // A store that is away starts no container either. Without any other nothing can be said.
            let failed = said.into_iter().find_map(Said::into_failed);
            return Err(failed.unwrap_or_else(|| status::no_backend().into()));
        }
        let is_present = likely.all(|said| said.image().is_some()) && agree(&said);
        let has_any = said.iter().any(|said| said.image().is_some());
        if has_any && (is_present || self.asks_again(call)) {
            return present(said);
        }
        Ok(absent(said))
    }

    /// Whether the pod that sends `call` has had the answer "absent" before, and did not pull the image.
    fn asks_again(&self, call: &Call) -> bool {
        let Goes::Image(_, ImageRule::Find(annotations)) = call.row.goes else {
            return false;
        };
        let message = call.message();
        let seen = wire::entry(&message, annotations, SEEN_ANNOTATION);
        let reference = wire::string(&message, REFERENCE);
        match (seen, reference) {
            (Ok(Some(seen)), Ok(reference)) => self.pod_requests().is_absent_again(seen, reference),
            _ => false,
        }
    }
}

/// The answer of the first store that has the image.
fn present(said: Vec<Said>) -> Result<Reply, Failed> {
    let mut having = said.into_iter().filter(|said| said.image().is_some());
    let first = having.next().ok_or_else(status::no_backend)?;
    Ok(first.into_reply())
}

/// The answer of the first store that says that it does not have the image.
fn absent(said: Vec<Said>) -> Reply {
    match said.into_iter().find(Said::says_absent) {
        Some(lacking) => lacking.into_reply(),
        None => reply::of_message(Vec::new()),
    }
}
