//! The address that serves metrics: a Unix socket or a network address.

use std::fmt;
use std::net::SocketAddr;

use super::value::{self, InvalidValue, invalid_value};
use crate::address::{self, Address};

const EXAMPLE: &str = "\"127.0.0.1:9199\", \"[::1]:9199\" or the path of a Unix socket";

/// The address that serves metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsListen {
    /// A Unix socket in the file system.
    Socket(Address),
    /// A network address. Every client that reaches it can read the metrics.
    Tcp(SocketAddr),
}

/// Parses `metrics.listen`. Returns `None` for the empty text, which means no metrics.
pub(super) fn listen(text: &str) -> Result<Option<MetricsListen>, InvalidValue> {
    if text.is_empty() {
        return Ok(None);
    }
    if address::is_like(text) {
        return value::address(text).map(|socket| Some(MetricsListen::Socket(socket)));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        invalid_value(
            format!("{text:?} is neither an address with a port nor a socket's path"),
            EXAMPLE,
        )
    })?;
    if address.port() == 0 {
        return Err(invalid_value(
            format!("{address} has no fixed port: the port would change at each start"),
            EXAMPLE,
        ));
    }
    Ok(Some(MetricsListen::Tcp(address)))
}

impl fmt::Display for MetricsListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsListen::Socket(socket) => socket.fmt(f),
            MetricsListen::Tcp(address) => address.fmt(f),
        }
    }
}
