//! A listening socket for metrics that was passed to the process, as `systemd/criswitch-metrics.socket` does: so the
//! daemon itself needs no network. What is wrong with it is told, and costs no pod anything.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

use crate::config::MetricsListen;
use crate::config::address::Address;
use crate::errors::error_chain;
use crate::server::{listens, same, there};

/// What the unit has to say.
const HINT: &str =
    "its unit needs one `ListenStream=` with a loopback address such as 127.0.0.1:9199, or a path";

/// What was passed for metrics, and cannot be used for them.
#[derive(Debug, thiserror::Error)]
enum PassedMetricsError {
    #[error("{0} sockets were passed for metrics; {HINT}")]
    Several(usize),
    #[error("what was passed for metrics is no stream socket; {HINT}")]
    Kind(#[source] io::Error),
    #[error("the socket that was passed for metrics does not listen; {HINT}, and `Accept=no`")]
    NotListening,
    #[error(
        "the socket that was passed for metrics is at {0}, no loopback address, and metrics are for this node only; {HINT}"
    )]
    NotLoopback(SocketAddr),
    #[error(
        "the socket that was passed for metrics is at {passed}, but `[metrics] listen` says {listen}; set both to the same, or leave `listen` out"
    )]
    Elsewhere {
        passed: String,
        listen: MetricsListen,
    },
    #[error("cannot use the socket that was passed for metrics")]
    System(#[from] io::Error),
}

/// A stream socket that listens, passed to this process for metrics.
#[derive(Debug)]
pub enum PassedMetrics {
    /// A socket of the file system.
    Socket(UnixListener),
    /// An address that only this node reaches.
    Loopback(TcpListener),
}

impl PassedMetrics {
    /// The name that its descriptor has (`LISTEN_FDNAMES`).
    pub const NAME: &str = "metrics";

    /// Takes it from `passed`, where it has these places; says what is wrong with it.
    pub(crate) fn take(passed: &mut ListenFd, places: &[usize]) -> Option<PassedMetrics> {
        let taken = match *places {
            [] => return None,
            [place] => take(passed, place),
            _ => Err(PassedMetricsError::Several(places.len())),
        };
        taken.map_err(|error| tell(&error)).ok()
    }

    /// It, if `configured` does not say another place; says so if it does.
    pub(crate) fn unless_elsewhere(
        self,
        configured: Option<&MetricsListen>,
    ) -> Option<PassedMetrics> {
        match configured {
            Some(listen) if !self.is_at(listen) => {
                tell(&PassedMetricsError::Elsewhere {
                    passed: self.place(),
                    listen: listen.clone(),
                });
                None
            }
            _ => Some(self),
        }
    }

    fn is_at(&self, listen: &MetricsListen) -> bool {
        match (self, listen) {
            (PassedMetrics::Socket(socket), MetricsListen::Socket(Address::Unix(listen))) => {
                let address = socket.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.is_some_and(|path| same(path, listen))
            }
            (PassedMetrics::Loopback(socket), MetricsListen::Loopback(listen)) => {
                socket.local_addr().is_ok_and(|address| address == *listen)
            }
            _ => false,
        }
    }

    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        let place = match self {
            PassedMetrics::Socket(socket) => socket.local_addr().ok().and_then(|address| {
                let path = address.as_pathname()?;
                Some(path.display().to_string())
            }),
            PassedMetrics::Loopback(socket) => {
                socket.local_addr().ok().map(|address| address.to_string())
            }
        };
        place.unwrap_or_else(|| "no path".to_owned())
    }
}

fn take(passed: &mut ListenFd, place: usize) -> Result<PassedMetrics, PassedMetricsError> {
    // The kind that it is not leaves it there.
    let (socket, listens) = match passed.take_unix_listener(place).and_then(there) {
        Ok(socket) => {
            let listens = listens(&socket)?;
            (PassedMetrics::Socket(socket), listens)
        }
        Err(_) => {
            let taken = passed.take_tcp_listener(place).and_then(there);
            let socket = taken.map_err(PassedMetricsError::Kind)?;
            let address = socket.local_addr()?;
            if !address.ip().is_loopback() {
                return Err(PassedMetricsError::NotLoopback(address));
            }
            let listens = listens(&socket)?;
            (PassedMetrics::Loopback(socket), listens)
        }
    };
    if listens {
        Ok(socket)
    } else {
        Err(PassedMetricsError::NotListening)
    }
}

fn tell(error: &PassedMetricsError) {
    let (cause, name) = (error_chain(error), PassedMetrics::NAME);
    tracing::error!(
        cause,
        LISTEN_FDNAMES = name,
        "metrics are not served on the socket that was passed for them"
    );
}
