//! A layer that logs and counts calls.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use tower::Service;

use super::{ReplyFuture, RpcRequest};
use crate::call::log::CallLog;
use crate::call::reply::{Body, FramePoll, Reply};
use crate::codec::grpc::GRPC_STATUS;
use crate::limits::places::Places;
use crate::switch::Switch;
use crate::telemetry::counters::Counts;

/// Makes the log line and the counters of a call, and updates them until the reply ends.
#[derive(Clone, Debug)]
pub(in crate::server) struct Logged<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S> Logged<S> {
    pub(in crate::server) fn new(inner: S, switch: &Arc<Switch>) -> Logged<S> {
        let counts = Arc::clone(&switch.counts);
        Logged { inner, counts }
    }
}

impl<S> Service<(RpcRequest, Places)> for Logged<S>
where
    S: Service<(RpcRequest, Places, Arc<CallLog>), Response = Reply, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = ReplyFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, (rpc, place): (RpcRequest, Places)) -> ReplyFuture {
        let log = CallLog::begin(rpc.row, rpc.request.headers(), &self.counts);
        let log = Arc::new(log);
        let reply = self.inner.call((rpc, place, Arc::clone(&log)));
        Box::pin(async move {
            let reply = log.doing(pin!(reply)).await?;
            Ok(logged(reply, log))
        })
    }
}

fn logged(reply: Reply, log: Arc<CallLog>) -> Reply {
    if reply.headers().contains_key(GRPC_STATUS) {
        log.end(reply.headers());
    }
    if reply.body().is_end_stream() {
        return reply;
    }
    reply.map(|inner| LoggedBody { inner, log }.boxed_unsync())
}

/// The body of a reply. Records the body's length and the final status in `log`.
struct LoggedBody {
    inner: Body,
    log: Arc<CallLog>,
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let LoggedBody { inner, log } = &mut *self;
        let polled = log.step(|| Pin::new(&mut *inner).poll_frame(cx));
        let Some(Ok(frame)) = ready!(polled) else {
            return Poll::Ready(None);
        };
        if let Some(data) = frame.data_ref() {
            log.sent(data.len());
        }
        let trailers = frame.trailers_ref();
        if let Some(trailers) = trailers.filter(|trailers| trailers.contains_key(GRPC_STATUS)) {
            log.end(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}
