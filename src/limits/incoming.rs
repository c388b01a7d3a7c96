//! The body of a message that criswitch receives over HTTP/2. Both sides use h2 directly. hyper's client would add a
//! task and two channels to each call. hyper's server would begin all calls that a client has sent before the tasks of
//! the backends run.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::{Body, Frame};
use tokio::time::Instant;
use tonic::Status;

use crate::errors;
use crate::limits::streams::CallSlots;

/// The body of a client's request or of a backend's response.
#[derive(Debug)]
pub struct IncomingBody {
    stream: RecvStream,
    is_data_over: bool,
    /// The deadline of the call.
    deadline: Option<Instant>,
    /// The slots of a call to a backend, until its stream has ended.
    slots: Option<CallSlots>,
}

impl IncomingBody {
    pub(crate) fn new(stream: RecvStream, deadline: Option<Instant>) -> IncomingBody {
        IncomingBody {
            stream,
            is_data_over: false,
            deadline,
            slots: None,
        }
    }

    /// Frees `slots` when the stream has ended.
    pub(crate) fn holding(mut self, slots: CallSlots) -> IncomingBody {
        self.slots = Some(slots);
        self
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let data = match ready!(self.stream.poll_data(cx)).transpose()? {
            Some(data) => data,
            None => return Poll::Ready(None),
        };
        // criswitch limits unread bytes in its budgets, so the peer may always send more. `release_capacity` fails
        // only for a wrong length.
        self.stream.flow_control().release_capacity(data.len()).ok();
        Poll::Ready(Some(Ok(data)))
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.is_data_over {
            if let Some(data) = ready!(self.poll_data(cx)) {
                return Poll::Ready(Some(data.map(Frame::data)));
            }
            self.is_data_over = true;
        }
        let trailers = ready!(self.stream.poll_trailers(cx)).transpose();
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)))
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(IncomingBody::poll_frame(&mut self, cx));
        if !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            self.slots = None;
        }
        match frame {
            // After a complete reply, a server may send RST_STREAM with NO_ERROR, because it does not need the rest of
            // the request (RFC 9113, 8.1).
            Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => Poll::Ready(None),
            frame => Poll::Ready(
                frame.map(|frame| frame.map_err(|error| errors::of_http2(error, self.deadline))),
            ),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}
