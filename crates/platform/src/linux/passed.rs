//! Listening sockets that the parent process, such as systemd, passes to criswitch (`sd_listen_fds(3)`): one socket for
//! clients, and optionally one for metrics, which has the name "metrics".
//!
//! The parent owns these sockets. This module never binds, changes or removes a socket.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use super::access::AllowedUsers;
use super::listen::{Acceptor, others};
use super::users;

/// The name of the socket for metrics (`LISTEN_FDNAMES`). The socket for clients may have any other name.
const METRICS: &str = "metrics";

/// The purpose of a passed socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Purpose {
    /// The socket serves the CRI. criswitch does not start if this socket is unusable.
    Clients,
    /// The socket serves the metrics page, on a Unix socket or a network address. If this socket is unusable,
    /// criswitch logs an error and serves no metrics.
    Metrics,
}

impl Purpose {
    fn hint(self) -> &'static str {
        match self {
            Purpose::Clients => {
                "the unit of the socket for clients needs exactly one `ListenStream=`, with the path of `listen`"
            }
            Purpose::Metrics => {
                "the unit of the socket for metrics needs one `ListenStream=`, with a path or an address such as 127.0.0.1:9199"
            }
        }
    }

    /// Returns the configuration key with the address of this socket.
    fn key(self) -> &'static str {
        match self {
            Purpose::Clients => "listen",
            Purpose::Metrics => "[metrics] listen",
        }
    }
}

/// Why criswitch cannot use a passed descriptor.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// `LISTEN_FDS` cannot be parsed.
    #[error("LISTEN_FDS is {0:?}, not a number of descriptors")]
    Count(String),
    /// A descriptor is missing, or `LISTEN_FDNAMES` does not have one name for each descriptor.
    #[error("cannot use the sockets that were passed (LISTEN_FDS, LISTEN_FDNAMES)")]
    Names(#[source] io::Error),
    /// Several sockets were passed for the same purpose.
    #[error(
        "{} sockets were passed (LISTEN_FDS), named {}, but criswitch uses one for clients and one named \"{METRICS}\"; \
         {hint}, and the unit of the socket for metrics needs `FileDescriptorName={METRICS}`",
        .0.len(), .0.join(", "), hint = Purpose::Clients.hint(),
    )]
    Several(Vec<String>),
    /// A socket for metrics was passed, but none for clients.
    #[error("only a socket for metrics was passed (LISTEN_FDS); start criswitch.socket too")]
    MetricsAlone,
    /// The descriptor is not a socket that fits the purpose.
    #[error("the descriptor passed for {0} (LISTEN_FDS) is not a suitable stream socket; {hint}", hint = .0.hint())]
    Kind(Purpose, #[source] io::Error),
    /// The socket does not listen: it is a connection, or it is only bound to an address.
    #[error("the socket passed for {0} (LISTEN_FDS) does not listen; {hint}, and `Accept=no`", hint = .0.hint())]
    NotListening(Purpose),
    /// The socket is at a different address than the configured one.
    #[error(
        "the socket passed for {purpose} (LISTEN_FDS) is {passed}, but `{key}` is {configured}; {hint}",
        key = .purpose.key(), hint = .purpose.hint(),
    )]
    Elsewhere {
        /// The purpose of the socket.
        purpose: Purpose,
        /// The address of the socket.
        passed: String,
        /// The configured address.
        configured: String,
    },
    /// A system call on the socket failed.
    #[error("cannot use the socket that was passed (LISTEN_FDS)")]
    System(#[from] io::Error),
}

/// The sockets that were passed to this process.
#[derive(Debug, Default)]
pub struct Passed {
    /// The socket for clients.
    pub cri: Option<PassedSocket>,
    /// The socket for metrics, or why it is unusable.
    pub metrics: Option<Result<PassedSocket, PassedError>>,
}

/// A listening stream socket, passed to this process.
#[derive(Debug)]
pub enum PassedSocket {
    /// A Unix socket in the file system.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

/// A passed socket that accepts connections.
pub enum Opened {
    /// The socket for clients.
    Unix(Acceptor),
    /// The socket for metrics.
    Tcp(tokio::net::TcpListener),
}

impl Passed {
    /// Takes the passed sockets from the environment. The result is empty if no sockets were passed to this process.
    /// Call this function once, before a second thread starts: it removes environment variables.
    ///
    /// # Errors
    /// If `LISTEN_FDS` or `LISTEN_FDNAMES` is invalid, or if sockets were passed, but not exactly one listening Unix
    /// stream socket for clients.
    pub fn take() -> Result<Passed, PassedError> {
        let own = std::process::id().to_string();
        let Some(count) = env::var_os("LISTEN_FDS") else {
            return Ok(Passed::default());
        };
        if env::var_os("LISTEN_PID").is_none_or(|pid| pid != *own) {
            // The variables were inherited: they describe the sockets of another process.
            return Ok(Passed::default());
        }
        let count = count.to_string_lossy();
        match count.parse::<u32>() {
            Ok(0) => Ok(Passed::default()),
            Ok(_) => Passed::by_name(&descriptor_names()?),
            Err(_) => Err(PassedError::Count(count.into_owned())),
        }
    }

    fn by_name(names: &[String]) -> Result<Passed, PassedError> {
        let (metrics, clients): (Vec<_>, Vec<_>) = names
            .iter()
            .enumerate()
            .partition(|(_, name)| *name == METRICS);
        let mut passed = ListenFd::from_env();
        let cri = match *clients {
            [(place, _)] => take(&mut passed, place, Purpose::Clients)?,
            [] => return Err(PassedError::MetricsAlone),
            _ => return Err(PassedError::Several(names.to_vec())),
        };
        let metrics = match *metrics {
            [] => None,
            [(place, _)] => Some(take(&mut passed, place, Purpose::Metrics)),
            _ => Some(Err(PassedError::Several(names.to_vec()))),
        };
        Ok(Passed {
            cri: Some(cri),
            metrics,
        })
    }
}

impl PassedSocket {
    /// Returns the socket for clients if it is at `listen`. Logs a warning if the permissions of its file do not match
    /// `allow`. Blocks on the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// [`PassedError::Elsewhere`] if the socket is not at `listen`, [`PassedError::System`] if a system call fails.
    pub fn for_clients(self, listen: &Path, allow: &[u32]) -> Result<Acceptor, PassedError> {
        match self {
            PassedSocket::Unix(socket) if is_at(&socket, listen) => {
                warn_about_permissions(listen, &others(allow));
                Ok(acceptor(socket)?)
            }
            elsewhere => Err(elsewhere.instead_of(listen.display(), Purpose::Clients)),
        }
    }

    /// Whether this is the Unix socket at `path`. Blocks on the disk.
    pub fn is_at(&self, path: &Path) -> bool {
        matches!(self, PassedSocket::Unix(socket) if is_at(socket, path))
    }

    /// Whether this is the TCP socket at an address.
    pub fn is_at_address(&self, listen: SocketAddr) -> bool {
        match self {
            PassedSocket::Unix(_) => false,
            PassedSocket::Tcp(socket) => socket.local_addr().is_ok_and(|address| address == listen),
        }
    }

    /// Returns the socket, ready to accept. Needs a tokio runtime.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn open(self) -> io::Result<Opened> {
        match self {
            PassedSocket::Unix(socket) => acceptor(socket).map(Opened::Unix),
            PassedSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(socket).map(Opened::Tcp)
            }
        }
    }

    /// The error that the socket is not at the configured address.
    pub fn instead_of(&self, configured: impl fmt::Display, purpose: Purpose) -> PassedError {
        PassedError::Elsewhere {
            purpose,
            passed: self.place(),
            configured: configured.to_string(),
        }
    }

    /// Returns the path or address of the socket, for messages.
    pub fn place(&self) -> String {
        let place = match self {
            PassedSocket::Unix(socket) => path(socket).map(|path| path.display().to_string()),
            PassedSocket::Tcp(socket) => socket.local_addr().ok().map(|it| it.to_string()),
        };
        place.unwrap_or_else(|| "without a path".to_owned())
    }
}

impl AsFd for PassedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PassedSocket::Unix(socket) => socket.as_fd(),
            PassedSocket::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// Returns the names of the passed descriptors. Without `LISTEN_FDNAMES`, all have the name "unknown".
fn descriptor_names() -> Result<Vec<String>, PassedError> {
    Ok(sd_notify::listen_fds_with_names()
        .map_err(PassedError::Names)?
        .map(|(_, name)| name)
        .collect())
}

fn take(
    passed: &mut ListenFd,
    place: usize,
    purpose: Purpose,
) -> Result<PassedSocket, PassedError> {
    // `take_unix_listener` leaves a descriptor of another kind in place, so TCP can be tried next.
    let unix = passed.take_unix_listener(place).and_then(there);
    let socket = match (unix, purpose) {
        (Err(_), Purpose::Metrics) => passed
            .take_tcp_listener(place)
            .and_then(there)
            .map(PassedSocket::Tcp),
        (unix, _) => unix.map(PassedSocket::Unix),
    }
    .map_err(|error| PassedError::Kind(purpose, error))?;
    if !rustix::net::sockopt::socket_acceptconn(&socket).map_err(io::Error::from)? {
        return Err(PassedError::NotListening(purpose));
    }
    Ok(socket)
}

fn there<T>(taken: Option<T>) -> io::Result<T> {
    taken.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn acceptor(socket: UnixListener) -> io::Result<Acceptor> {
    socket.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(socket).map(Acceptor)
}

fn path(socket: &UnixListener) -> Option<PathBuf> {
    socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
}

/// Whether the socket's path and `listen` name the same file after links are resolved. For example, `/var/run` is a
/// link to `/run`.
fn is_at(socket: &UnixListener, listen: &Path) -> bool {
    path(socket).is_some_and(|path| {
        path == listen
            || fs::canonicalize(path)
                .is_ok_and(|path| fs::canonicalize(listen).is_ok_and(|listen| listen == path))
    })
}

/// Logs a warning if the permissions of a passed socket's file do not match `allow_uids`. criswitch does not change the
/// file.
fn warn_about_permissions(path: &Path, others: &[u32]) {
    let listen = path.display();
    let access = match AllowedUsers::of(path) {
        Ok(access) => access,
        Err(error) => {
            return tracing::warn!(%listen, %error, "clients cannot find the socket that was passed; restart its unit");
        }
    };
    if let Some(cause) = misfit(&access, others) {
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
        tracing::warn!(%listen, mode = format_args!("{mode:04o}"), "{cause}");
    }
}

/// Returns the warning to log if users other than root, criswitch's own user and `others` may connect, or if a user of
/// `others` may not. Access by groups is accepted unless `others` is empty.
fn misfit(access: &AllowedUsers, others: &[u32]) -> Option<&'static str> {
    if access.every_user && !others.is_empty() {
        return Some(
            "every user can connect to the socket that was passed: criswitch closes connections of users outside \
             `allow_uids`, but these users can fill the socket's queue, and then no client can connect (EAGAIN); set an ACL \
             with ExecStartPost= in the socket's unit",
        );
    }
    if access.every_user
        || access.groups && others.is_empty()
        || !access
            .users
            .iter()
            .all(|uid| others.contains(uid) || users::is_own(*uid))
    {
        return Some(
            "the socket that was passed is open to users outside `allow_uids`; see SocketMode= in the socket's unit",
        );
    }
    others.iter().any(|uid| !access.users.contains(uid)).then_some(
        "the socket that was passed may reject users of `allow_uids`; set an ACL with ExecStartPost= in the socket's unit",
    )
}

#[cfg(test)]
mod tests {
    use super::{AllowedUsers, misfit};

    const OTHER: u32 = 1_000_000;

    fn access(users: &[u32], groups: bool, every_user: bool) -> AllowedUsers {
        AllowedUsers {
            users: users.to_vec(),
            groups,
            every_user,
        }
    }

    #[test]
    fn a_socket_open_to_exactly_the_allowed_users_fits() {
        assert_eq!(misfit(&access(&[0], false, false), &[]), None);
        assert_eq!(misfit(&access(&[0, OTHER], false, false), &[OTHER]), None);
    }

    #[test]
    fn a_socket_that_does_not_fit_the_allowed_users_is_reported() {
        let warns = |access, others: &[u32], words| {
            let cause = misfit(&access, others).unwrap();
            assert!(cause.contains(words), "{cause}");
        };
        warns(access(&[0], true, true), &[], "open to users outside");
        warns(access(&[0], true, false), &[], "open to users outside");
        warns(access(&[0], false, true), &[], "open to users outside");
        warns(
            access(&[0, OTHER], false, false),
            &[],
            "open to users outside",
        );
        warns(
            access(&[0, OTHER, 7], false, false),
            &[OTHER],
            "open to users outside",
        );
        warns(access(&[0], true, true), &[OTHER], "every user can connect");
        warns(access(&[0], true, false), &[OTHER], "may reject users");
        warns(access(&[0], false, false), &[OTHER], "may reject users");
    }
}
