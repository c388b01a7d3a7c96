//! One backend: its connection, kept alive by a task of its own, and the calls that go to it.
//!
//! A call is sent once; nothing here sends it again.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header, uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::address::Address;
use crate::answer::Answer;
use crate::config::BackendConfig;
use crate::dialer::{Connection, Dialer};
use crate::known::{Absent, Known};
use crate::link::{Link, State};
use crate::memory::{Memory, Unread, Whole};
use crate::owners::BackendId;
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
/// Calls that are sent to a backend that is proven to hang, without an answer to any. One that its client has given up
/// takes 4 kB until the backend reads again: HTTP/2 has to tell it of the call and of its end.
const MOST_UNANSWERED: usize = 256;

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
    /// How long a merged call waits for it where something can stand in.
    pub list_timeout: Duration,
    /// What its replies that are read take.
    pub memory: Memory,
    dialer: Dialer,
    link: watch::Sender<Link>,
    retry: Notify,
    suspected: Notify,
    missed: Notify,
    owed: Notify,
    /// Calls sent since it hangs, or since it last answered one.
    unanswered: AtomicUsize,
    known: Mutex<Known>,
}

/// An open connection.
pub type Wire = SendRequest<Full<Bytes>>;
impl Backend {
    /// A backend that is not connected yet.
    pub fn new(
        id: BackendId,
        config: &BackendConfig,
        max_message: usize,
        dialer: Dialer,
    ) -> Backend {
        let link = Link {
            state: State::Connecting,
            since: SystemTime::now(),
            transitions: 0,
            failures: 0,
        };
        Backend {
            id,
            name: config.name.clone(),
            socket: config.socket.clone(),
            max_message,
            list_timeout: config.list_timeout,
            memory: Memory::for_messages(max_message),
            dialer,
            link: watch::Sender::new(link),
            retry: Notify::new(),
            suspected: Notify::new(),
            missed: Notify::new(),
            owed: Notify::new(),
            unanswered: AtomicUsize::new(0),
            known: Mutex::default(),
        }
    }

    /// The state of the connection now.
    pub fn link(&self) -> Link {
        self.link.borrow().clone()
    }

    /// What it last said of itself.
    pub fn known(&self) -> Known {
        self.locked().clone()
    }

    /// Changes what is known of it.
    pub fn learn(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.locked());
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection; the future is what drives it, and ends with it.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub async fn connect(&self) -> Result<(Wire, Connection), String> {
        self.dialer.connect(&self.socket).await
    }

    /// Which file its socket is now, `None` if there is none.
    pub(crate) fn socket_file(&self) -> Option<(u64, u64)> {
        let Address::Unix(path) = &self.socket;
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    }

    /// What a status of this backend says without its name, which goes before every cause.
    pub(crate) fn cause(&self, status: &Status) -> String {
        let named = self.unavailable("");
        let message = status.message();
        let cause = message.strip_prefix(named.message()).unwrap_or(message);
        cause.to_owned()
    }

    /// Changes the state; one log line for each change, none for another cause of the same state.
    pub(crate) fn set(&self, state: State) {
        let changed = self.link().state.name() != state.name();
        if changed {
            log_change(self, &state);
            self.unanswered.store(0, Ordering::Relaxed);
        }
        self.link.send_modify(|link| {
            if changed {
                link.since = SystemTime::now();
                link.transitions += 1;
            }
            link.failures += u64::from(matches!(state, State::Down(_)));
            link.state = state;
        });
    }

    /// The open connection; if there is none, what the next attempt to make one comes to.
    async fn wire(&self) -> Result<Wire, Status> {
        let Link {
            state, failures, ..
        } = self.link();
        match state {
            State::Ready(wire) => return Ok(wire),
            State::Unresponsive(wire, cause) => return self.one_more(wire, &cause),
            State::Connecting | State::Down(_) => {}
        }
        self.retry.notify_one();
        let mut link = self.link.subscribe();
        let changed = link.wait_for(|now| match now.state {
            State::Ready(_) | State::Unresponsive(..) => true,
            State::Connecting | State::Down(_) => now.failures > failures,
        });
        match changed.await.map(|link| link.state.clone()) {
            Ok(State::Ready(wire) | State::Unresponsive(wire, _)) => Ok(wire),
            Ok(State::Down(cause)) => Err(self.unavailable(&cause)),
            _ => Err(self.unavailable("not connected")),
        }
    }

    /// The connection to a backend that hangs, unless enough calls have been sent there already.
    fn one_more(&self, wire: Wire, cause: &str) -> Result<Wire, Status> {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) < MOST_UNANSWERED {
            return Ok(wire);
        }
        Err(self.unavailable(cause))
    }

    /// Waits until a call wants a connection that there is not.
    pub(crate) async fn wanted(&self) {
        self.retry.notified().await;
    }

    /// Waits until it has been ready.
    pub(crate) async fn ready(&self) {
        let mut link = self.link.subscribe();
        link.wait_for(|now| matches!(now.state, State::Ready(_)))
            .await
            .ok();
    }

    /// Waits until a call has taken so long that it may hang.
    pub(crate) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Waits until it has missed a list.
    pub(crate) async fn missed(&self) {
        self.missed.notified().await;
    }

    /// Waits until it has missed the runtime's configuration.
    pub(crate) async fn owed(&self) {
        self.owed.notified().await;
    }

    /// It has missed the runtime's configuration and may be there all the same: it is told as soon as it can be.
    pub(crate) fn owe(&self) {
        self.owed.notify_one();
    }

    /// It has missed a list: it is probed, and asked in the background until it answers.
    pub(crate) fn miss(&self) {
        self.suspected.notify_one();
        self.missed.notify_one();
        let mut known = self.locked();
        if !std::mem::replace(&mut known.behind, true) {
            let timeout = self.list_timeout;
            tracing::warn!(backend = %self.name, ?timeout, "backend is late with a list; it is asked in the background");
        }
    }

    /// Its image store has changed.
    pub(crate) fn images_changed(&self) {
        self.locked().lists.images_changed();
    }

    /// It has been listed whole.
    pub(crate) fn caught_up(&self) {
        let mut known = self.locked();
        let was_behind = std::mem::take(&mut known.behind);
        if std::mem::take(&mut known.absent) != Absent::default() || was_behind {
            tracing::info!(backend = %self.name, "backend is in lists and statistics again");
        }
    }

    /// Its last known list has stood in for it; told once until it is back.
    pub(crate) fn stands_in(&self, rpc: &str) {
        let mut known = self.locked();
        known.stood_in += 1;
        if !std::mem::replace(&mut known.absent.stale, true) {
            tracing::warn!(backend = %self.name, rpc, "the last known lists stand in for a silent backend");
        }
    }

    /// A merged reply did without it; told once until it is back.
    pub(crate) fn is_left_out(&self, rpc: &str, status: &Status) {
        let mut known = self.locked();
        known.left_out += 1;
        if !std::mem::replace(&mut known.absent.left_out, true) {
            let cause = status.message();
            tracing::warn!(backend = %self.name, rpc, cause, "a silent backend is left out of statistics");
        }
    }

    /// Why there is no use in asking it for a list now.
    pub(crate) fn silence(&self) -> Option<Status> {
        let link = self.link();
        match link.state.cause() {
            Some(cause) => Some(self.unavailable(cause)),
            None if self.locked().behind => Some(self.unavailable("it is late with its lists")),
            None => None,
        }
    }

    /// When it last answered anything.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.locked().answered
    }

    /// Runs what was asked of it to its end, or until a probe has proven that it hangs. Something that takes long is
    /// no proof, but a reason to probe.
    ///
    /// # Errors
    /// `Unavailable` if it hangs, else what `asked` says.
    pub(crate) async fn patiently<T, E: From<Status>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut link = self.link.subscribe();
        let hangs = link.wait_for(|now| matches!(now.state, State::Unresponsive(..)));
        let (mut asked, mut hangs) = (std::pin::pin!(asked), std::pin::pin!(hangs));
        loop {
            tokio::select! {
                biased;
                result = &mut asked => return result,
                link = &mut hangs => {
                    let cause = link.ok().and_then(|link| link.state.cause().cloned());
                    return Err(self.unavailable(&cause.unwrap_or_default()).into());
                }
                () = tokio::time::sleep(self.list_timeout) => self.suspected.notify_one(),
            }
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
        self.unanswered.store(0, Ordering::Relaxed);
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
        let Whole { body, trailers } = self
            .memory
            .read(&head.headers, body, limit)
            .await
            .map_err(|unread| self.unread(&unread))?;
        self.locked().answered = Some(Instant::now());
        let answer = Answer {
            head,
            body,
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

    /// Why a reply of its could not be read.
    pub(crate) fn unread(&self, unread: &Unread) -> Status {
        match unread {
            Unread::TooLarge => {
                status::backend_reply_too_large(&self.name, &self.socket, self.max_message)
            }
            Unread::NoMemory(limit) => {
                status::no_memory_for_reply(&self.name, &self.socket, *limit)
            }
            Unread::Broken(cause) => self.unavailable(cause),
        }
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

fn log_change(backend: &Backend, state: &State) {
    let (name, socket, state, cause) = (
        &backend.name,
        &backend.socket,
        state.name(),
        state.cause().map(AsRef::as_ref),
    );
    match state {
        "ready" => tracing::info!(backend = %name, %socket, "backend is ready"),
        _ => tracing::warn!(backend = %name, %socket, cause, "backend is {state}"),
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
