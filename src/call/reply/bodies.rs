//! The bodies of replies: none of them fails, each ends with a status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::{Body, FramePoll};
use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::Failed;
use crate::codec::grpc::{GRPC_STATUS, trailers};
use crate::errors::{self, error_chain};
use crate::limits::budget::{self, HeldBytes, Reservation, Unread};
use crate::rpc::List;
use crate::telemetry::counters::{Counts, Reason};

/// A backend's body; its death in the middle becomes a status.
pub(super) struct PassedBody {
    pub(super) inner: Incoming,
    pub(super) backend: Arc<Backend>,
    pub(super) list: Option<List>,
    /// What it lists all items of.
    pub(super) whole: Option<List>,
    /// A status has been seen, so the end is one.
    pub(super) ended: bool,
}

impl PassedBody {
    /// Notes the status in `end`, if there is one.
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

/// Frames that are all there.
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

    /// At least, with the trailers: a length that is certain would become a header.
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

/// Keeps `held` until `end`, the headers or trailers that end a reply, is sent. Until then h2 has them in a queue of its
/// own, and the reply's body is dropped already.
pub(super) fn hold_until_sent(end: &mut HeaderMap, held: impl Send + 'static) {
    if let Some(status) = end.get_mut(GRPC_STATUS) {
        let (bytes, _held) = (status.clone(), held);
        let held = HeldBytes { bytes, _held };
        if let Ok(mut held) = HeaderValue::from_maybe_shared(Bytes::from_owner(held)) {
            // A value that is sensitive has no place in HPACK's table, where it would stay.
            held.set_sensitive(true);
            *status = held;
        }
    }
}

/// A body that is held in the memory of its client's connection, also when it waits in that to be sent.
pub(super) struct CountedBody {
    /// None once it was ended.
    pub(super) inner: Option<Body>,
    /// What is there of it.
    pub(super) held: Reservation,
    /// What is held until its end is sent.
    pub(super) end: Reservation,
    pub(super) rpc: &'static str,
    pub(super) limit: usize,
    /// Where it is told if it was refused.
    pub(super) counts: Arc<Counts>,
}

impl CountedBody {
    /// So many bytes that are held apart from the rest.
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

    /// The end of a reply for which there is no room.
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
