//! Listening sockets that were passed by whoever started the process, as systemd does (`sd_listen_fds(3)`): the one of
//! the CRI, and one for metrics, told apart by their names.
//!
//! They are somebody else's: nothing here binds, changes or removes one. Only what is exactly right is taken.

use std::env;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use super::access::Access;
use crate::server::PassedMetrics;
use crate::server::admission::always_allowed;

/// What the unit has to say.
const HINT: &str = "a socket unit needs exactly one `ListenStream=` with the path of `listen`";

/// A passed descriptor that cannot be served on.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// `LISTEN_FDS` cannot be read.
    #[error("LISTEN_FDS is {0:?}, not a number of descriptors")]
    Count(String),
    /// They are not all there, or their names are not as many.
    #[error("cannot use the sockets that were passed (LISTEN_FDS, LISTEN_FDNAMES)")]
    Names(#[source] io::Error),
    /// More than the one that is needed.
    #[error(
        "{} sockets were passed (LISTEN_FDS), named {}; {HINT}, and one for metrics `FileDescriptorName={}`",
        .0.len(),
        .0.join(", "),
        PassedMetrics::NAME,
    )]
    Several(Vec<String>),
    /// None for clients.
    #[error("a socket for metrics alone was passed (LISTEN_FDS); start criswitch.socket too")]
    MetricsAlone,
    /// It is something else.
    #[error("what was passed (LISTEN_FDS) is no Unix stream socket; {HINT}")]
    Kind(#[source] io::Error),
    /// It is a connection, or was only bound.
    #[error("the socket that was passed (LISTEN_FDS) does not listen; {HINT}, and `Accept=no`")]
    NotListening,
    /// It is bound to another path.
    #[error(
        "the socket that was passed (LISTEN_FDS) is {passed}, but `listen` says {listen}; {HINT}"
    )]
    Elsewhere {
        /// Its path.
        passed: String,
        /// The configuration's.
        listen: PathBuf,
    },
    /// The system refuses.
    #[error("cannot use the socket that was passed (LISTEN_FDS)")]
    System(#[from] io::Error),
}

/// What was passed to this process.
#[derive(Debug, Default)]
pub struct Passed {
    /// Where clients dial.
    pub cri: Option<PassedSocket>,
    /// Where metrics are read.
    pub metrics: Option<PassedMetrics>,
}

/// A Unix stream socket that listens, passed to this process.
#[derive(Debug)]
pub struct PassedSocket(UnixListener);

impl Passed {
    /// Takes them from the environment; none if nothing was passed to this process. To be called once, before there is
    /// a second thread: it clears the variables.
    ///
    /// # Errors
    /// [`PassedError`], for what is not exactly one Unix stream socket that listens. What is wrong with the one for
    /// metrics is logged, and keeps no call from being served.
    pub fn take() -> Result<Passed, PassedError> {
        let own = std::process::id().to_string();
        let Some(count) = env::var_os("LISTEN_FDS") else {
            return Ok(Passed::default());
        };
        if env::var_os("LISTEN_PID").is_none_or(|pid| pid != *own) {
            // Another process' that was inherited.
            return Ok(Passed::default());
        }
        let count = count.to_string_lossy();
        match count.parse::<u32>() {
            Ok(0) => Ok(Passed::default()),
            Ok(_) => Passed::by_name(&names()?),
            Err(_) => Err(PassedError::Count(count.into_owned())),
        }
    }

    /// What has the name of those for metrics is for metrics, whatever it is; the other one may have any.
    fn by_name(names: &[String]) -> Result<Passed, PassedError> {
        let places = |metrics: bool| {
            let all = names.iter().enumerate();
            let those = all.filter(move |(_, name)| (*name == PassedMetrics::NAME) == metrics);
            those.map(|(place, _)| place).collect::<Vec<_>>()
        };
        let mut passed = ListenFd::from_env();
        match *places(false) {
            [place] => Ok(Passed {
                cri: Some(take_cri(&mut passed, place)?),
                metrics: PassedMetrics::take(&mut passed, &places(true)),
            }),
            [] => Err(PassedError::MetricsAlone),
            _ => Err(PassedError::Several(names.to_vec())),
        }
    }
}

impl PassedSocket {
    /// The socket, if it is the one at `listen`; says what is odd about its file.
    pub(super) fn at(self, listen: &Path, others: &[u32]) -> Result<UnixListener, PassedError> {
        let address = self.0.local_addr()?;
        let path = address.as_pathname();
        if !path.is_some_and(|path| same(path, listen)) {
            return Err(PassedError::Elsewhere {
                passed: path.map_or("without a path".to_owned(), |path| {
                    path.display().to_string()
                }),
                listen: listen.to_owned(),
            });
        }
        look_at_file(listen, others);
        Ok(self.0)
    }
}

/// Their names in their order; without any, all have the same.
fn names() -> Result<Vec<String>, PassedError> {
    let passed = sd_notify::listen_fds_with_names().map_err(PassedError::Names)?;
    Ok(passed.map(|(_, name)| name).collect())
}

fn take_cri(passed: &mut ListenFd, place: usize) -> Result<PassedSocket, PassedError> {
    let taken = passed.take_unix_listener(place);
    let socket = taken.and_then(there).map_err(PassedError::Kind)?;
    if !listens(&socket)? {
        return Err(PassedError::NotListening);
    }
    Ok(PassedSocket(socket))
}

pub(crate) fn there<T>(taken: Option<T>) -> io::Result<T> {
    taken.ok_or_else(|| io::ErrorKind::NotFound.into())
}

pub(crate) fn listens(socket: &impl AsFd) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_acceptconn(socket)?)
}

/// Whether two paths lead to one file: `/var/run` is `/run`.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    let real = |path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| real(other) == Some(one))
}

/// Warns if the file of a passed socket does not fit `allow_uids`. criswitch does not change the file.
fn look_at_file(path: &Path, others: &[u32]) {
    let listen = path.display();
    let access = match Access::of(path) {
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

/// What is wrong with who may connect to a socket that is for root, its owner and `others`.
fn misfit(access: &Access, others: &[u32]) -> Option<&'static str> {
    let expected = |uid: &u32| others.contains(uid) || always_allowed().contains(uid);
    let shut_out = |uid: &u32| !access.users.contains(uid);
    if access.everybody && !others.is_empty() {
        return Some(
            "every user can connect to the socket that was passed: connections of users outside `allow_uids` are closed, \
             but they can fill the socket's queue, and then nobody can connect (EAGAIN); try an ACL, by ExecStartPost= of \
             its unit",
        );
    }
    if access.everybody || !access.users.iter().all(expected) || access.groups && others.is_empty()
    {
        return Some(
            "the socket that was passed is open to others than `allow_uids` has; see its unit's SocketMode=",
        );
    }
    others.iter().any(shut_out).then_some(
        "the socket that was passed may be closed to some of `allow_uids`; try an ACL, by ExecStartPost= of its unit",
    )
}

#[cfg(test)]
mod tests {
    use super::{Access, misfit};

    const OTHER: u32 = 1_000_000;

    fn access(users: &[u32], groups: bool, everybody: bool) -> Access {
        Access {
            users: users.to_vec(),
            groups,
            everybody,
        }
    }

    #[test]
    fn a_socket_that_lets_in_those_who_may_connect_and_no_one_else_fits() {
        assert_eq!(misfit(&access(&[0], false, false), &[]), None);
        assert_eq!(misfit(&access(&[0, OTHER], false, false), &[OTHER]), None);
    }

    #[test]
    fn a_socket_that_does_not_fit_those_who_may_connect_is_told() {
        let told = |access, others: &[u32], words| {
            let cause = misfit(&access, others).unwrap();
            assert!(cause.contains(words), "{cause}");
        };
        told(access(&[0], true, true), &[], "open to others");
        told(access(&[0], true, false), &[], "open to others");
        told(access(&[0], false, true), &[], "open to others");
        told(access(&[0, OTHER], false, false), &[], "open to others");
        told(
            access(&[0, OTHER, 7], false, false),
            &[OTHER],
            "open to others",
        );
        told(access(&[0], true, true), &[OTHER], "every user can connect");
        told(access(&[0], true, false), &[OTHER], "may be closed");
        told(access(&[0], false, false), &[OTHER], "may be closed");
    }
}
