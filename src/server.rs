//! Binds the socket for clients, or uses a socket that the parent process passed. Serves clients on this socket, and
//! shuts down.

pub mod admission;
mod connection;
mod layers;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use criswitch_config::address::Address;
use criswitch_cri::error_text::error_chain;
use criswitch_platform::connect::Stream;
use criswitch_platform::listen::{Acceptor, SocketFile};
use criswitch_platform::users::UserId;
use criswitch_platform::{Peer, users};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::call::ending::Ending;
use crate::limits::budget::Budget;
use crate::limits::flood::{self, CountedIo, PREFACE, Unaccepted};
use crate::limits::places::User;
use crate::server::admission::{Admission, ConnectionPermit, ConnectionUse};
use crate::server::layers::Client;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;
use crate::telemetry::log_limit::AcceptFailures;

pub use criswitch_platform::listen::{BindError, Bound};
pub use criswitch_platform::passed::{Passed, PassedError, PassedSocket};

/// The wait after a failed accept. The most likely cause of the failure is that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to send HTTP/2's preface, the first bytes of every connection.
pub const PREFACE_LIMIT: Duration = Duration::from_secs(10);
/// The length of three waits at shutdown: for the preface of a client that has just connected, for clients to answer a
/// PING if no call is in flight, and for clients to read the final statuses of their calls. Also how long a client may
/// take to answer the PING when a new client has taken its place.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// The time between two checks at shutdown whether calls are in flight.
const IDLE_CHECK: Duration = Duration::from_millis(100);

/// Why criswitch closes a connection: the reason to count, and the text to log.
type Closed = (Reason, &'static str);

const SLOW: Closed = (
    Reason::Slow,
    "it leaves more replies unread than other connections of its user, and the memory for unread replies is full",
);

const SILENT: Closed = (
    Reason::Silent,
    "it has not sent the HTTP/2 preface within 10 s",
);

const PLACE_TAKEN: Closed = (
    Reason::Silent,
    "it has not sent the HTTP/2 preface, and all places for connections are taken, so a new client gets its place",
);

const IDLE: Closed = (
    Reason::Connections,
    "all places for connections are taken, and it has had no call for longest, so a new client gets its place",
);

const FLOOD: Closed = (Reason::Flood, flood::CAUSE);

/// A listening socket and the rules for its clients.
#[derive(Debug)]
pub struct Listener {
    socket: Acceptor,
    admission: Arc<Admission>,
    /// The socket's file, removed on drop. `None` for a passed socket, because the parent owns its file.
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on `address` for the administrator, criswitch's own user and the users of `allow`. Blocks on the disk;
    /// needs a tokio runtime.
    ///
    /// # Errors
    /// If criswitch cannot listen on `address`. A socket that another process serves is never replaced.
    pub fn bind(address: &Address, allow: &[UserId]) -> Result<Listener, BindError> {
        let Bound { socket, file } = Bound::at(address.path(), allow)?;
        Ok(Listener {
            socket,
            admission: Arc::new(Admission::new(users::uids(allow))),
            file: Some(file),
        })
    }

    /// Listens on a socket that the parent process passed. The parent owns the socket's file: criswitch does not change
    /// or remove it. Blocks on the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// [`PassedError::Elsewhere`] if the socket is not at `address`, [`PassedError::System`] if a system call fails.
    pub fn on(
        passed: PassedSocket,
        address: &Address,
        allow: &[UserId],
    ) -> Result<Listener, PassedError> {
        Ok(Listener {
            socket: passed.for_clients(address.path(), allow)?,
            admission: Arc::new(Admission::new(users::uids(allow))),
            file: None,
        })
    }

    /// Serves `switch` until `shutdown` completes. Then accepts no more clients and waits at most `shutdown_timeout`
    /// for calls in flight. Longer calls end with a status. Clients in the queue of a passed socket wait for the next
    /// process.
    pub async fn serve(self, switch: Arc<Switch>, shutdown: impl Future<Output = ()>) {
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        let mut failing = AcceptFailures::default();
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                stream = accept(&self.socket, &mut failing) => {
                    let place = match self.admission.admit(Peer::of(&stream)) {
                        Ok(place) => (place, switch.counts.connected()),
                        Err(reason) => {
                            switch.counts.reject(reason);
                            continue;
                        }
                    };
                    let (switch, admission) = (Arc::clone(&switch), Arc::clone(&self.admission));
                    connections.spawn(async move {
                        let counts = Arc::clone(&switch.counts);
                        let (place, _connected) = place;
                        let ended = converse(stream, switch, &admission, &place).await;
                        if let Err((reason, cause)) = ended {
                            counts.reject(reason);
                            admission.cut_off(&place, cause);
                        }
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
        let timeout = switch.live().config.shutdown_timeout;
        tracing::info!(connections = connections.len(), shutdown_timeout = ?timeout, "shutting down");
        let Listener { socket, file, .. } = self;
        drop(socket);
        // Removes the socket's file on another thread: the file system may not answer, and calls are still in flight.
        let removed = tokio::task::spawn_blocking(move || file.map(SocketFile::remove));
        finish(&switch, connections).await;
        removed.await.ok();
    }
}

/// Shuts down the `connections`. Waits at most `shutdown_timeout` for calls in flight. Longer calls end with a status.
pub async fn finish(switch: &Switch, mut connections: JoinSet<()>) {
    let timeout = switch.live().config.shutdown_timeout;
    switch.ending.begun.cancel();
    switch.subscribers.end_for_shutdown();
    let mut finished = pin!(async { while connections.join_next().await.is_some() {} });
    let ended = async {
        tokio::select! {
            () = &mut finished => {}
            () = without_calls(|| switch.has_calls()) => {}
        }
    };
    if tokio::time::timeout(timeout, ended).await.is_err() {
        tracing::warn!("calls were still in flight at the end of shutdown_timeout");
        switch.ending.over.set(timeout).ok();
        tokio::time::timeout(LAST_REPLIES, finished).await.ok();
    }
}

/// Completes when no call has been in flight, and no reply unread, for a second (`LAST_REPLIES`). h2 ends a connection
/// only after the client has answered a PING, and a client may never answer it.
async fn without_calls(has_calls: impl Fn() -> bool) {
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < LAST_REPLIES {
        tokio::time::sleep(IDLE_CHECK).await;
        if has_calls() {
            idle_since = Instant::now();
        }
    }
}

/// Accepts the next connection. Retries a failed accept after [`ACCEPT_PAUSE`].
async fn accept(socket: &Acceptor, failing: &mut AcceptFailures) -> Stream {
    loop {
        match socket.accept().await {
            Ok(stream) => {
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

/// Serves one client until the client disconnects. At a shutdown, serves it until its calls in flight have ended.
///
/// # Errors
/// The reason, if criswitch must close the connection.
async fn converse(
    mut stream: Stream,
    switch: Arc<Switch>,
    admission: &Admission,
    place: &Arc<ConnectionPermit>,
) -> Result<(), Closed> {
    let preface = tokio::select! {
        sent = tokio::time::timeout(PREFACE_LIMIT, preface(&mut stream)) => match sent {
            Ok(Ok(preface)) => preface,
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(SILENT),
        },
        () = place.usage.taken.cancelled() => return Err(PLACE_TAKEN),
        // A client that sends no preface cannot get a GOAWAY, so a shutdown does not wait for it longer.
        () = last_chance(&switch.ending) => return Ok(()),
    };
    let unread = switch.unread.share(place.user);
    place.usage.note_preface(unread.clone());
    let (stream, flooded) = CountedIo::of_client(stream, preface);
    let unaccepted = stream.unaccepted();
    let usage = Arc::clone(&place.usage);
    let ended = tokio::select! {
        ended = connection(stream, unaccepted, switch, place.user, unread.clone(), usage) => ended,
        () = unread.lost() => return Err(SLOW),
        () = admission.left(place, LAST_REPLIES) => return Err(IDLE),
    };
    if flooded.is_true() {
        return Err(FLOOD);
    }
    if place.usage.taken.is_cancelled() {
        return Err(IDLE);
    }
    if let Err(error) = ended {
        let cause = error_chain(&error);
        tracing::debug!(cause, "a client's connection broke");
    }
    Ok(())
}

/// Completes one second (`LAST_REPLIES`) after the shutdown has begun. Until then a client that has just connected can
/// finish its handshake and get a GOAWAY. Without a GOAWAY, grpc-go fails the client's calls instead of sending them to
/// the next process.
async fn last_chance(ending: &Ending) {
    ending.begun.cancelled().await;
    tokio::time::sleep(LAST_REPLIES).await;
}

/// Reads as many bytes as the HTTP/2 preface has. h2 checks them.
///
/// # Errors
/// The client disconnected, or the socket cannot be read.
async fn preface(stream: &mut Stream) -> io::Result<[u8; PREFACE]> {
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface).await?;
    Ok(preface)
}

/// Serves `switch` to a client until the client disconnects, or until its calls in flight have ended after a shutdown
/// has begun or a new client has taken its place. `user` says which limits apply to the client. `stream` is a socket
/// or, in tests, a pipe in memory. Unread replies count in `unread`, calls in `usage`, and `unaccepted` is that of
/// `stream`.
///
/// # Errors
/// If the connection breaks, or the client violates HTTP/2.
pub async fn connection<I: AsyncRead + AsyncWrite + Unpin>(
    stream: I,
    unaccepted: Unaccepted,
    switch: Arc<Switch>,
    user: User,
    unread: Budget,
    usage: Arc<ConnectionUse>,
) -> Result<(), h2::Error> {
    let (begun, taken) = (switch.ending.begun.clone(), usage.taken.clone());
    let closing = async move {
        tokio::select! {
            () = begun.cancelled() => {}
            () = taken.cancelled() => {}
        }
    };
    let client = Arc::new(Client::new(switch, user, unread));
    let served = connection::serve(
        stream,
        &unaccepted,
        // Boxed, because the start of a task copies its future several times.
        |request| {
            let (client, in_flight) = (Arc::clone(&client), usage.begin());
            (Box::pin(layers::answer(client, request)), in_flight)
        },
        closing,
    );
    served.await
}
