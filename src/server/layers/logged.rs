//! The body of a reply whose call is logged and counted.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use criswitch_cri::codec::grpc::GRPC_STATUS;
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::call::log::CallLog;
use crate::call::reply::{Body, FramePoll, Reply};

/// Updates the log line and the counters of a call until its reply ends.
pub(super) fn logged(reply: Reply, log: Arc<CallLog>) -> Reply {
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
