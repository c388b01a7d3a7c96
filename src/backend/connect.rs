//! Connections to backends: the only module that makes them.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::DuplexStream;
use tokio::net::UnixStream;
use tokio::net::unix::UCred;

use crate::backend::Wire;
use crate::config::address::Address;
use crate::errors::error_chain;
use crate::limits::flood::{CountedIo, Flooded};
use crate::limits::{CONNECTION_WINDOW, MAX_CALLS, REPLY_HEADERS, STREAM_WINDOW};
use crate::store::file_work::{FileWork, NO_ANSWER};

/// How long a call that was given up is remembered: its answer may be under way, as long as a backend that is overloaded
/// needs to hear of it. Answers to calls that are forgotten count as faults, and h2 ends a connection with 1024 of them.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// What drives an open connection; it ends with it.
pub type Driver = BoxFuture<'static, hyper::Result<()>>;
/// Gives a connection to the backend at an address, or refuses it.
pub type DialInMemory = dyn Fn(&Address) -> io::Result<DuplexStream> + Send + Sync;

/// How backends are connected to.
#[derive(Clone)]
pub enum Dialer {
    /// Over the sockets that the configuration names.
    Socket,
    /// Over pipes in memory: for the fault simulation.
    Memory(Arc<DialInMemory>),
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dialer::Socket => "Socket",
            Dialer::Memory(_) => "Memory",
        })
    }
}

/// A connection that was opened.
pub(crate) struct Opened {
    pub(crate) wire: Wire,
    /// What drives the connection.
    pub(crate) connection: Driver,
    /// Whether the backend has ended it with a flood.
    pub(crate) flooded: Flooded,
    /// Which file the socket was before.
    pub(crate) file: Option<FileId>,
    /// The process that listens at the socket.
    pub(crate) peer: Option<UCred>,
}

impl Dialer {
    /// Opens a connection; none to `own`, the socket that criswitch itself listens on.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) async fn open(
        &self,
        address: &Address,
        own: Option<&Address>,
        files: &FileWork,
    ) -> Result<Opened, String> {
        match self {
            Dialer::Socket => {
                let (address, own) = (address.clone(), own.cloned());
                let dialed = files.run(move || dial(&address, own.as_ref())).await;
                let (file, stream) = dialed.unwrap_or_else(|| Err(NO_ANSWER.to_owned()))?;
                let stream = UnixStream::from_std(stream.into()).map_err(refused)?;
                let peer = stream.peer_cred().ok();
                handshake(CountedIo::of_backend(stream), file, peer).await
            }
            Dialer::Memory(dial) => {
                let pipe = dial(address).map_err(refused)?;
                handshake(CountedIo::of_backend(pipe), None, None).await
            }
        }
    }

    /// Which file an address leads to now; `None` if to none, or if the file system does not answer.
    pub(crate) async fn file_at(&self, address: &Address, files: &FileWork) -> Option<FileId> {
        match self {
            Dialer::Socket => {
                let address = address.clone();
                files.run(move || file_at(&address)).await?
            }
            Dialer::Memory(_) => None,
        }
    }
}

/// Which file it is: device and number, and when it was made, as a number may be given again.
pub(crate) type FileId = (u64, u64, (i64, i64));

fn file_at(address: &Address) -> Option<FileId> {
    let Address::Unix(path) = address;
    let file = std::fs::metadata(path).ok()?;
    // A socket's is never modified.
    let made = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), made))
}

/// Why nothing connects to a backend that is the switch itself by another name, if it is: calls would go round for ever.
pub(crate) fn circle(backend: &Address, listen: &Address) -> Option<String> {
    let file = file_at(backend)?;
    (Some(file) == file_at(listen))
        .then(|| format!("its socket leads to the socket of criswitch itself, {listen}; set the socket of a runtime"))
}

/// Connects a socket, which may block on its file system only.
fn dial(address: &Address, own: Option<&Address>) -> Result<(Option<FileId>, OwnedFd), String> {
    if let Some(cause) = own.and_then(|own| circle(address, own)) {
        return Err(cause);
    }
    let Address::Unix(path) = address;
    let file = file_at(address);
    match connect_at_once(path) {
        Ok(stream) => Ok((file, stream)),
        Err(Errno::AGAIN) => {
            Err("cannot connect: the socket's queue of waiting connections is full".into())
        }
        Err(error) => Err(refused(error.into())),
    }
}

/// Connects without waiting for an owner that does not accept; the socket does not block.
pub(crate) fn connect_at_once(path: &Path) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
    );
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn refused(error: io::Error) -> String {
    format!("cannot connect: {error}")
}

async fn handshake(
    (io, flooded): (CountedIo, Flooded),
    file: Option<FileId>,
    peer: Option<UCred>,
) -> Result<Opened, String> {
    let shaken = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(REPLY_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // All calls in flight may be given up at once.
        .max_concurrent_reset_streams(MAX_CALLS)
        .reset_stream_duration(GIVEN_UP)
        .handshake(TokioIo::new(io))
        .await;
    let (wire, connection) = shaken.map_err(|error| error_chain(&error))?;
    let connection = connection.boxed();
    Ok(Opened {
        wire,
        connection,
        flooded,
        file,
        peer,
    })
}
