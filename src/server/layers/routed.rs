//! Rejects what is not a call of the CRI.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use tower::Service;

use super::RpcRequest;
use crate::call::reply::{self, Reply};
use crate::errors;
use crate::rpc;
use crate::switch::Switch;
use crate::telemetry::counters::{Counts, Reason};

/// Gives a request the row of its RPC. Rejects a request that is not gRPC, or whose RPC is not in the table.
#[derive(Clone, Debug)]
pub(in crate::server) struct Routed<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S> Routed<S> {
    pub(in crate::server) fn new(inner: S, switch: &Arc<Switch>) -> Routed<S> {
        let counts = Arc::clone(&switch.counts);
        Routed { inner, counts }
    }
}

impl<S> Service<http::Request<Incoming>> for Routed<S>
where
    S: Service<RpcRequest, Response = Reply, Error = Infallible>,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Reply, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        if !is_grpc(&request) {
            self.counts.refuse(Reason::NotGrpc);
            return Either::Right(ready(Ok(reply::not_grpc())));
        }
        match rpc::find(request.uri().path()) {
            Some(row) => Either::Left(self.inner.call(RpcRequest { row, request })),
            None => {
                self.counts.refuse(Reason::UnknownRpc);
                let status = errors::no_such_rpc(request.uri().path());
                Either::Right(ready(Ok(reply::of_status(&status))))
            }
        }
    }
}

fn is_grpc(request: &http::Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
