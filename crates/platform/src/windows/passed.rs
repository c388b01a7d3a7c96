//! Sockets that the parent process passes. Windows has none, so no value of [`PassedSocket`] exists.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;

use super::listen::Acceptor;
use super::users::Sid;

/// The purpose of a passed socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The socket serves the metrics page.
    Metrics,
}

/// Why criswitch cannot use a passed socket: never.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PassedError(Infallible);

/// The sockets that were passed to this process: none.
#[derive(Debug, Default)]
pub struct Passed {
    /// The socket for clients.
    pub cri: Option<PassedSocket>,
    /// The socket for metrics.
    pub metrics: Option<Result<PassedSocket, PassedError>>,
}

/// A passed socket.
#[derive(Debug)]
pub struct PassedSocket(Infallible);

/// A passed socket that accepts connections.
pub enum Opened {
    /// The pipe for clients.
    Unix(Acceptor),
    /// The socket for metrics.
    Tcp(TcpListener),
}

impl Passed {
    /// Returns no sockets.
    ///
    /// # Errors
    /// None.
    pub fn take() -> Result<Passed, PassedError> {
        Ok(Passed::default())
    }
}

impl PassedSocket {
    /// The socket for clients.
    ///
    /// # Errors
    /// None.
    pub fn for_clients(self, _: &Path, _: &[Sid]) -> Result<Acceptor, PassedError> {
        match self.0 {}
    }

    /// Whether this is the socket at a path.
    pub fn is_at(&self, _: &Path) -> bool {
        match self.0 {}
    }

    /// Whether this is the socket at an address.
    pub fn is_at_address(&self, _: SocketAddr) -> bool {
        match self.0 {}
    }

    /// The socket, ready to accept.
    ///
    /// # Errors
    /// None.
    pub fn open(self) -> io::Result<Opened> {
        match self.0 {}
    }

    /// The error that the socket is not at the configured address.
    pub fn instead_of(&self, _: impl fmt::Display, _: Purpose) -> PassedError {
        match self.0 {}
    }

    /// The place of the socket, for messages.
    pub fn place(&self) -> String {
        match self.0 {}
    }
}
