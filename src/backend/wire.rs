//! An open connection to a backend.

use std::fmt;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::RecvStream;
use h2::client::{Connection, SendRequest};
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
    ) -> Result<http::Response<IncomingBody>, Status> {
        // The backend starts to count later, so it never finds that the deadline has passed before criswitch does.
        let deadline = grpc::timeout(request.headers()).map(|timeout| Instant::now() + timeout);
        let sent = self.send_until(request).await;
        let response = sent.map_err(|error| errors::of_http2(error, deadline))?;
        Ok(response.map(|stream| IncomingBody::new(stream, deadline)))
    }

    async fn send_until(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<RecvStream>, h2::Error> {
        let (head, body) = request.into_parts();
        let ready = self.requests.clone().ready().await;
        let mut requests = ready.inspect_err(|_| self.over.cancel())?;
        let head = http::Request::from_parts(head, ());
        let (response, mut stream) = requests.send_request(head, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        response.await
    }
}
