//! The bodies of replies: none of them fails, and each ends with a status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};

use super::{Body, FramePoll};
use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::backend::wire::WireBody;
use crate::call::Failed;
use crate::codec::grpc::{GRPC_STATUS, trailers};
use crate::errors::{self, error_chain};
use crate::limits::budget::{self, HeldBytes, Reservation, Unread};
use crate::rpc::List;
use crate::telemetry::counters::{Counts, Reason};

/// A backend's body. If it breaks off, it ends with a status.
pub(super) struct PassedBody {
    pub(super) inner: WireBody,
    pub(super) backend: Arc<Backend>,
    pub(super) list: Option<List>,
    /// The list, if the body has all its items.
    pub(super) whole: Option<List>,
    /// Whether a status has come, so that the end of the body is no error.
    pub(super) ended: bool,
}

impl PassedBody {
    /// Records the status in `end`, if there is one.
    pub(super) fn ends(&mut self, end: &HeaderMap) {
        let Some(code) = end.get(GRPC_STATUS) else {
            return;
        };
        self.ended = true;
        if let Some(list) = self.whole {
            let failed = (code != "0").then(|| Failed::Answer(Answer::of_end(end.clone()).into()));
            let failed = failed.as_ref().map(Failed::told);
            self.backend.note_list(list, failed.as_deref());
        }
    }
}

impl http_body::Body for PassedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let cause = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.ends(trailers);
                }
                if let (true, Some(list)) = (self.ended, self.list) {
                    self.backend.outdate(list);
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            _ if self.ended => return Poll::Ready(None),
            Some(Err(error)) => error_chain(&error),
            None => "its reply ended without a status".to_owned(),
        };
        let status = errors::unavailable(&self.backend.name(), &self.backend.socket, &cause);
        let end = trailers(&status);
        self.ends(&end);
        Poll::Ready(Some(Ok(Frame::trailers(end))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.inner.is_end_stream()
    }
}

/// A body whose frames are all in memory.
pub(super) struct WholeBody(pub(super) VecDeque<Frame<Bytes>>);

impl http_body::Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> FramePoll {
        Poll::Ready(self.0.pop_front().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    /// A lower bound, with the trailers: an exact length would become a header.
    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.0.iter().map(|frame| size(frame) as u64).sum());
        hint
    }
}

fn size(frame: &Frame<Bytes>) -> usize {
    let data = frame.data_ref().map_or(0, Bytes::len);
    data + frame.trailers_ref().map_or(0, budget::size)
}

/// Keeps `held` until `end`, the headers or trailers that end a reply, is sent. Until then `end` waits in a queue of
/// h2, and the reply's body is already dropped.
pub(super) fn hold_until_sent(end: &mut HeaderMap, held: impl Send + 'static) {
    if let Some(status) = end.get_mut(GRPC_STATUS) {
        let (bytes, _held) = (status.clone(), held);
        let held = HeldBytes { bytes, _held };
        if let Ok(mut held) = HeaderValue::from_maybe_shared(Bytes::from_owner(held)) {
            // A sensitive value is not added to HPACK's table, which would keep it.
            held.set_sensitive(true);
            *status = held;
        }
    }
}

/// A body that counts towards the memory of its client's connection, also while the data waits to be sent.
pub(super) struct CountedBody {
    /// `None` after the end.
    pub(super) inner: Option<Body>,
    /// The memory of the data that has come.
    pub(super) held: Reservation,
    /// The memory that is held until the end is sent.
    pub(super) end: Reservation,
    pub(super) rpc: &'static str,
    pub(super) limit: usize,
    /// Counts the reply if it is rejected.
    pub(super) counts: Arc<Counts>,
}

impl CountedBody {
    /// Splits `bytes` off the memory that is held.
    fn hold(&mut self, bytes: usize) -> Result<Reservation, Unread> {
        let missing = bytes.saturating_sub(self.held.bytes());
        self.held.grow(missing)?;
        Ok(self.held.split(bytes))
    }

    fn counted(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Unread> {
        let held = self.hold(size(&frame))?;
        Ok(match frame.into_data() {
            Ok(data) => Frame::data(held.with(data)),
            Err(frame) => match frame.into_trailers() {
                Ok(mut trailers) => {
                    hold_until_sent(&mut trailers, (held, self.end.split(usize::MAX)));
                    Frame::trailers(trailers)
                }
                Err(frame) => frame,
            },
        })
    }

    /// The trailers that end a reply because there is no memory for more of the reply.
    fn rejected(&mut self) -> Frame<Bytes> {
        self.inner = None;
        self.counts.refuse(Reason::Unread);
        let mut trailers = trailers(&errors::unread_replies(self.rpc, self.limit));
        hold_until_sent(&mut trailers, self.end.split(usize::MAX));
        Frame::trailers(trailers)
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let Some(Ok(frame)) = ready!(Pin::new(inner).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let counted = self.counted(frame);
        Poll::Ready(Some(Ok(counted.unwrap_or_else(|_| self.rejected()))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }
}
