//! A connection to the daemon or to a runtime, for the generated clients.

use std::error::Error;
use std::fmt;
use std::task::{Context, Poll};

use criswitch_config::address::Address;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::grpc::GRPC_STATUS;
use criswitch_cri::error_text::{cannot_connect, error_chain, of_http2};
use criswitch_cri::rpc::Row;
use criswitch_platform::Server;
use criswitch_platform::file_work::{FileWork, NO_ANSWER};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

/// The largest size of the headers and trailers of a reply, in bytes. The text of an error is a header.
const LONGEST_HEADERS: u32 = 1 << 20;

type BoxError = Box<dyn Error + Send + Sync>;

/// An open connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// Sends calls on the connection.
    pub channel: Channel,
    /// The process that serves the socket.
    pub server: Option<Server>,
    /// Ends when the connection has ended.
    pub ended: JoinHandle<()>,
}

/// Sends the calls of generated clients over one connection.
#[derive(Clone)]
pub struct Channel(http2::SendRequest<Body>);

/// The reply to a call did not come. The text is the cause.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

impl ClientConnection {
    /// Connects to the process that serves at an address. Needs a tokio runtime.
    ///
    /// # Errors
    /// If no connection opens: the cause.
    pub async fn open(address: &Address) -> Result<ClientConnection, String> {
        let path = address.path().to_owned();
        let dialed = FileWork::default()
            .run(move || criswitch_platform::dial(&path))
            .await
            .ok_or(NO_ANSWER)?
            .map_err(|error| cannot_connect(&error))?;
        let (stream, server) = dialed
            .stream()
            .await
            .map_err(|error| cannot_connect(&error))?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(LONGEST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| cause(&error))?;
        Ok(ClientConnection {
            channel: Channel(requests),
            server,
            ended: tokio::spawn(connection.map(drop)),
        })
    }
}

impl Channel {
    /// Calls the RPC in `row`. Returns the gRPC code of the reply and the body, in which each message has a gRPC frame.
    /// A reply of more than `most` bytes has the code `ResourceExhausted` and no body.
    ///
    /// # Errors
    /// If no reply comes.
    pub async fn reply(
        &self,
        row: &Row,
        request: &[u8],
        most: usize,
    ) -> Result<(Code, Bytes), TransportError> {
        let request = Request::post(format!("http://localhost{}", row.path()))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Body::new(Full::new(frames::frame(request))))
            .map_err(|error| TransportError(error.to_string()))?;
        let response = self
            .clone()
            .call(request)
            .await
            .map_err(|error| TransportError(cause(&*error)))?;
        if let Some(code) = code_in(response.headers()) {
            return Ok((code, Bytes::new()));
        }
        let read = match Limited::new(response.into_body(), most).collect().await {
            Ok(read) => read,
            Err(error) if error.is::<LengthLimitError>() => {
                return Ok((Code::ResourceExhausted, Bytes::new()));
            }
            Err(error) => return Err(TransportError(cause(&*error))),
        };
        let code = read.trailers().and_then(code_in);
        Ok((code.unwrap_or(Code::Unknown), read.to_bytes()))
    }
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    Some(Code::from_bytes(headers.get(GRPC_STATUS)?.as_bytes()))
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sent = self.0.send_request(request);
        async move {
            let response = sent.await?;
            match response.status() {
                StatusCode::OK => Ok(response),
                other => {
                    Err(format!("its HTTP status is {other}, so it does not speak gRPC").into())
                }
            }
        }
        .boxed()
    }
}

/// The origin of the calls of generated clients.
pub(crate) fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

/// Why no reply came; `None` if the server sent `status`.
pub fn lost(status: &Status) -> Option<TransportError> {
    Some(TransportError(cause(status.source()?)))
}

/// The cause of an error in plain words.
fn cause(error: &(dyn Error + 'static)) -> String {
    of_connection(error).map_or_else(|| error_chain(error), of_http2)
}

/// The error of HTTP/2 among the causes of an error.
fn of_connection<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e h2::Error> {
    error
        .downcast_ref::<h2::Error>()
        .or_else(|| of_connection(error.source()?))
}
