//! One backend: its connection, kept alive by a task of its own, and the calls that go to it.
//!
//! The only module that connects. A call is sent once; nothing here sends it again.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header, uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use percent_encoding::percent_decode;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tonic::{Code, Status};

use crate::address::Address;
use crate::config::BackendConfig;
use crate::owners::BackendId;
use crate::reply::{GRPC_MESSAGE, GRPC_STATUS, ok_trailers};
use crate::rpc::Row;
use crate::telemetry;
use crate::wire::Malformed;
use crate::{status, wire};

/// Header lists up to this size pass, both ways: a 16 KiB `grpc-message` must.
pub const MAX_HEADERS: u32 = 1 << 20;
/// What one stream may have under way unread, in bytes.
pub const STREAM_WINDOW: u32 = 1 << 20;
/// What all streams of a connection may have: HTTP/2's largest, so that one unread stream never holds up another.
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// The wait after a first failed connection; doubled by each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest wait between two connections; also grpc-go's in the kubelet.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// A CRI socket that is called.
#[derive(Debug)]
pub struct Backend {
    /// Its place in the table's order.
    pub id: BackendId,
    /// Its name in the configuration.
    pub name: String,
    /// Where it serves.
    pub socket: Address,
    /// The largest reply, in bytes, that is read.
    pub max_message: usize,
    link: watch::Sender<Link>,
    retry: Notify,
    known: Mutex<Known>,
}

/// The state of the connection.
#[derive(Clone, Debug)]
pub struct Link {
    /// What it is now.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
    /// How many connections have failed or ended.
    failures: u64,
}

/// What the connection is now.
#[derive(Clone, Debug)]
pub enum State {
    /// The first connection is being made.
    Connecting,
    /// Its pods are listed and calls go to it.
    Ready(Wire),
    /// The last connection failed or ended; the next is made by itself, or as soon as a call wants it.
    Down(Arc<str>),
}

/// What a backend last said of itself, as encoded.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its `VersionResponse`.
    pub version: Bytes,
    /// Its `StatusResponse`, not verbose.
    pub status: Bytes,
}

/// An open connection.
pub type Wire = SendRequest<Full<Bytes>>;

/// A unary reply, read whole.
#[derive(Debug)]
pub struct Answer {
    /// Status line and headers.
    pub head: http::response::Parts,
    /// The body, framed; at most `max_message` and the frame's header long.
    pub body: Bytes,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    /// An answer made of a message alone.
    pub fn of_message(message: &[u8]) -> Answer {
        let (mut head, ()) = http::Response::new(()).into_parts();
        head.headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        );
        Answer {
            head,
            body: wire::frame(message),
            trailers: Some(ok_trailers()),
        }
    }

    fn status_header(&self, name: &str) -> Option<&HeaderValue> {
        self.trailers
            .as_ref()
            .and_then(|trailers| trailers.get(name))
            .or_else(|| self.head.headers.get(name))
    }

    /// Its gRPC code, `Unknown` for one that gRPC doesn't know; `None` if the reply ended without one.
    pub fn status(&self) -> Option<Code> {
        self.status_header(GRPC_STATUS)
            .map(|code| Code::from_bytes(code.as_bytes()))
    }

    /// Its gRPC code; `Unknown` without one.
    pub fn code(&self) -> Code {
        self.status().unwrap_or(Code::Unknown)
    }

    /// What ends it: its trailers, or the headers of a reply that has nothing else.
    pub fn into_trailers(self) -> HeaderMap {
        match self.trailers {
            Some(trailers) if trailers.contains_key(GRPC_STATUS) => trailers,
            _ => {
                let mut headers = self.head.headers;
                headers.remove(header::CONTENT_TYPE);
                headers
            }
        }
    }

    /// Its `grpc-message` as sent, percent-encoded.
    pub fn text(&self) -> &[u8] {
        self.status_header(GRPC_MESSAGE)
            .map_or(&[], HeaderValue::as_bytes)
    }

    /// Its `grpc-message` as it was meant, to be part of another text.
    pub fn plain_text(&self) -> Cow<'_, str> {
        percent_decode(self.text()).decode_utf8_lossy()
    }

    /// Puts another `grpc-message` in the place of its own.
    pub fn set_text(&mut self, text: HeaderValue) {
        match &mut self.trailers {
            Some(trailers) if trailers.contains_key(GRPC_STATUS) => {
                trailers.insert(GRPC_MESSAGE, text)
            }
            _ => self.head.headers.insert(GRPC_MESSAGE, text),
        };
    }
}

impl Backend {
    /// A backend that is not connected yet: see [`Backend::maintain`].
    pub fn new(id: BackendId, config: &BackendConfig, max_message: usize) -> Backend {
        let link = Link {
            state: State::Connecting,
            since: SystemTime::now(),
            failures: 0,
        };
        Backend {
            id,
            name: config.name.clone(),
            socket: config.socket.clone(),
            max_message,
            link: watch::Sender::new(link),
            retry: Notify::new(),
            known: Mutex::default(),
        }
    }

    /// The state of the connection now.
    pub fn link(&self) -> Link {
        self.link.borrow().clone()
    }

    /// What it last said of itself.
    pub fn known(&self) -> Known {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes what is known of it.
    pub fn learn(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Keeps a connection for ever; each new one is ready once `greet` has succeeded over it.
    pub async fn maintain<G: Future<Output = Result<(), Status>>>(
        &self,
        greet: impl Fn(Wire) -> G,
    ) {
        let mut pause = FIRST_PAUSE;
        loop {
            let (was_ready, cause) = self.connection(&greet).await;
            self.down(&cause);
            if was_ready {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = LONGEST_PAUSE.min(pause * 2),
                () = self.retry.notified() => {}
            }
        }
    }

    /// Makes one connection and keeps it to its end: whether it was ready, and why it ended.
    async fn connection<G: Future<Output = Result<(), Status>>>(
        &self,
        greet: &impl Fn(Wire) -> G,
    ) -> (bool, String) {
        let (wire, connection) = match self.connect().await {
            Ok(connected) => connected,
            Err(cause) => return (false, cause),
        };
        let mut connection = std::pin::pin!(connection);
        let ended = |result: hyper::Result<()>| match result {
            Ok(()) => "it closed the connection".to_owned(),
            Err(error) => error_chain(&error),
        };
        tokio::select! {
            result = &mut connection => return (false, ended(result)),
            greeted = greet(wire.clone()) => match greeted {
                Ok(()) => self.set(State::Ready(wire)),
                Err(status) => return (false, self.cause(&status)),
            },
        }
        tracing::info!(backend = %self.name, socket = %self.socket, "backend is ready");
        (true, ended(connection.await))
    }

    async fn connect(
        &self,
    ) -> Result<(Wire, impl Future<Output = hyper::Result<()>> + use<>), String> {
        let Address::Unix(path) = &self.socket;
        let stream = UnixStream::connect(path)
            .await
            .map_err(|error| format!("cannot connect: {error}"))?;
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADERS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error_chain(&error))
    }

    /// What a status of this backend says without its name, which goes before every cause.
    fn cause(&self, status: &Status) -> String {
        let named = self.unavailable("");
        let message = status.message();
        let cause = message.strip_prefix(named.message()).unwrap_or(message);
        cause.to_owned()
    }

    fn down(&self, cause: &str) {
        if !matches!(self.link().state, State::Down(_)) {
            tracing::warn!(backend = %self.name, socket = %self.socket, cause, "backend is down");
        }
        self.set(State::Down(cause.into()));
    }

    fn set(&self, state: State) {
        self.link.send_modify(|link| {
            if std::mem::discriminant(&link.state) != std::mem::discriminant(&state) {
                link.since = SystemTime::now();
            }
            link.failures += u64::from(matches!(state, State::Down(_)));
            link.state = state;
        });
    }

    /// The open connection; if there is none, what the next attempt to make one comes to.
    async fn wire(&self) -> Result<Wire, Status> {
        let mut link = self.link.subscribe();
        let Link {
            state, failures, ..
        } = self.link();
        if let State::Ready(wire) = state {
            return Ok(wire);
        }
        self.retry.notify_one();
        let changed = link
            .wait_for(|now| matches!(now.state, State::Ready(_)) || now.failures > failures)
            .await;
        match changed.as_deref() {
            Ok(Link {
                state: State::Ready(wire),
                ..
            }) => Ok(wire.clone()),
            Ok(Link {
                state: State::Down(cause),
                ..
            }) => Err(self.unavailable(cause)),
            _ => Err(self.unavailable("not connected")),
        }
    }

    /// Sends one call and gives the response as soon as its headers are there; dropped, it cancels the call.
    ///
    /// # Errors
    /// `Unavailable` if the backend cannot be reached or dies before it answers.
    pub async fn call(
        &self,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Status> {
        telemetry::note_backend(&self.name);
        let wire = self.wire().await?;
        self.call_over(wire, row, headers, body).await
    }

    async fn call_over(
        &self,
        mut wire: Wire,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Status> {
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = self.uri(row)?;
        request.headers_mut().clone_from(headers);
        // The body may be another one than the client's.
        request.headers_mut().remove(header::CONTENT_LENGTH);
        let response = wire
            .send_request(request)
            .await
            .map_err(|error| self.unavailable(&error_chain(&error)))?;
        if response.status() != http::StatusCode::OK {
            let cause = format!("it answers {}, which is not gRPC", response.status());
            return Err(status::bad_reply(&self.name, &self.socket, &cause));
        }
        Ok(response)
    }

    fn uri(&self, row: &Row) -> Result<Uri, Status> {
        let mut parts = uri::Parts::default();
        parts.scheme = Some(uri::Scheme::HTTP);
        parts.authority = Some(uri::Authority::from_static("localhost"));
        parts.path_and_query = row.path().parse().ok();
        Uri::from_parts(parts)
            .map_err(|error| status::bad_reply(&self.name, &self.socket, &error.to_string()))
    }

    /// Sends one call and reads the whole reply.
    ///
    /// # Errors
    /// As [`Backend::call`]; `ResourceExhausted` if the reply is larger than `max_message`.
    pub async fn ask(&self, row: &Row, headers: &HeaderMap, body: Bytes) -> Result<Answer, Status> {
        let wire = self.wire().await?;
        self.ask_over(wire, row, headers, body).await
    }

    /// As [`Backend::ask`], over a connection that is not ready yet.
    ///
    /// # Errors
    /// As [`Backend::ask`].
    pub async fn ask_over(
        &self,
        wire: Wire,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Answer, Status> {
        let (head, body) = self.call_over(wire, row, headers, body).await?.into_parts();
        let limit = self.max_message.saturating_add(wire::FRAME_HEADER);
        let body = Limited::new(body, limit)
            .collect()
            .await
            .map_err(|error| self.broken(&*error))?;
        let trailers = body.trailers().cloned();
        let answer = Answer {
            head,
            body: body.to_bytes(),
            trailers,
        };
        if answer.status().is_none() {
            return Err(self.unavailable("its reply ended without a status"));
        }
        Ok(answer)
    }

    /// The message of a reply that went well.
    ///
    /// # Errors
    /// `Unavailable` with its text if it did not go well, `Internal` if it is not one plain gRPC message.
    pub fn message(&self, answer: &Answer) -> Result<Bytes, Status> {
        if answer.code() != Code::Ok {
            let cause = format!("it answers {:?}: {}", answer.code(), answer.plain_text());
            return Err(self.unavailable(&cause));
        }
        wire::unframe(&answer.body)
            .map_err(|fault| self.bad_reply(&format!("its reply is {fault}")))
    }

    fn broken(&self, error: &(dyn std::error::Error + Send + Sync + 'static)) -> Status {
        if error.is::<LengthLimitError>() {
            return status::backend_reply_too_large(&self.name, &self.socket, self.max_message);
        }
        self.unavailable(&error_chain(error))
    }

    /// `Unavailable`, naming this backend.
    pub fn unavailable(&self, cause: &str) -> Status {
        status::unavailable(&self.name, &self.socket, cause)
    }

    /// `Internal`, for a reply that is not protobuf where it is read.
    pub fn malformed(&self, fault: &Malformed) -> Status {
        self.bad_reply(&format!("its reply is malformed: {fault}"))
    }

    /// `Internal`, naming this backend.
    pub fn bad_reply(&self, cause: &str) -> Status {
        status::bad_reply(&self.name, &self.socket, cause)
    }
}

/// The headers of a call that the switch itself makes.
pub fn own_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        ),
        (header::TE, HeaderValue::from_static("trailers")),
        (
            header::USER_AGENT,
            HeaderValue::from_static(concat!("criswitch/", env!("CARGO_PKG_VERSION"))),
        ),
    ])
}

/// An error and its causes, outermost first.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
