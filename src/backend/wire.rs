//! An open connection to a backend.

use std::fmt;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::client::{Connection, SendRequest};
use h2::{Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::codec::grpc;
use crate::errors;
use crate::http2::IncomingBody;

/// Ends when the connection has ended, or when it rejects a call because the backend has sent GOAWAY. After GOAWAY, the
/// calls in flight go on.
pub type Driver = BoxFuture<'static, Result<(), h2::Error>>;

/// An open connection, on which calls are sent. The connection closes when all clones of this value are dropped and all
/// calls have ended.
#[derive(Clone)]
pub struct Wire {
    requests: SendRequest<Bytes>,
    /// Cancelled when the connection rejects a call, or when a GOAWAY of the backend excludes a call in flight.
    over: CancellationToken,
}

/// A call that failed before the headers of its reply.
pub(super) struct SendFailure {
    pub(super) status: Status,
    /// Whether the backend has certainly not processed the call (gRFC A6): the call never left criswitch, the backend
    /// rejected its stream with `REFUSED_STREAM`, or the backend's GOAWAY names an earlier call as the last one.
    pub(super) is_unprocessed: bool,
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

    /// Whether the connection takes no further calls, because the backend has sent GOAWAY or has ended the connection.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Sends a request and returns the response once its headers have come. Dropping the future or the body of the
    /// response cancels the call.
    ///
    /// # Errors
    /// If the connection takes no further calls, or if the call fails.
    pub async fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<IncomingBody>, Status> {
        self.try_send(request).await.map_err(|failed| failed.status)
    }

    /// Like [`Wire::send`]. The error says whether the request may be sent again.
    pub(super) async fn try_send(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<IncomingBody>, SendFailure> {
        // The backend starts to count later, so it never finds that the deadline has passed before criswitch does.
        let deadline = grpc::timeout(request.headers()).map(|timeout| Instant::now() + timeout);
        match self.send_until(request).await {
            Ok(response) => Ok(response.map(|stream| IncomingBody::new(stream, deadline))),
            Err((error, is_unprocessed)) => Err(SendFailure {
                status: errors::of_http2(error, deadline),
                is_unprocessed,
            }),
        }
    }

    /// Like [`Wire::try_send`]. The error has the value of [`SendFailure::is_unprocessed`].
    async fn send_until(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<RecvStream>, (h2::Error, bool)> {
        let (head, body) = request.into_parts();
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.map_err(|error| {
            self.over.cancel();
            (error, true)
        })?;
        let head = http::Request::from_parts(head, ());
        let sent = requests.send_request(head, body.is_empty());
        let (response, mut stream) = sent.map_err(|error| (error, true))?;
        if !body.is_empty() {
            let sent = stream.send_data(body, true);
            sent.map_err(|error| (error, false))?;
        }
        response.await.map_err(|error| {
            // h2 gives this error only to the calls after the last one that the GOAWAY names. An earlier call goes on,
            // and fails with an I/O error if the connection ends before the reply.
            let is_after_last = error.is_go_away() && error.is_remote();
            if is_after_last {
                self.over.cancel();
            }
            let is_rejected = error.is_reset()
                && error.is_remote()
                && error.reason() == Some(Reason::REFUSED_STREAM);
            (error, is_after_last || is_rejected)
        })
    }
}
