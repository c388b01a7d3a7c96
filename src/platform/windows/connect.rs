//! Connects to named pipes.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use interprocess::os::windows::named_pipe::pipe_mode::Bytes;
use interprocess::os::windows::named_pipe::tokio::DuplexPipeStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient};

use crate::platform::Peer;

/// The error while every instance of a pipe has a client (`ERROR_PIPE_BUSY`). The server makes a further instance for
/// each client, so the next attempt usually succeeds.
const BUSY: i32 = 231;
/// The wait between two attempts to connect to a busy pipe.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a client tries to connect to a busy pipe.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// An open connection.
#[derive(Debug)]
pub struct Stream(End);

#[derive(Debug)]
enum End {
    Client(NamedPipeClient),
    Server(DuplexPipeStream<Bytes>),
}

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
    /// The connection. Waits while the pipe is busy. Needs a tokio runtime.
    ///
    /// The server of the pipe can learn the identity of criswitch but cannot act with its privileges: tokio sets
    /// `SECURITY_IDENTIFICATION`.
    ///
    /// # Errors
    /// If there is no such pipe, or if it is busy for `BUSY_LIMIT`.
    pub async fn stream(self) -> io::Result<(Stream, Option<Peer>)> {
        let until = tokio::time::Instant::now() + BUSY_LIMIT;
        loop {
            match ClientOptions::new().open(&self.0) {
                Err(error) if is_busy(&error) && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                opened => return Ok((Stream(End::Client(opened?)), None)),
            }
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(BUSY)
}

impl Stream {
    pub(super) fn accepted(stream: DuplexPipeStream<Bytes>) -> Stream {
        Stream(End::Server(stream))
    }
}

impl Peer {
    /// The client's process. Windows reports no user: the pipe's security descriptor has admitted the client.
    pub(crate) fn of(stream: &Stream) -> Option<Peer> {
        let pid = match &stream.0 {
            End::Client(_) => return None,
            End::Server(stream) => stream.client_process_id().ok(),
        };
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
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_read(context, into),
            End::Server(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

/// Flushing does nothing: written bytes are in the pipe. `FlushFileBuffers` would wait until the other end reads them.
impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            End::Client(stream) => Pin::new(stream).poll_write(context, bytes),
            End::Server(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    /// Keeps interprocess from handing the pipe to a thread that waits until the client has read everything.
    fn drop(&mut self) {
        if let End::Server(stream) = &self.0 {
            stream.assume_flushed();
        }
    }
}
