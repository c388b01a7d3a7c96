//! The bodies of replies. A body never returns an error; it ends with a status instead.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use criswitch_cri::codec::grpc::{GRPC_STATUS, trailers};
use criswitch_cri::rpc::List;
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};

use super::{Body, FramePoll};
use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::fault::PassedCall;
use crate::errors;
use crate::limits::budget::{self, HeldBytes, Reservation, Unread};
use crate::limits::incoming::IncomingBody;
use crate::telemetry::counters::{Counts, Reason};

/// A backend's body that criswitch forwards without reading it. If the backend breaks off, the body ends with an error
/// status.
pub(super) struct PassedBody {
    pub(super) inner: IncomingBody,
    pub(super) backend: Arc<Backend>,
    pub(super) list: Option<List>,
    /// The call, if the body has all items of its list.
    pub(super) whole: Option<PassedCall>,
    /// Whether the status has arrived. If the body ends without a status, that is an error.
    pub(super) ended: bool,
}

impl PassedBody {
    /// Records the status in the headers or trailers `end`, if they have one.
    pub(super) fn ends(&mut self, end: &HeaderMap) {
        if !end.contains_key(GRPC_STATUS) {
            return;
        }
        self.ended = true;
        if let Some(whole) = self.whole {
            let answer = Answer::of_end(end.clone());
            whole.note(&self.backend, &answer);
            self.backend.record.note_rpc(whole.row, answer.lacks());
        }
    }
}

impl http_body::Body for PassedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let status = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
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
            Some(Err(status)) => self.backend.broken_off(&status),
            None => self.backend.unavailable("its reply ended without a status"),
        };
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

    /// Returns a lower bound that includes the trailers.
    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.0.iter().map(|frame| size(frame) as u64).sum());
        hint
    }
}

fn size(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len) + frame.trailers_ref().map_or(0, budget::size)
}

/// Keeps `held` until `end` is sent: the headers or trailers that end a reply. `end` may wait in a queue of h2 after
/// the reply's body is dropped, so the value of `grpc-status` in `end` owns `held`.
pub(super) fn hold_until_sent(end: &mut HeaderMap, held: impl Send + 'static) {
    if let Some(status) = end.get_mut(GRPC_STATUS) {
        let (bytes, _held) = (status.clone(), held);
        let held = HeldBytes { bytes, _held };
        if let Ok(mut held) = HeaderValue::from_maybe_shared(Bytes::from_owner(held)) {
            // HPACK's table would keep the value after it is sent. A sensitive value is not added to the table.
            held.set_sensitive(true);
            *status = held;
        }
    }
}

/// A body that counts towards the memory of its client's connection until its data is sent.
pub(super) struct CountedBody {
    /// `None` after the end.
    pub(super) inner: Option<Body>,
    /// The memory reserved for data that this body has not returned yet.
    pub(super) held: Reservation,
    /// The memory that stays reserved until the end of the reply is sent.
    pub(super) end: Reservation,
    pub(super) rpc: &'static str,
    pub(super) limit: usize,
    /// Counts the reply if it is rejected.
    pub(super) counts: Arc<Counts>,
}

impl CountedBody {
    /// Takes `bytes` from `held`, after adding the bytes that `held` lacks.
    fn hold(&mut self, bytes: usize) -> Result<Reservation, Unread> {
        self.held.grow(bytes.saturating_sub(self.held.bytes()))?;
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

    /// Ends the reply, because there is no memory for the rest of it. Returns the trailers with the error.
    fn rejected(&mut self) -> Frame<Bytes> {
        self.inner = None;
        self.counts.reject(Reason::Unread);
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
