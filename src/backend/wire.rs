//! An open connection to a backend. h2 is driven directly: hyper's client adds a task and two channels to each call.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::client::{Connection, SendRequest};
use h2::{Reason, RecvStream};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Ends when the connection has ended, or when it rejects a call because the backend has sent GOAWAY. After GOAWAY, the
/// calls in flight go on.
pub type Driver = BoxFuture<'static, Result<(), h2::Error>>;

/// An open connection, on which calls are sent. The connection closes when all clones of this value are dropped and all
/// calls have ended.
#[derive(Clone)]
pub struct Wire {
    requests: SendRequest<Bytes>,
    /// Cancelled when the connection rejects a call.
    over: CancellationToken,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    /// Spawns a task that drives `connection`, whose handshake is done.
    pub(super) fn of<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        requests: SendRequest<Bytes>,
        connection: Connection<I, Bytes>,
    ) -> (Wire, Driver) {
        let over = CancellationToken::new();
        let (driven, rejected) = (tokio::spawn(connection), over.clone());
        let driver = async move {
            tokio::select! {
                // The task has no result only if the task panicked or if tokio shuts down.
                ended = driven => ended.unwrap_or(Ok(())),
                () = rejected.cancelled() => Ok(()),
            }
        };
        (Wire { requests, over }, driver.boxed())
    }

    /// Sends a request and returns the response once its headers have come. Dropping the future or the body of the
    /// response cancels the call.
    ///
    /// # Errors
    /// If the connection takes no further calls, or if the call fails.
    pub async fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<WireBody>, h2::Error> {
        let (head, body) = request.into_parts();
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.inspect_err(|_| self.over.cancel())?;
        let head = http::Request::from_parts(head, ());
        let (response, mut stream) = requests.send_request(head, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let is_data_over = false;
        let response = response.await?;
        Ok(response.map(|stream| WireBody {
            stream,
            is_data_over,
        }))
    }
}

/// The body of a backend's response.
#[derive(Debug)]
pub struct WireBody {
    stream: RecvStream,
    is_data_over: bool,
}

impl WireBody {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let data = match ready!(self.stream.poll_data(cx)).transpose()? {
            Some(data) => data,
            None => return Poll::Ready(None),
        };
        // criswitch limits unread bytes in its budgets, so the backend may always send more. `release_capacity` fails
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

impl Body for WireBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(WireBody::poll_frame(&mut self, cx)) {
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
