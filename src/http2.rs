//! The body of a message that criswitch receives over HTTP/2. Both sides use h2 directly: hyper's client adds a task and
//! two channels to each call, and its server begins all calls that a client has sent before the backends' tasks run.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::{Body, Frame};

/// The body of a client's request or of a backend's response.
#[derive(Debug)]
pub struct IncomingBody {
    stream: RecvStream,
    is_data_over: bool,
}

impl From<RecvStream> for IncomingBody {
    fn from(stream: RecvStream) -> IncomingBody {
        IncomingBody {
            stream,
            is_data_over: false,
        }
    }
}

impl IncomingBody {
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
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(IncomingBody::poll_frame(&mut self, cx)) {
            // After a complete reply, a server may send RST_STREAM with NO_ERROR, because it does not need the rest of
            // the request (RFC 9113, 8.1).
            Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => Poll::Ready(None),
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}
