//! Replies to the client. A body here cannot fail: whatever breaks ends it with a status in the trailers, so that no
//! reply that was cut off looks complete.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tonic::Status;

use crate::answer::Answer;
use crate::backend::{Backend, error_chain};
use crate::counts::{Counts, Reason};
use crate::ending::Cut;
use crate::memory::{Held, Memory, Unread};
use crate::rpc::List;
use crate::telemetry::CallLog;
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

/// The answer to a request that is not gRPC (gRPC over HTTP/2: `Content-Type`).
pub fn not_grpc() -> Reply {
    let mut reply = Reply::default();
    *reply.status_mut() = http::StatusCode::UNSUPPORTED_MEDIA_TYPE;
    reply
}

/// One message, given in chunks, and OK.
pub fn of_message(chunks: Vec<Bytes>) -> Reply {
    let length = chunks.iter().map(Bytes::len).sum();
    // A client that counts empty frames as a flood would end its connection after some of them.
    let chunks = chunks.into_iter().filter(|chunk| !chunk.is_empty());
    let frames = std::iter::once(wire::frame_header(length))
        .chain(chunks)
        .map(Frame::data);
    let frames = frames.chain(std::iter::once(Frame::trailers(ok_trailers())));
    with_body(Whole(frames.collect()).boxed_unsync())
}

/// An answer that was read, as it came.
pub fn of_answer(answer: Answer) -> Reply {
    if answer.body.is_empty() && answer.trailers.is_none() {
        // Its headers are its end: grpc-go takes a status in them only if nothing follows, not even an empty frame.
        return http::Response::from_parts(answer.head, Body::default());
    }
    let data = (!answer.body.is_empty()).then(|| Frame::data(answer.body));
    let trailers = answer.trailers.map(Frame::trailers);
    let frames = data.into_iter().chain(trailers).collect();
    http::Response::from_parts(answer.head, Whole(frames).boxed_unsync())
}

/// An answer whose message was changed on the way.
pub fn of_changed(mut answer: Answer, message: &[u8]) -> Reply {
    answer.head.headers.remove(header::CONTENT_LENGTH);
    of_answer(Answer {
        body: wire::frame(message),
        ..answer
    })
}

/// Messages that come one by one, each in its frame; the stream ends with the trailers.
pub fn of_frames(
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> Reply {
    with_body(StreamBody::new(frames).boxed_unsync())
}

fn with_body(body: Body) -> Reply {
    let mut reply = http::Response::new(body);
    reply.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    reply
}

/// A backend's response, unread; at its end its client knows more of `list` than was last kept of it.
pub fn passed(
    response: http::Response<Incoming>,
    backend: Arc<Backend>,
    list: Option<List>,
) -> Reply {
    let ended = response.headers().contains_key(GRPC_STATUS);
    response.map(|inner| {
        Passed {
            inner,
            backend,
            list,
            ended,
        }
        .boxed_unsync()
    })
}

/// `reply`, with its end told to `log`, and ended with the status of `cut` if it still goes on then.
pub(crate) fn watched(reply: Reply, mut log: CallLog, cut: Cut) -> Reply {
    if let Some(code) = reply.headers().get(GRPC_STATUS) {
        log.end(text(code));
    }
    if reply.body().is_end_stream() {
        return reply;
    }
    let cut = Some(cut);
    reply.map(|inner| Watched { inner, log, cut }.boxed_unsync())
}

/// `reply`, which counts in the memory of its client's connection until it is sent; if there is none, it is refused, or
/// ended where that shows.
pub(crate) fn counted(
    reply: Reply,
    rpc: &'static str,
    unread: &Memory,
    counts: &Arc<Counts>,
) -> Reply {
    if reply.body().is_end_stream() {
        return reply;
    }
    let mut held = unread.held();
    let there = reply.body().size_hint().lower();
    if held
        .grow(usize::try_from(there).unwrap_or(usize::MAX))
        .is_err()
    {
        counts.refuse(Reason::Unread);
        return of_status(&status::unread_replies(rpc, unread.limit()));
    }
    let (limit, counts) = (unread.limit(), Arc::clone(counts));
    reply.map(|inner| {
        let inner = Some(inner);
        Counted {
            inner,
            held,
            rpc,
            limit,
            counts,
        }
        .boxed_unsync()
    })
}

/// `reply`, with something that is let go when it has ended.
pub fn holding(reply: Reply, held: impl Send + Unpin + 'static) -> Reply {
    if reply.body().is_end_stream() {
        return reply;
    }
    reply.map(|inner| Holding { inner, _held: held }.boxed_unsync())
}

fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
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

/// A backend's body; its death in the middle becomes a status.
struct Passed {
    inner: Incoming,
    backend: Arc<Backend>,
    list: Option<List>,
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
                if let (true, Some(list)) = (self.ended, self.list) {
                    self.backend.learn(|known| known.lists.outdate(list));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            _ if self.ended => return Poll::Ready(None),
            Some(Err(error)) => error_chain(&error),
            None => "its reply ended without a status".to_owned(),
        };
        self.ended = true;
        let status = status::unavailable(&self.backend.name(), &self.backend.socket, &cause);
        Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.inner.is_end_stream()
    }
}

/// Frames that are all there.
struct Whole(VecDeque<Frame<Bytes>>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    /// At least: a length that is certain would become a header.
    fn size_hint(&self) -> SizeHint {
        let data = self.0.iter().filter_map(Frame::data_ref);
        let mut hint = SizeHint::new();
        hint.set_lower(data.map(|data| data.len() as u64).sum());
        hint
    }
}

/// A body whose data is held in the memory of its client's connection, also when it waits in that to be sent.
struct Counted {
    /// None once it was ended.
    inner: Option<Body>,
    /// What is there of it.
    held: Held,
    rpc: &'static str,
    limit: usize,
    /// Where it is told if it was refused.
    counts: Arc<Counts>,
}

impl Counted {
    fn hold(&mut self, data: Bytes) -> Result<Bytes, Unread> {
        let missing = data.len().saturating_sub(self.held.bytes());
        self.held.grow(missing)?;
        Ok(self.held.split(data.len()).with(data))
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let Some(Ok(frame)) = ready!(Pin::new(inner).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let frame = match frame.into_data() {
            Err(frame) => frame,
            Ok(data) => match self.hold(data) {
                Ok(data) => Frame::data(data),
                Err(_) => {
                    self.inner = None;
                    self.counts.refuse(Reason::Unread);
                    let status = status::unread_replies(self.rpc, self.limit);
                    Frame::trailers(trailers(&status))
                }
            },
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }
}

/// A body, and what is held as long as it lasts.
struct Holding<T> {
    inner: Body,
    _held: T,
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// A body whose end is told, and that ends at the latest when it is cut.
struct Watched {
    inner: Body,
    log: CallLog,
    /// None once it was.
    cut: Option<Cut>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Watched { inner, log, cut } = &mut *self;
        let frame = match log.step(|| Pin::new(&mut *inner).poll_frame(cx)) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                let Some(ends) = cut else {
                    return Poll::Pending;
                };
                let status = ready!(ends.as_mut().poll(cx));
                *cut = None;
                // Nothing more is wanted of the backend.
                *inner = Body::default();
                Frame::trailers(trailers(&status))
            }
        };
        if let Some(data) = frame.data_ref() {
            log.sent(data.len());
        }
        if let Some(code) = frame
            .trailers_ref()
            .and_then(|trailers| trailers.get(GRPC_STATUS))
        {
            log.end(text(code));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_whose_headers_end_it_is_not_followed_by_an_empty_frame() {
        let refused = of_status(&Status::not_found("no such image"));
        let (head, _) = refused.into_parts();
        let answer = Answer {
            head,
            body: Bytes::new(),
            trailers: None,
        };
        let reply = of_answer(answer);
        assert_eq!(reply.headers().get(GRPC_STATUS).unwrap(), "5");
        assert!(reply.body().is_end_stream());
    }
}
