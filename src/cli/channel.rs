//! Implements `tower::Service` for a connection. The generated gRPC clients need this trait.

use std::task::{Context, Poll};

use criswitch::backend::wire::Wire;
use criswitch::http2::IncomingBody;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use tonic::body::Body;
use tower::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends the calls of a generated client over one connection.
#[derive(Clone)]
pub(super) struct Channel(pub(super) Wire);

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<IncomingBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let wire = self.0.clone();
        async move {
            let (head, body) = request.into_parts();
            // The requests of commands are small, so the whole body fits in memory.
            let body = body.collect().await?.to_bytes();
            let sent = wire.send(http::Request::from_parts(head, body));
            Ok(sent.await?)
        }
        .boxed()
    }
}
