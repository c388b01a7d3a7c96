//! Limits the calls in flight.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use tower::Service;

use super::{Place, RpcRequest};
use crate::call::reply::{self, Reply};
use crate::errors;
use crate::limits::MAX_CALLS;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// Gives a call a place among the [`MAX_CALLS`] of all clients, or rejects it.
#[derive(Clone, Debug)]
pub(in crate::server) struct CallLimit<S> {
    inner: S,
    switch: Arc<Switch>,
}

impl<S> CallLimit<S> {
    pub(in crate::server) fn new(inner: S, switch: &Arc<Switch>) -> CallLimit<S> {
        let switch = Arc::clone(switch);
        CallLimit { inner, switch }
    }
}

impl<S> Service<RpcRequest> for CallLimit<S>
where
    S: Service<(RpcRequest, Place), Response = Reply, Error = Infallible>,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Reply, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, rpc: RpcRequest) -> Self::Future {
        match Arc::clone(&self.switch.calls).try_acquire_owned() {
            Ok(place) => Either::Left(self.inner.call((rpc, place))),
            Err(_) => {
                self.switch.counts.refuse(Reason::Calls);
                let status = errors::too_many_calls(rpc.row.name, MAX_CALLS);
                Either::Right(ready(Ok(reply::of_status(&status))))
            }
        }
    }
}
