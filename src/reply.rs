//! Replies to the client. A body here cannot fail: whatever breaks ends it with a status in the trailers, so that no
//! reply that was cut off looks complete.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tonic::Status;

use crate::backend::{Answer, Backend, error_chain};
use crate::{status, wire};

/// A reply on its way to the client.
pub type Reply = http::Response<Body>;
/// Its body.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The header and trailer that ends every call.
pub const GRPC_STATUS: &str = "grpc-status";
/// Its text, percent-encoded.
pub const GRPC_MESSAGE: &str = "grpc-message";

/// A status and no message.
pub fn of_status(status: &Status) -> Reply {
    status.clone().into_http()
}

/// One message, given in chunks, and OK.
pub fn of_message(chunks: Vec<Bytes>) -> Reply {
    let length = chunks.iter().map(Bytes::len).sum();
    let frames = std::iter::once(wire::frame_header(length))
        .chain(chunks)
        .map(Frame::data);
    let frames = frames.chain(std::iter::once(Frame::trailers(ok_trailers())));
    of_frames(stream::iter(frames.map(Ok)))
}

/// An answer that was read, as it came.
pub fn of_answer(answer: Answer) -> Reply {
    let data = (!answer.body.is_empty()).then(|| Frame::data(answer.body));
    let trailers = answer.trailers.map(Frame::trailers);
    let frames = stream::iter(data.into_iter().chain(trailers).map(Ok));
    http::Response::from_parts(answer.head, StreamBody::new(frames).boxed_unsync())
}

/// An answer whose message was changed on the way.
pub fn of_changed(answer: Answer, message: &[u8]) -> Reply {
    of_answer(Answer {
        body: wire::frame(message),
        ..answer
    })
}

/// Messages that come one by one, each in its frame; the stream ends with the trailers.
pub fn of_frames(
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> Reply {
    let mut reply = http::Response::new(StreamBody::new(frames).boxed_unsync());
    reply.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    reply
}

/// A backend's response, unread.
pub fn passed(response: http::Response<Incoming>, backend: Arc<Backend>) -> Reply {
    let ended = response.headers().contains_key(GRPC_STATUS);
    response.map(|inner| {
        Passed {
            inner,
            backend,
            ended,
        }
        .boxed_unsync()
    })
}

/// `reply`, ended by `status` at `deadline` if it still goes on.
pub fn until(reply: Reply, deadline: Instant, status: Status) -> Reply {
    if reply.body().is_end_stream() {
        return reply;
    }
    let sleep = Box::pin(tokio::time::sleep_until(deadline));
    reply.map(|inner| {
        Until {
            inner,
            sleep,
            status: Some(status),
        }
        .boxed_unsync()
    })
}

/// The trailers that carry `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let (mut head, ()) = status.clone().into_http().into_parts();
    head.headers.remove(header::CONTENT_TYPE);
    head.headers
}

/// The trailers of a call that went well.
pub fn ok_trailers() -> HeaderMap {
    HeaderMap::from_iter([(
        header::HeaderName::from_static(GRPC_STATUS),
        HeaderValue::from_static("0"),
    )])
}

/// Turns a stream of messages and their end into frames.
pub fn framed(
    messages: impl Stream<Item = Result<Bytes, HeaderMap>>,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    messages.map(|message| {
        Ok(match message {
            Ok(message) => Frame::data(wire::frame(&message)),
            Err(trailers) => Frame::trailers(trailers),
        })
    })
}

/// A backend's body; its death in the middle becomes a status.
struct Passed {
    inner: Incoming,
    backend: Arc<Backend>,
    /// A status has been seen, so the end is one.
    ended: bool,
}

impl http_body::Body for Passed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let cause = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.ended |= frame
                    .trailers_ref()
                    .is_some_and(|trailers| trailers.contains_key(GRPC_STATUS));
                return Poll::Ready(Some(Ok(frame)));
            }
            _ if self.ended => return Poll::Ready(None),
            Some(Err(error)) => error_chain(&error),
            None => "its reply ended without a status".to_owned(),
        };
        self.ended = true;
        let status = status::unavailable(&self.backend.name, &self.backend.socket, &cause);
        Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.inner.is_end_stream()
    }
}

/// A body with a deadline.
struct Until {
    inner: Body,
    sleep: Pin<Box<Sleep>>,
    /// Taken when the deadline has passed.
    status: Option<Status>,
}

impl http_body::Body for Until {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.status.is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.sleep.as_mut().poll(cx));
        // Nothing more is wanted of the backend.
        self.inner = Body::default();
        Poll::Ready(
            self.status
                .take()
                .map(|status| Ok(Frame::trailers(trailers(&status)))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.status.is_none() || self.inner.is_end_stream()
    }
}
