//! Connects to named pipes.

use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::OwnedHandle;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use interprocess::os::windows::named_pipe::pipe_mode::Bytes;
use interprocess::os::windows::named_pipe::tokio::DuplexPipeStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Peer, Server};

/// The error while every instance of a pipe has a client (`ERROR_PIPE_BUSY`). The server makes a further instance for
/// each client, so the next attempt usually succeeds.
const BUSY: i32 = 231;
/// The wait between two attempts to connect to a busy pipe.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a client tries to connect to a busy pipe.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// Opens a pipe for reads and writes that do not block.
const FILE_FLAG_OVERLAPPED: u32 = 0x4000_0000;
/// The server of a pipe can learn the identity of the client, but cannot act with its privileges.
const SECURITY_IDENTIFICATION: u32 = 0x0001_0000;

/// An open connection.
#[derive(Debug)]
pub struct Stream(DuplexPipeStream<Bytes>);

/// A pipe to connect to.
#[derive(Debug)]
pub struct Dialed(PathBuf);

/// Begins to connect. Does not block.
///
/// # Errors
/// None.
pub fn dial(path: &Path) -> io::Result<Dialed> {
    Ok(Dialed(path.to_owned()))
}

impl Dialed {
    /// The connection, and the process that serves the pipe. Waits while the pipe is busy. Needs a tokio runtime.
    ///
    /// # Errors
    /// If there is no such pipe, or if it is busy for `BUSY_LIMIT`.
    pub async fn stream(self) -> io::Result<(Stream, Option<Server>)> {
        let until = tokio::time::Instant::now() + BUSY_LIMIT;
        loop {
            match open(&self.0) {
                Err(error) if is_busy(&error) && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                opened => {
                    let stream = opened?;
                    let server = stream.server_process_id().ok().map(Server::with_id);
                    return Ok((Stream(stream), server));
                }
            }
        }
    }
}

fn open(path: &Path) -> io::Result<DuplexPipeStream<Bytes>> {
    let mut options = File::options();
    options.read(true).write(true);
    options
        .custom_flags(FILE_FLAG_OVERLAPPED)
        .security_qos_flags(SECURITY_IDENTIFICATION);
    let pipe = OwnedHandle::from(options.open(path)?);
    DuplexPipeStream::try_from(pipe)
        .map_err(|error| error.cause.unwrap_or(io::ErrorKind::InvalidInput.into()))
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(BUSY)
}

impl Stream {
    pub(super) fn accepted(stream: DuplexPipeStream<Bytes>) -> Stream {
        Stream(stream)
    }
}

impl Peer {
    /// The client's process. Windows reports no user: the pipe's security descriptor has admitted the client.
    pub fn of(stream: &Stream) -> Option<Peer> {
        let pid = stream.0.client_process_id().ok();
        Some(Peer {
            uid: None,
            pid: pid.map(u32::cast_signed),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

/// Flushing does nothing: written bytes are in the pipe. `FlushFileBuffers` would wait until the other end reads them.
impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// Keeps interprocess from handing the pipe to a thread that waits until the other end has read everything.
    fn drop(&mut self) {
        self.0.assume_flushed();
    }
}
