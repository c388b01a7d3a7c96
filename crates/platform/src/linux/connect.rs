//! Connects to Unix sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

use crate::{Peer, Server, users};

/// An open connection.
pub type Stream = UnixStream;

/// A connection that no task reads yet.
#[derive(Debug)]
pub struct Dialed(OwnedFd);

/// Connects without waiting. This blocks only if the socket's file system blocks.
///
/// # Errors
/// If the socket does not accept the connection. [`io::ErrorKind::WouldBlock`] means that the listener's queue is full.
pub fn dial(path: &Path) -> io::Result<Dialed> {
    Ok(connect_at_once(path).map(Dialed)?)
}

impl Dialed {
    /// The connection, and the process that listens at the socket. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the runtime cannot register the socket.
    pub async fn stream(self) -> io::Result<(Stream, Option<Server>)> {
        let stream = UnixStream::from_std(self.0.into())?;
        let server = Peer::of(&stream).map(|peer| Server {
            user: peer.uid,
            pid: peer.pid,
            is_own: peer.uid.is_some_and(users::is_own),
        });
        Ok((stream, server))
    }
}

impl Peer {
    /// The process that called connect(2), or listen(2) if criswitch has connected.
    pub fn of(stream: &UnixStream) -> Option<Peer> {
        let process = stream.peer_cred().ok()?;
        Some(Peer {
            uid: Some(process.uid()),
            pid: process.pid(),
        })
    }
}

/// Connects without blocking. Fails with `EAGAIN` if the listener's queue is full. The returned socket is non-blocking.
pub(super) fn connect_at_once(path: &Path) -> Result<OwnedFd, Errno> {
    let (kind, flags) = (
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
    );
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_peer_of_a_connection_is_the_user_and_process_at_its_other_end() {
        let (client, _server) = UnixStream::pair().unwrap();
        let peer = Peer::of(&client).unwrap();
        assert_eq!(peer.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(peer.pid, Some(std::process::id().cast_signed()));
    }
}
