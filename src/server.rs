//! The socket that clients dial: bound or passed, served, shut down.

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

/// Calls at once on one connection; the kubelet has one for each service.
const MAX_STREAMS: u32 = 2000;
/// The wait after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to send HTTP/2's preface, the first bytes of every connection.
pub const PREFACE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client that was accepted has at the end for its preface, and for reading how its calls ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a connection is closed: as it is counted, and as it is logged.
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

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    admission: Arc<Admission>,
    /// None of a socket that was passed.
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on `address` for root and `allow_uids`: mode 0600 from the start, a missing directory made with 0700, a
    /// stale socket removed. Users other than root are let in by an ACL, or by mode 0666 where the file system has no ACLs,
    /// and a missing directory is made with 0711. Looks at the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`]; a socket that another process serves is never taken.
    pub fn bind(address: &Address, allow_uids: &[u32]) -> Result<Listener, BindError> {
        let Bound { socket, file } = Bound::at(address, &others(allow_uids))?;
        Ok(Listener {
            socket,
            admission: Arc::new(Admission::new(allow_uids)),
            file: Some(file),
        })
    }

    /// Listens on a socket that was passed: its file, its mode and its end are the business of who passed it. Looks at
    /// the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// [`PassedError::Elsewhere`] if it is not at `address`.
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

    /// Serves `switch` until `shutdown`; then accepts nobody, and gives the calls in flight at most its `shutdown_timeout`. Those that
    /// take longer end with a status. Who waits to be accepted on a socket that was passed waits for the next process.
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
        // Its file system may not answer, and calls are still in flight.
        let removed = tokio::task::spawn_blocking(move || drop(file));
        finish(&switch, graceful).await;
        removed.await.ok();
    }
}

/// Ends `switch` for the clients whose connections `graceful` watches: calls in flight get at most its
/// `shutdown_timeout`, and those that take longer end with a status.
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

/// Users other than root who may connect.
fn others(allow_uids: &[u32]) -> Vec<u32> {
    let uids = allow_uids.iter().copied();
    uids.filter(|uid| *uid != ROOT).collect()
}

/// Accepts that fail: reported once until one succeeds, and at most once a second, since at a limit of file descriptors
/// every connection that ends lets another one in.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    reported: bool,
    limit: LogLimit,
}

impl AcceptFailures {
    /// An accept failed: whether that is reported, and how many reports were omitted before.
    pub(crate) fn failed(&mut self) -> Option<u64> {
        let line = (!self.reported).then(|| self.limit.line()).flatten();
        self.reported |= line.is_some();
        line
    }

    /// An accept succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.reported = false;
    }
}

/// The next connection.
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

/// Serves one client until it goes, or until what it has in flight at the end is done.
///
/// # Errors
/// Why its connection has to be closed.
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
        // hyper's shutdown waits for the handshake, which a client that says nothing never makes.
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

/// Ends a while after the end has begun. One that was accepted just before and finds its connection closed, rather than
/// greeted and told to go, would fail its calls (grpc-go does) instead of sending them to the next process.
async fn last_chance(switch: &Switch) {
    switch.ending.begun.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}

/// Waits until the client has sent as many bytes as the preface has, and leaves them to be read.
///
/// # Errors
/// The client is gone.
async fn preface(stream: &UnixStream) -> io::Result<()> {
    loop {
        let ended = stream.ready(Interest::READABLE).await?.is_read_closed();
        let peek = || match rustix::net::recv(stream, &mut [0; PREFACE], RecvFlags::PEEK)? {
            (PREFACE, _) => Ok(()),
            (0, _) => Err(ErrorKind::UnexpectedEof.into()),
            _ if ended => Err(ErrorKind::UnexpectedEof.into()),
            // The rest of it wakes this up.
            _ => Err(ErrorKind::WouldBlock.into()),
        };
        match stream.try_io(Interest::READABLE, peek) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => return sent,
        }
    }
}

/// A client's connection; it has to be polled to its end.
pub type Connection<I, S> = http2::Connection<TokioIo<I>, S, TokioExecutor>;

/// Serves `switch` to one client of `user`, over a socket or, in tests, a pipe in memory; its replies count in `unread`.
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
        // A reply goes on with the headers that it came with.
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        // Calls that were given up before they were read: after a moment without processor time, all may have been.
        .max_pending_accept_reset_streams(MAX_STREAMS as usize)
        .max_header_list_size(REQUEST_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(
            TokioIo::new(stream),
            TowerToHyperService::new(service(switch, user, unread)),
        )
}

/// The path of a call and what surrounds it, the outermost layer first.
fn service(
    switch: Arc<Switch>,
    user: User,
    unread: Budget,
) -> impl Service<http::Request<Incoming>, Response = Reply, Error = Infallible, Future: Send> + Clone
{
    let (of_call, of_reply) = (Arc::clone(&switch), unread.clone());
    ServiceBuilder::new()
        .layer_fn(|inner| Routed::new(inner, &switch, user))
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
