//! The socket that clients dial: has its mode before it has a name, or was passed; served, drained.

mod passed;

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::address::Address;
use crate::admission::Admission;
use crate::backend::{CONNECTION_WINDOW, MAX_HEADERS, STREAM_WINDOW, error_chain};
use crate::memory::Memory;
use crate::switch::Switch;

pub use passed::{Passed, PassedError};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Calls at once on one connection; the kubelet has one for each service.
const MAX_STREAMS: u32 = 2000;
/// The wait after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client that was accepted has at the end for its first byte, and for reading how its calls ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A socket that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Its directory cannot be made.
    #[error("cannot make the directory {path} for the socket")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its lock file cannot be opened.
    #[error("cannot lock {path}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process serves it.
    #[error("{path} is served by another process; stop that one, or set another `listen`")]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has its name.
    #[error("{path} exists and is not a socket; move it away, or set another `listen`")]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot listen on {path}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    admission: Admission,
    /// None of a socket that was passed.
    _file: Option<SocketFile>,
}

/// The file of a socket of our own, which goes with it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Held as long as the socket is ours.
    _lock: File,
}

impl Listener {
    /// Listens on `address` for root and `allow_uids`: mode 0600 from the start, a missing directory made with 0700, a
    /// stale socket removed. Where others than root may connect, 0666 and 0711 let them. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`]; a socket that another process serves is never taken.
    pub fn bind(address: &Address, allow_uids: &[u32]) -> Result<Listener, BindError> {
        let Address::Unix(path) = address;
        let path = path.clone();
        let (directory_mode, mode) = if others(allow_uids) {
            (0o711, 0o666)
        } else {
            (0o700, 0o600)
        };
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(directory_mode)
                .create(directory);
            made.map_err(|source| BindError::Directory {
                path: directory.to_owned(),
                source,
            })?;
        }
        let lock = lock(&path)?;
        remove_stale(&path)?;
        match open(&path, Mode::from_raw_mode(mode)) {
            Ok(socket) => Ok(Listener {
                socket,
                admission: Admission::new(allow_uids),
                _file: Some(SocketFile { path, _lock: lock }),
            }),
            Err(source) => Err(BindError::Bind { path, source }),
        }
    }

    /// Listens on a socket that was passed: its file, its mode and its end are the business of who passed it. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`PassedError::Elsewhere`] if it is not at `address`.
    pub fn on(
        passed: Passed,
        address: &Address,
        allow_uids: &[u32],
    ) -> Result<Listener, PassedError> {
        let Address::Unix(path) = address;
        let socket = passed.at(path, others(allow_uids))?;
        socket.set_nonblocking(true)?;
        Ok(Listener {
            socket: UnixListener::from_std(socket)?,
            admission: Admission::new(allow_uids),
            _file: None,
        })
    }

    /// Serves `switch` until `shutdown`; then accepts nobody, and gives the calls in flight at most its `drain`. Those that
    /// take longer end with a status. Who waits to be accepted on a socket that was passed waits for the next process.
    pub async fn serve(self, switch: Arc<Switch>, shutdown: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        let (serving, _) = watch::channel(());
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                stream = accept(&self.socket) => {
                    let Some(place) = self.admission.admit(&stream) else { continue };
                    let (watcher, serving) = (graceful.watcher(), serving.subscribe());
                    let talk = converse(stream, Arc::clone(&switch), watcher, serving);
                    connections.spawn(async move {
                        talk.await;
                        drop(place);
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
        let drain = switch.live().config.drain;
        tracing::info!(connections = connections.len(), drain = ?drain, "shutting down");
        drop(self);
        drop(serving);
        switch.begin_end();
        let mut finished = std::pin::pin!(graceful.shutdown());
        if tokio::time::timeout(drain, &mut finished).await.is_err() {
            tracing::warn!("calls were still in flight at the end of the drain");
            switch.ending.cut_off(drain);
            tokio::time::timeout(LAST_WORDS, finished).await.ok();
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // What is left of it, a later start removes.
        fs::remove_file(&self.path).ok();
    }
}

/// Whether others than root may connect.
fn others(allow_uids: &[u32]) -> bool {
    allow_uids.iter().any(|uid| *uid != 0)
}

/// Two switches that start at once must not take the socket from one another.
fn lock(socket: &Path) -> Result<File, BindError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let opened = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = opened.map_err(|source| BindError::Lock {
        path: path.clone(),
        source,
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BindError::Live {
            path: socket.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(BindError::Lock { path, source }),
    }
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Bind {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(source)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    match connect_at_once(path) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // There are too many who wait to be accepted, so somebody listens.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::Live {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

/// Connects and leaves again, without waiting for an owner that does not accept.
fn connect_at_once(path: &Path) -> Result<(), Errno> {
    let (kind, flags) = (
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
    );
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn open(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // On Linux the file that bind makes has the mode of the descriptor, so it is never more open than this.
    rustix::fs::fchmod(&socket, mode)?;
    socket.bind(path)?;
    // The umask may have closed it further.
    fs::set_permissions(path, Permissions::from_mode(mode.as_raw_mode()))?;
    socket.listen(BACKLOG)
}

async fn accept(socket: &UnixListener) -> UnixStream {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one client until it goes, or until what it has in flight at the end is done.
async fn converse(
    stream: UnixStream,
    switch: Arc<Switch>,
    watcher: Watcher,
    serving: watch::Receiver<()>,
) {
    tokio::select! {
        spoke = first_byte(&stream) => if spoke.is_err() { return },
        // hyper's shutdown waits for the handshake, which a client that says nothing never makes.
        () = last_chance(serving) => return,
    }
    if let Err(error) = watcher.watch(connection(stream, switch)).await {
        let cause = error_chain(&error);
        tracing::debug!(cause, "a client's connection broke");
    }
}

/// Ends a while after the end has begun. One that was accepted just before and finds its connection closed, rather than
/// greeted and told to go, would fail its calls (grpc-go does) instead of sending them to the next process.
async fn last_chance(mut serving: watch::Receiver<()>) {
    serving.changed().await.ok();
    tokio::time::sleep(LAST_WORDS).await;
}

/// Waits until the client has sent something, or has gone, and leaves that to be read.
async fn first_byte(stream: &UnixStream) -> io::Result<()> {
    let peek = || {
        rustix::net::recv(stream, &mut [0; 1], RecvFlags::PEEK)?;
        Ok(())
    };
    stream.async_io(Interest::READABLE, peek).await
}

/// A client's connection; it has to be polled to its end.
pub type Connection<I, S> = http2::Connection<TokioIo<I>, S, TokioExecutor>;

/// Serves `switch` to one client, over a socket or, in tests, a pipe in memory.
pub fn connection<I: AsyncRead + AsyncWrite + Unpin>(
    stream: I,
    switch: Arc<Switch>,
) -> Connection<
    I,
    impl hyper::service::Service<
        http::Request<hyper::body::Incoming>,
        Response = crate::reply::Reply,
        Error = std::convert::Infallible,
        Future: Send,
    >,
> {
    let unread = Memory::for_unread(switch.max_message);
    let service = service_fn(move |request| {
        let answered = Arc::clone(&switch).serve(request, unread.clone());
        async move { Ok(answered.await) }
    });
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        // A reply goes on with the headers that it came with.
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(stream), service)
}
