//! The bodies of replies: none of them fails, each ends with a status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Body, GRPC_STATUS, trailers};
use crate::backend::{Backend, error_chain};
use crate::counts::{Counts, Reason};
use crate::ending::Cut;
use crate::memory::{Held, Unread};
use crate::rpc::List;
use crate::status;
use crate::telemetry::CallLog;

/// A backend's body; its death in the middle becomes a status.
pub(super) struct Passed {
    pub(super) inner: Incoming,
    pub(super) backend: Arc<Backend>,
    pub(super) list: Option<List>,
    /// A status has been seen, so the end is one.
    pub(super) ended: bool,
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
                    self.backend.outdate(list);
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
pub(super) struct Whole(pub(super) VecDeque<Frame<Bytes>>);

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
pub(super) struct Counted {
    /// None once it was ended.
    pub(super) inner: Option<Body>,
    /// What is there of it.
    pub(super) held: Held,
    pub(super) rpc: &'static str,
    pub(super) limit: usize,
    /// Where it is told if it was refused.
    pub(super) counts: Arc<Counts>,
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
pub(super) struct Holding<T> {
    pub(super) inner: Body,
    pub(super) _held: T,
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
pub(super) struct Watched {
    pub(super) inner: Body,
    pub(super) log: CallLog,
    /// None once it was.
    pub(super) cut: Option<Cut>,
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
            Poll::Ready(Some(Ok(frame))) => {
                // One that never waits is to end too.
                if frame.is_data()
                    && let Some(ends) = cut
                    && let Poll::Ready(status) = ends.as_mut().poll(cx)
                {
                    *cut = None;
                    *inner = Whole([Frame::trailers(trailers(&status))].into()).boxed_unsync();
                }
                frame
            }
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
