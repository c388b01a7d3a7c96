//! Opens connections to backends. No other module does.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use criswitch_config::address::Address;
use criswitch_cri::error_text::{cannot_connect, error_chain};
use criswitch_platform::Server;
use criswitch_platform::address::file_id;
use criswitch_platform::connect::Dialed;
use criswitch_platform::file_work::{FileWork, NO_ANSWER};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};

use crate::backend::wire::{Driver, Wire};
use crate::limits::flood::{CountedIo, Flooded};
use crate::limits::{CONNECTION_WINDOW, MAX_CALLS, REPLY_HEADERS, STREAM_WINDOW};
pub(crate) use criswitch_platform::address::FileId;

/// How long criswitch remembers a cancelled call: an overloaded backend may still send the answer. h2 counts answers to
/// forgotten calls as faults, and ends a connection after 1024 of them.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// The most calls in flight before a backend has sent its own limit (RFC 9113, 6.5.2, recommends at least 100).
const FIRST_STREAMS: usize = 100;

/// Connects to a simulated backend over a pipe in memory.
pub type DialInMemory = dyn Fn(&Address) -> io::Result<DuplexStream> + Send + Sync;

/// How criswitch connects to backends.
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

/// An open connection.
pub(crate) struct OpenConnection {
    pub(crate) wire: Wire,
    pub(crate) connection: Driver,
    /// Whether a flood of HTTP/2 frames from the backend has ended the connection.
    pub(crate) flooded: Flooded,
    /// The file that was at the socket's path before criswitch connected.
    pub(crate) file: Option<FileId>,
    /// The process that listens at the socket.
    pub(crate) server: Option<Server>,
}

impl Dialer {
    /// Opens a connection, but never to `own`, the socket that criswitch listens on.
    ///
    /// # Errors
    /// If no connection opens: the cause.
    pub(crate) async fn open(
        &self,
        address: &Address,
        own: Option<&Address>,
        files: &FileWork,
    ) -> Result<OpenConnection, String> {
        match self {
            Dialer::Socket => {
                let (address, own) = (address.clone(), own.cloned());
                let dialed = files
                    .run_unless_hung(move || dial(&address, own.as_ref()))
                    .await;
                let (file, stream) = dialed.unwrap_or_else(|| Err(NO_ANSWER.to_owned()))?;
                let (stream, server) = stream
                    .stream()
                    .await
                    .map_err(|error| cannot_connect(&error))?;
                handshake(CountedIo::of_backend(stream), file, server).await
            }
            Dialer::Memory(dial) => {
                let pipe = dial(address).map_err(|error| cannot_connect(&error))?;
                handshake(CountedIo::of_backend(pipe), None, None).await
            }
        }
    }

    /// The file at an address now. `None` if there is no file, or if the file system does not answer.
    pub(crate) async fn file_at(&self, address: &Address, files: &FileWork) -> Option<FileId> {
        match self {
            Dialer::Socket => {
                let address = address.clone();
                files.run(move || file_id(address.path())).await?
            }
            Dialer::Memory(_) => None,
        }
    }
}

/// An error if `backend` and `listen` are the same file, because criswitch would call itself. `None` if they differ.
pub(crate) fn circle(backend: &Address, listen: &Address) -> Option<String> {
    let file = file_id(backend.path())?;
    (Some(file) == file_id(listen.path())).then(|| {
        format!(
            "its socket is the socket of criswitch itself, {listen}; set the socket of a runtime"
        )
    })
}

/// Connects to a backend's socket. This blocks only if the socket's file system blocks.
fn dial(address: &Address, own: Option<&Address>) -> Result<(Option<FileId>, Dialed), String> {
    if let Some(cause) = own.and_then(|own| circle(address, own)) {
        return Err(cause);
    }
    let file = file_id(address.path());
    let dialed =
        criswitch_platform::dial(address.path()).map_err(|error| cannot_connect(&error))?;
    Ok((file, dialed))
}

async fn handshake<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (io, flooded): (I, Flooded),
    file: Option<FileId>,
    server: Option<Server>,
) -> Result<OpenConnection, String> {
    let shaken = h2::client::Builder::new()
        .enable_push(false)
        .max_header_list_size(REPLY_HEADERS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_max_send_streams(FIRST_STREAMS)
        // All calls in flight may be cancelled at once, and h2 must remember each of them.
        .max_concurrent_reset_streams(MAX_CALLS)
        .reset_stream_duration(GIVEN_UP)
        .handshake(io)
        .await;
    let (requests, connection) = shaken.map_err(|error| error_chain(&error))?;
    let (wire, connection) = Wire::of(requests, connection);
    Ok(OpenConnection {
        wire,
        connection,
        flooded,
        file,
        server,
    })
}
