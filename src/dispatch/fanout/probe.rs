//! Answers a client that asks with an empty id whether the node has an RPC. The kubelet probes `PodSandboxStats` in
//! this way, once, at its start. Unless the reply is `Unimplemented`, the kubelet gets the stats of all pods from the
//! runtime until it restarts.

use std::pin::pin;
use std::sync::Arc;

use criswitch_cri::codec::frames;
use futures_util::future::join_all;
use tonic::Code;

use crate::backend::Backend;
use crate::call::{Call, Failed, named};
use crate::errors;

/// The answer to `call`, whose id is empty. It is always an error, because no pod or container has an empty id:
/// `Unimplemented` if one of `backends` lacks the RPC, or may lack it, and otherwise `InvalidArgument`.
///
/// Each backend gets an empty request and has `list_timeout` to answer it. A backend that does not answer counts as
/// lacking the RPC, unless an earlier answer shows that it has the RPC. A wrong `Unimplemented` does less harm than a
/// wrong `InvalidArgument`: the client uses its fallback, which works for every backend.
pub(crate) async fn lacking(call: &Call, backends: &[Arc<Backend>]) -> Failed {
    let asked = backends.iter().map(|backend| lack(call, backend));
    let lacks = join_all(asked).await.into_iter().flatten().next();
    lacks.unwrap_or_else(|| match call.row.probe() {
        Some((kind, _)) => errors::empty_id(call.row.name, kind).into(),
        None => errors::impossible(call.row.name).into(),
    })
}

/// Why `backend` counts as lacking the RPC; `None` if it has the RPC.
async fn lack(call: &Call, backend: &Backend) -> Option<Failed> {
    let row = call.row;
    let asked = pin!(backend.ask_own(None, row, frames::frame(&[])));
    match call.within(backend.list_timeout(), asked).await {
        Ok(Ok(answer)) if answer.code() == Code::Unimplemented => Some(named(backend, answer)),
        Ok(Ok(_)) => None,
        silent => {
            let why = match silent {
                Ok(Err(status)) => status.message().to_owned(),
                _ => backend.timed_out(row).message().to_owned(),
            };
            let has_rpc = backend
                .record
                .learn(|known| known.offered.contains(row.name));
            (!has_rpc).then(|| errors::may_lack(row.name, &why).into())
        }
    }
}
