//! The security profiles in the stores of several backends. A runtime may lack these RPCs.

use std::pin::pin;
use std::sync::Arc;

use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::fields::{ITEMS, PROFILE_DIGEST, security_profile_info};
use criswitch_cri::rpc::{self, Join};
use futures_util::future::join_all;
use tonic::Code;

use crate::backend::Backend;
use crate::call::reply::Reply;
use crate::call::{Call, Failed, Lesson, named};
use crate::dispatch::fanout::images::{self, remove};
use crate::dispatch::fanout::{self, Parts, Share};
use crate::dispatch::forward::short;
use crate::errors;
use crate::gate::Readable;
use crate::switch::Switch;

/// Lists the security profiles of all `backends`. Fails if the answer of a backend cannot be used.
pub(crate) async fn list(
    switch: &Switch,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Reply, Failed> {
    let shares = join_all(backends.iter().map(|backend| listed(call, backend))).await;
    let (mut parts, mut messages) = (Parts::default(), Vec::new());
    for (backend, share) in backends.iter().zip(shares) {
        let message = parts.add(share?);
        messages.extend(message.map(|message| (Arc::clone(backend), message)));
    }
    match parts.failure() {
        Some(lacking) => Err(lacking),
        None => fanout::one_message(switch, call, &Join::Profiles, messages),
    }
}

/// The security profiles of one backend.
async fn listed(call: &Call, backend: &Arc<Backend>) -> Result<Share, Failed> {
    let answer = short::in_time(call, backend, pin!(fanout::ask(call, backend))).await?;
    match answer.code() {
        Code::Ok => {
            let read = Readable::profiles(&backend.message(&answer)?);
            Ok(Share::Own(read.map_err(|fault| backend.bad_reply(&fault))?))
        }
        Code::Unimplemented => Ok(Share::Lacking(Failed::Answer(Box::new(answer)))),
        _ => Err(named(backend, answer)),
    }
}

/// Removes a security profile from the stores that list it, so that a store without the profile does not delay the
/// removal. If a store returns no list, removes the profile from the other stores, and then fails.
pub(crate) async fn remove(call: &Call, backends: &[Arc<Backend>]) -> Result<Reply, Failed> {
    let message = call.message();
    let digest = protobuf::string(&message, PROFILE_DIGEST)
        .map_err(|fault| errors::malformed(call.row.name, &fault))?;
    let list = list_call(call);
    let stores = join_all(backends.iter().map(|backend| listed(&list, backend))).await;
    let (mut failed, mut lacking, mut having) = (Vec::new(), Vec::new(), Vec::new());
    for (backend, store) in backends.iter().zip(stores) {
        match store {
            Ok(Share::Own(profiles)) if lists(&profiles, digest) => {
                having.push(Arc::clone(backend))
            }
            Ok(Share::Lacking(why)) => lacking.push(why),
            Ok(_) => {}
            Err(why) => failed.push(why),
        }
    }
    if lacking.len() == backends.len() {
        failed.append(&mut lacking);
    }
    let removals = images::change(call, &having).await;
    remove::removed(failed, removals.into_iter().map(Ok).collect())
}

/// A `ListSecurityProfiles` call. Its headers and routing table are those of `call`.
fn list_call(call: &Call) -> Call {
    let mut request = call.request.clone();
    request.row = &rpc::LIST_PROFILES;
    request.body = frames::frame(&[]);
    let lesson = Lesson::Nothing;
    Call { request, lesson }
}

fn lists(profiles: &[u8], digest: &str) -> bool {
    let digests = protobuf::strings(profiles, &[ITEMS, security_profile_info::DIGEST]);
    digests.is_ok_and(|digests| digests.contains(&digest))
}
