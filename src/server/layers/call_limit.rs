//! A layer that limits the calls in flight.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use tower::Service;

use super::RpcRequest;
use crate::call::reply::{self, Reply};
use crate::errors;
use crate::limits::places::{Places, User};
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// Takes a permit for each call of a client, or rejects the call. `user` says which limits apply to the client.
#[derive(Clone, Debug)]
pub(in crate::server) struct CallLimit<S> {
    inner: S,
    switch: Arc<Switch>,
    user: User,
}

impl<S> CallLimit<S> {
    pub(in crate::server) fn new(inner: S, switch: &Arc<Switch>, user: User) -> CallLimit<S> {
        let switch = Arc::clone(switch);
        CallLimit {
            inner,
            switch,
            user,
        }
    }
}

impl<S> Service<RpcRequest> for CallLimit<S>
where
    S: Service<(RpcRequest, Places), Response = Reply, Error = Infallible>,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Reply, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, rpc: RpcRequest) -> Self::Future {
        match self.switch.calls.place(rpc.row, self.user) {
            Ok(place) => Either::Left(self.inner.call((rpc, place))),
            Err(limit) => {
                self.switch.counts.refuse(Reason::Calls);
                let status = errors::too_many_calls(rpc.row.name, limit.most, limit.what);
                Either::Right(ready(Ok(reply::of_status(&status))))
            }
        }
    }
}
