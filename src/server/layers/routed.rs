//! A layer that separates the services of the socket: the CRI and criswitch's own admin service.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::header::CONTENT_TYPE;
use tower::Service;

use super::{ReplyFuture, RpcRequest};
use crate::admin::AdminCalls;
use crate::call::reply::{self, Reply};
use crate::errors;
use crate::http2::IncomingBody;
use crate::limits::budget::Budget;
use crate::limits::places::User;
use crate::rpc;
use crate::switch::Switch;
use crate::telemetry::counters::{Counts, Reason};

/// Finds the row of a CRI request in the RPC table. Passes requests for the admin service to that service. Rejects
/// unknown RPCs, and requests that are not gRPC.
#[derive(Clone, Debug)]
pub(in crate::server) struct Routed<S> {
    inner: S,
    counts: Arc<Counts>,
    admin: AdminCalls,
}

impl<S> Routed<S> {
    pub(in crate::server) fn new(
        inner: S,
        switch: &Arc<Switch>,
        user: User,
        unread: &Budget,
    ) -> Routed<S> {
        Routed {
            inner,
            counts: Arc::clone(&switch.counts),
            admin: AdminCalls::new(switch, user, unread),
        }
    }
}

impl<S> Service<http::Request<IncomingBody>> for Routed<S>
where
    S: Service<RpcRequest, Response = Reply, Error = Infallible>,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = Either<S::Future, ReplyFuture>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<IncomingBody>) -> Self::Future {
        let path = request.uri().path();
        let rejected = if !is_grpc(&request) {
            self.counts.refuse(Reason::NotGrpc);
            reply::not_grpc()
        } else if let Some(row) = rpc::find(path) {
            return Either::Left(self.inner.call(RpcRequest { row, request }));
        } else if AdminCalls::has(path) {
            let reply = self.admin.answer(request);
            return Either::Right(Box::pin(async { Ok(reply.await) }));
        } else {
            self.counts.refuse(Reason::UnknownRpc);
            reply::of_status(&errors::no_such_rpc(path))
        };
        Either::Right(Box::pin(ready(Ok(rejected))))
    }
}

fn is_grpc(request: &http::Request<IncomingBody>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
