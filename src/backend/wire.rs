//! An open connection to a backend, and the further connections for calls that find no free stream on it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use criswitch_cri::codec::grpc;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use h2::client::{Connection, SendRequest};
use h2::{Reason, RecvStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::errors;
use crate::limits::incoming::IncomingBody;
use crate::limits::places::User;
use crate::limits::streams::{
    CallSlots, OthersStreams, StreamQueue, StreamSlot, Streams, UserSlot,
};

/// Ends when the connection has ended, or when it rejects a call because the backend has sent GOAWAY. After GOAWAY, the
/// calls in flight go on.
pub type Driver = BoxFuture<'static, Result<(), h2::Error>>;

/// An open connection, on which calls are sent. If the backend allows few streams, the session opens further
/// connections, which the calls use too. The connections close when all clones of this value are dropped and all calls
/// have ended.
#[derive(Clone)]
pub struct Wire {
    shared: Arc<SharedWire>,
    used_for: WireUse,
    /// The user whose calls are sent.
    user: User,
}

/// The calls that are sent over a [`Wire`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum WireUse {
    /// The calls with which the session makes the connection ready and keeps it ready.
    Session,
    /// The session's probes.
    Probes,
    /// All further calls. None is sent while the wire is paused, or uses the stream that is kept free for the session.
    Calls,
}

/// All connections of a [`Wire`].
struct SharedWire {
    first: Arc<HttpConnection>,
    extra: Mutex<Vec<Arc<HttpConnection>>>,
    queue: Arc<StreamQueue>,
    /// Whether the backend is unresponsive.
    is_paused: AtomicBool,
    /// The calls of users other than root and criswitch's own user, on all connections.
    others: Arc<OthersStreams>,
}

/// One HTTP/2 connection.
struct HttpConnection {
    requests: SendRequest<Bytes>,
    /// The task that drives the connection.
    driven: AbortHandle,
    /// Cancelled when the connection rejects a call, or when a GOAWAY of the backend excludes a call in flight.
    over: CancellationToken,
    streams: Arc<Streams>,
    /// Whether a call was sent since [`Wire::close_unused`] last looked.
    was_used: AtomicBool,
}

/// A free connection and a stream of it.
type Free = (Arc<HttpConnection>, StreamSlot);

/// A call that failed before the headers of its reply.
pub(super) struct SendFailure {
    pub(super) status: Status,
    pub(super) progress: Progress,
}

/// How far a failed call came (gRFC A6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// The call never left criswitch.
    Unsent,
    /// The backend has certainly not processed the call: it rejected the stream with `REFUSED_STREAM`, or its GOAWAY
    /// names an earlier call as the last one.
    Rejected,
    /// The backend may have processed the call.
    Sent,
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
        let (queue, others) = (Arc::<StreamQueue>::default(), Arc::default());
        let driven = tokio::spawn(drive(connection, Arc::clone(&queue), Arc::clone(&others)));
        let (rejected, task) = (over.clone(), driven.abort_handle());
        let driver = async move {
            tokio::select! {
                // The task has no result only if the task panicked or if tokio shuts down.
                ended = driven => ended.unwrap_or(Ok(())),
                () = rejected.cancelled() => Ok(()),
            }
        };
        let first = HttpConnection {
            requests,
            driven: task,
            over,
            streams: Streams::new(Arc::clone(&queue)),
            was_used: AtomicBool::new(true),
        };
        let shared = SharedWire {
            first: Arc::new(first),
            extra: Mutex::default(),
            queue,
            is_paused: AtomicBool::new(false),
            others,
        };
        let wire = Wire {
            shared: Arc::new(shared),
            used_for: WireUse::Session,
            user: User::Own,
        };
        (wire, driver.boxed())
    }

    /// Whether the connection takes no further calls, because the backend has sent GOAWAY or has ended the connection.
    pub(super) fn is_over(&self) -> bool {
        self.shared.first.over.is_cancelled()
    }

    /// Sends no further calls on the connection. Calls that wait for a free stream end, so that the next connection
    /// gets them. Calls in flight go on.
    pub(crate) fn end(&self) {
        self.shared.first.over.cancel();
    }

    /// Whether no call is in flight or waits for a free stream.
    pub(crate) fn is_unused(&self) -> bool {
        let SharedWire {
            first,
            extra,
            queue,
            ..
        } = &*self.shared;
        let extra = extra.lock();
        let mut all = std::iter::once(first).chain(extra.iter());
        !queue.is_crowded() && all.all(|connection| connection.streams.is_unused())
    }

    /// Closes the connections, which ends the calls in flight.
    pub(crate) fn abort(&self) {
        self.shared.first.driven.abort();
        let extra = self.shared.extra.lock();
        extra
            .iter()
            .for_each(|connection| connection.driven.abort());
    }

    /// The same connection for probes.
    pub(crate) fn for_probes(&self) -> Wire {
        Wire {
            used_for: WireUse::Probes,
            ..self.clone()
        }
    }

    /// The same connection for calls that are not the session's own.
    pub(super) fn for_calls(self) -> Wire {
        Wire {
            used_for: WireUse::Calls,
            ..self
        }
    }

    fn is_for_probes(&self) -> bool {
        self.used_for == WireUse::Probes
    }

    /// Pauses the connection because the backend is unresponsive, or ends the pause. A call that waits for a free
    /// stream when a pause begins ends, because it was not sent. The session's calls go on.
    pub(super) fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
        self.shared.wake_all();
    }

    /// Whether the connection takes no call now because the backend is unresponsive.
    pub(super) fn is_paused(&self) -> bool {
        self.used_for == WireUse::Calls && self.shared.is_paused.load(Ordering::Relaxed)
    }

    /// The same connection for calls of `user`.
    pub(super) fn for_user(self, user: User) -> Wire {
        Wire { user, ..self }
    }

    /// The user whose calls are sent.
    pub(super) fn user(&self) -> User {
        self.user
    }

    /// Waits until a call finds a free stream.
    pub(crate) async fn free(&self) {
        let queue = &self.shared.queue;
        if self.take().is_none() {
            let is_probe = self.is_for_probes();
            queue.join(is_probe).until(|| self.take()).await;
        }
    }

    /// Waits until a call waits for a free stream.
    pub(crate) async fn crowded(&self) {
        self.shared.queue.crowded().await;
    }

    /// Uses `wire`, a new connection to the same process, for the calls that find no free stream.
    pub(crate) fn add(&self, wire: &Wire) {
        let added = &wire.shared.first;
        let added = HttpConnection {
            requests: added.requests.clone(),
            driven: added.driven.clone(),
            over: added.over.clone(),
            streams: Streams::new(Arc::clone(&self.shared.queue)),
            was_used: AtomicBool::new(true),
        };
        self.shared.extra.lock().push(Arc::new(added));
        self.shared.wake_all();
    }

    /// Removes the further connections that have ended, so that no call uses them.
    pub(crate) fn remove_ended(&self) {
        let mut extra = self.shared.extra.lock();
        extra.retain(|connection| !connection.is_over());
    }

    /// Closes the further connections on which no call was sent since this method was last called. Closes none while a
    /// call waits for a stream, because the session would open further connections again.
    pub(crate) fn close_unused(&self) {
        if self.shared.queue.is_crowded() {
            return;
        }
        self.shared.extra.lock().retain(|connection| {
            connection.was_used.swap(false, Ordering::Relaxed) || !connection.streams.is_unused()
        });
    }

    /// Takes a free stream of the first connection that has one. `None` if there is none. Does not check whether other
    /// calls wait for a stream.
    fn take(&self) -> Option<Free> {
        let SharedWire { first, extra, .. } = &*self.shared;
        let most = first.requests.current_max_send_streams();
        let is_of_session = self.used_for != WireUse::Calls;
        if !is_of_session && most == 1 && self.is_last_free() {
            return None;
        }
        let kept = usize::from(!is_of_session && most > 1);
        if let Some(slot) = first.streams.take(most.saturating_sub(kept)) {
            return Some((Arc::clone(first), slot));
        }
        let extra = extra.lock();
        let mut open = open(&extra);
        open.find_map(|connection| {
            // The settings of a new connection may not have arrived yet.
            let limit = most.min(connection.requests.current_max_send_streams());
            let slot = connection.streams.take(limit)?;
            connection.was_used.store(true, Ordering::Relaxed);
            Some((Arc::clone(connection), slot))
        })
    }

    /// Whether only one of several connections with one stream each is free. Its stream is kept free for the session.
    fn is_last_free(&self) -> bool {
        let extra = self.shared.extra.lock();
        let all = open(&extra).chain([&self.shared.first]);
        let free = all.filter(|connection| connection.streams.is_unused());
        !extra.is_empty() && free.count() == 1
    }

    /// Takes a free stream, and before that a part of the streams for other users if the call is of one. Waits if there
    /// is none. `None` if the connection takes no further calls or is paused.
    async fn slots(&self) -> Option<(Arc<HttpConnection>, CallSlots)> {
        let part = match self.user {
            User::Own => None,
            User::Other(user) => Some(Box::pin(self.part_of_others(user)).await?),
        };
        let (connection, slot) = self.stream().await?;
        Some((connection, (slot, part)))
    }

    /// Takes a part of the streams for other users. Waits for one if there is none: meanwhile the session opens further
    /// connections, with which these users may use more streams. `None` if the connection takes no further calls or is
    /// paused.
    async fn part_of_others(&self, user: u32) -> Option<UserSlot> {
        let SharedWire {
            first,
            others,
            queue,
            ..
        } = &*self.shared;
        if let Some(slot) = others.take(user, self.shared.most_of_others()) {
            return Some(slot);
        }
        let _waiting = queue.join(false);
        let taken = others.slot(user, || self.shared.most_of_others(), || self.is_paused());
        first.over.run_until_cancelled(taken).await.flatten()
    }

    /// Takes a free stream. Waits for one if there is none. `None` if the connection takes no further calls or is
    /// paused.
    async fn stream(&self) -> Option<Free> {
        let (queue, is_probe) = (&self.shared.queue, self.is_for_probes());
        if (is_probe || !queue.is_crowded())
            && let Some(free) = self.take()
        {
            return Some(free);
        }
        let waits = async {
            let over = &self.shared.first.over;
            let waiting = queue.join(is_probe);
            let taken = waiting.until(|| {
                if self.is_paused() {
                    return Some(None);
                }
                self.take().map(Some)
            });
            over.run_until_cancelled(taken).await.flatten()
        };
        // Calls rarely wait, so the wait is boxed: this keeps the future of each call small.
        Box::pin(waits).await
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

    /// Like [`Wire::send`]. The error says how far the call came, and so whether it may be sent again.
    pub(super) async fn try_send(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<IncomingBody>, SendFailure> {
        let timeout = grpc::timeout(request.headers());
        let Some((connection, slots)) = self.slots().await else {
            return Err(SendFailure {
                status: errors::connection_over(),
                progress: Progress::Unsent,
            });
        };
        // The backend starts to count later than criswitch, so criswitch always notices first that the deadline has
        // passed.
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        match connection.send(request).await {
            Ok(response) => {
                Ok(response.map(|stream| IncomingBody::new(stream, deadline).holding(slots)))
            }
            Err((error, progress)) => Err(SendFailure {
                status: errors::of_http2(error, deadline),
                progress,
            }),
        }
    }
}

/// The connections that take further calls.
fn open(connections: &[Arc<HttpConnection>]) -> impl Iterator<Item = &Arc<HttpConnection>> {
    let connections = connections.iter();
    connections.filter(|connection| !connection.over.is_cancelled())
}

/// Drives `connection`. Wakes the calls that wait for a free stream when the backend changes its limit.
async fn drive<I: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<I, Bytes>,
    queue: Arc<StreamQueue>,
    others: Arc<OthersStreams>,
) -> Result<(), h2::Error> {
    let mut most = connection.max_concurrent_send_streams();
    std::future::poll_fn(|context| {
        let polled = connection.poll_unpin(context);
        if queue.is_crowded() {
            let last = std::mem::replace(&mut most, connection.max_concurrent_send_streams());
            if last != most {
                queue.wake_all();
                others.wake_all();
            }
        }
        polled
    })
    .await
}

impl SharedWire {
    /// How many streams users other than root and criswitch's own user may together use: half of the streams of the
    /// open connections without the session's stream, but at least one. So their calls leave streams for the calls of
    /// root even if no further connection opens, unless the backend allows fewer than three streams.
    fn most_of_others(&self) -> usize {
        let of_connection = self.first.requests.current_max_send_streams();
        let connections = 1 + open(&self.extra.lock()).count();
        ((of_connection.saturating_mul(connections) - 1) / 2).max(1)
    }

    /// Wakes all calls that wait for a stream.
    fn wake_all(&self) {
        self.queue.wake_all();
        self.others.wake_all();
    }
}

impl HttpConnection {
    /// Whether the connection takes no further calls.
    fn is_over(&self) -> bool {
        self.over.is_cancelled()
            || !matches!(self.requests.clone().ready().now_or_never(), Some(Ok(_)))
    }

    /// Like [`Wire::try_send`]. The error says how far the call came.
    async fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<RecvStream>, (h2::Error, Progress)> {
        let (head, body) = request.into_parts();
        let mut requests = self.requests.clone().ready().await.map_err(|error| {
            self.over.cancel();
            (error, Progress::Unsent)
        })?;
        let sent = requests.send_request(http::Request::from_parts(head, ()), body.is_empty());
        let (response, mut stream) = sent.map_err(|error| (error, Progress::Unsent))?;
        if !body.is_empty() {
            stream
                .send_data(body, true)
                .map_err(|error| (error, Progress::Sent))?;
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
            let progress = if is_after_last || is_rejected {
                Progress::Rejected
            } else {
                Progress::Sent
            };
            (error, progress)
        })
    }
}
