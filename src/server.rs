//! The socket for clients: bind it or take a passed one, serve it, shut down.

mod access;
mod activation;
pub mod admission;
mod bound;
mod layers;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tower::{Service, ServiceBuilder};

use crate::call::reply::Reply;
use crate::config::address::Address;
use crate::dispatch;
use crate::errors::error_chain;
use crate::limits::budget::Budget;
use crate::limits::flood::{self, CountedIo, PREFACE};
use crate::limits::places::User;
use crate::limits::{CONNECTION_WINDOW, REQUEST_HEADERS, STREAM_WINDOW};
use crate::server::admission::{Admission, ROOT};
use crate::server::layers::{CallLimit, Deadline, Logged, LoggedRequest, Routed, UnreadReply};
use crate::switch::{Switch, subscribers};
use crate::telemetry::counters::Reason;
use crate::telemetry::log_limit::LogLimit;

pub use activation::{Passed, PassedError, PassedSocket};
pub use bound::BindError;
pub(crate) use bound::Bound;
use bound::SocketFile;

/// The most calls at once on one connection; the kubelet has one connection for each service.
const MAX_STREAMS: u32 = 2000;
/// The wait after a failed accept. Most likely file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to send HTTP/2's preface, the first bytes of every connection.
pub const PREFACE_LIMIT: Duration = Duration::from_secs(10);
/// How long, at shutdown, an accepted client may take to send its preface and to read the ends of its calls.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a connection is closed: the reason to count and the text to log.
type Closed = (Reason, &'static str);

const SLOW: Closed = (
    Reason::Slow,
    "it has more unread replies than any other connection, and the memory for unread replies is full",
);

const SILENT: Closed = (
    Reason::Silent,
    "it has not sent the HTTP/2 preface within 10 s",
);

const FLOOD: Closed = (Reason::Flood, flood::CAUSE);

/// A listening socket and the rules for its clients.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    admission: Arc<Admission>,
    /// `None` for a passed socket.
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on `address` for root and `allow_uids`. The mode is 0600 from the start, a missing directory is created
    /// with 0700, a stale socket is removed. Users other than root get access by an ACL, or by mode 0666 if the file
    /// system has no ACLs; a missing directory is then created with 0711. Reads the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// If criswitch cannot listen there. A socket that another process serves is never replaced.
    pub fn bind(address: &Address, allow_uids: &[u32]) -> Result<Listener, BindError> {
        let Bound { socket, file } = Bound::at(address, &others(allow_uids))?;
        Ok(Listener {
            socket,
            admission: Arc::new(Admission::new(allow_uids)),
            file: Some(file),
        })
    }

    /// Listens on a passed socket. The parent that passed it owns its file, mode and removal. Reads the disk; needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`PassedError::Elsewhere`] if the socket is not at `address`.
    pub fn on(
        passed: PassedSocket,
        address: &Address,
        allow_uids: &[u32],
    ) -> Result<Listener, PassedError> {
        let Address::Unix(path) = address;
        let socket = passed.at(path, &others(allow_uids))?;
        socket.set_nonblocking(true)?;
        Ok(Listener {
            socket: UnixListener::from_std(socket)?,
            admission: Arc::new(Admission::new(allow_uids)),
            file: None,
        })
    }

    /// Serves `switch` until `shutdown`. Then accepts no more clients and gives calls in flight `shutdown_timeout`;
    /// longer calls end with a status. Clients in the queue of a passed socket wait for the next process.
    pub async fn serve(self, switch: Arc<Switch>, shutdown: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut failing = AcceptFailures::default();
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                stream = accept(&self.socket, &mut failing) => {
                    let place = match self.admission.admit(&stream) {
                        Ok(place) => (place, switch.counts.connected()),
                        Err(reason) => {
                            switch.counts.refuse(reason);
                            continue;
                        }
                    };
                    let watcher = graceful.watcher();
                    let (switch, admission) = (Arc::clone(&switch), Arc::clone(&self.admission));
                    connections.spawn(async move {
                        let counts = Arc::clone(&switch.counts);
                        if let Err((reason, cause)) = converse(stream, switch, place.0.user, watcher).await {
                            counts.refuse(reason);
                            admission.cut_off(&place.0, cause);
                        }
                        drop(place);
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
        let timeout = switch.live().config.shutdown_timeout;
        tracing::info!(connections = connections.len(), shutdown_timeout = ?timeout, "shutting down");
        let Listener { socket, file, .. } = self;
        drop(socket);
        // Off this thread: the file system may not answer, and calls are still in flight.
        let removed = tokio::task::spawn_blocking(move || drop(file));
        finish(&switch, graceful).await;
        removed.await.ok();
    }
}

/// Ends `switch` for the clients whose connections `graceful` watches. Calls in flight get `shutdown_timeout`; longer
/// calls end with a status.
pub async fn finish(switch: &Switch, graceful: GracefulShutdown) {
    let timeout = switch.live().config.shutdown_timeout;
    subscribers::begin_end(switch);
    let mut finished = std::pin::pin!(graceful.shutdown());
    if tokio::time::timeout(timeout, &mut finished).await.is_err() {
        tracing::warn!("calls were still in flight at the end of shutdown_timeout");
        switch.ending.over.set(timeout).ok();
        tokio::time::timeout(LAST_WORDS, finished).await.ok();
    }
}

/// The allowed users other than root.
fn others(allow_uids: &[u32]) -> Vec<u32> {
    let uids = allow_uids.iter().copied();
    uids.filter(|uid| *uid != ROOT).collect()
}

/// Limits reports of failed accepts: once until an accept succeeds, and at most once a second. At a limit of file
/// descriptors, each connection that ends lets one accept succeed.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    reported: bool,
    limit: LogLimit,
}

impl AcceptFailures {
    /// Counts a failure. Returns the number of omitted reports if this failure must be logged.
    pub(crate) fn failed(&mut self) -> Option<u64> {
        let line = (!self.reported).then(|| self.limit.line()).flatten();
        self.reported |= line.is_some();
        line
    }

    /// Notes that an accept succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.reported = false;
    }
}

/// Accepts the next connection, and retries failures.
async fn accept(socket: &UnixListener, failing: &mut AcceptFailures) -> UnixStream {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                failing.succeeded();
                return stream;
            }
            Err(error) => {
                if let Some(omitted) = failing.failed() {
                    tracing::error!(%error, omitted, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one client until it disconnects, or until its calls in flight at shutdown have ended.
///
/// # Errors
/// If the connection must be closed: the reason.
async fn converse(
    stream: UnixStream,
    switch: Arc<Switch>,
    user: User,
    watcher: Watcher,
) -> Result<(), Closed> {
    tokio::select! {
        sent = tokio::time::timeout(PREFACE_LIMIT, preface(&stream)) => match sent {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(SILENT),
        },
        // hyper's shutdown waits for the handshake, which a silent client never makes.
        () = last_chance(&switch) => return Ok(()),
    }
    let unread = switch.unread.share();
    let (stream, flooded) = CountedIo::of_client(stream);
    let ended = tokio::select! {
        ended = watcher.watch(connection(stream, switch, user, unread.clone())) => ended,
        () = unread.lost() => return Err(SLOW),
    };
    if flooded.is_true() {
        return Err(FLOOD);
    }
    if let Err(error) = ended {
        let cause = error_chain(&error);
        tracing::debug!(cause, "a client's connection broke");
    }
    Ok(())
}

/// Returns `LAST_WORDS` after shutdown began. A client that was accepted just before must get its handshake and a
/// GOAWAY: if its connection only closed, its calls would fail (grpc-go) instead of going to the next process.
async fn last_chance(switch: &Switch) {
    switch.ending.begun.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}

/// Waits until the client has sent as many bytes as the preface has, without consuming them.
///
/// # Errors
/// The client disconnected.
async fn preface(stream: &UnixStream) -> io::Result<()> {
    loop {
        let ended = stream.ready(Interest::READABLE).await?.is_read_closed();
        let peek = || match rustix::net::recv(stream, &mut [0; PREFACE], RecvFlags::PEEK)? {
            (PREFACE, _) => Ok(()),
            (0, _) => Err(ErrorKind::UnexpectedEof.into()),
            _ if ended => Err(ErrorKind::UnexpectedEof.into()),
            // The rest of the preface wakes this task.
            _ => Err(ErrorKind::WouldBlock.into()),
        };
        match stream.try_io(Interest::READABLE, peek) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => return sent,
        }
    }
}

/// A client's connection. Poll it to its end.
pub type Connection<I, S> = http2::Connection<TokioIo<I>, S, TokioExecutor>;

/// Serves `switch` to a client of `user`, over a socket or, in tests, a pipe in memory. Replies count in `unread`.
pub fn connection<I: AsyncRead + AsyncWrite + Unpin>(
    stream: I,
    switch: Arc<Switch>,
    user: User,
    unread: Budget,
) -> Connection<
    I,
    impl hyper::service::Service<
        http::Request<Incoming>,
        Response = Reply,
        Error = Infallible,
        Future: Send,
    >,
> {
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        // A reply keeps the backend's headers.
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        // After a pause of this process, all calls may have been cancelled before they were read.
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .max_header_list_size(REQUEST_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(
            TokioIo::new(stream),
            TowerToHyperService::new(service(switch, user, unread)),
        )
}

/// The service for a connection's calls, with its layers, the outermost first.
fn service(
    switch: Arc<Switch>,
    user: User,
    unread: Budget,
) -> impl Service<http::Request<Incoming>, Response = Reply, Error = Infallible, Future: Send> + Clone
{
    let (of_call, of_reply) = (Arc::clone(&switch), unread.clone());
    ServiceBuilder::new()
        .layer_fn(|inner| Routed::new(inner, &switch, user, &unread))
        .layer_fn(|inner| CallLimit::new(inner, &switch, user))
        .layer_fn(|inner| Logged::new(inner, &switch))
        .layer_fn(|inner| UnreadReply::new(inner, &switch, &unread))
        .layer_fn(|inner| Deadline::new(inner, &switch))
        .service_fn(move |(rpc, log): LoggedRequest| {
            let (switch, unread) = (Arc::clone(&of_call), of_reply.clone());
            Box::pin(dispatch::serve(switch, rpc.row, rpc.request, unread, log).map(Ok))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::log_limit::LOG_PAUSE;

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_every_connection_reaches_is_reported_once_a_second() {
        let mut failing = AcceptFailures::default();
        let reports = |failing: &mut AcceptFailures| {
            let reported = (0..100).filter_map(|_| {
                failing.succeeded();
                failing.failed()
            });
            reported.collect::<Vec<_>>()
        };
        assert_eq!(reports(&mut failing), [0]);
        tokio::time::advance(LOG_PAUSE).await;
        assert_eq!(reports(&mut failing), [99]);
    }

    #[tokio::test(start_paused = true)]
    async fn accepts_that_fail_for_long_are_reported_once() {
        let mut failing = AcceptFailures::default();
        assert_eq!(failing.failed(), Some(0));
        tokio::time::advance(10 * LOG_PAUSE).await;
        assert_eq!(failing.failed(), None);
    }
}
