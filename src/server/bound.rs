//! A socket with a file of our own: it has its mode before it has a name, and nobody else's is ever taken.

use std::convert::Infallible;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::{io, thread};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixSocket};

use super::access::Handle;
use crate::backend::connect::connect_at_once;
use crate::config::address::Address;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// The mode of a socket for its owner alone.
const OWNERS: u32 = 0o600;
/// A lock file of our own is no link, and no pipe whose other end is waited for.
const LOCK_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
/// How long the end of a socket waits for its file to be removed.
const REMOVAL_LIMIT: Duration = Duration::from_secs(1);

/// A socket that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Its directory cannot be made.
    #[error("cannot create the directory {path} for the socket; create it, or change `listen`")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its lock file cannot be opened.
    #[error(
        "cannot lock {path}; if it is a link, remove it; otherwise run criswitch as root, or change `listen`"
    )]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process serves it.
    #[error("another process serves {path}; stop that process, or change `listen`")]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has its name.
    #[error("{path} exists and is not a socket; move it, or change `listen`")]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot listen on {path}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket that has a file of our own.
#[derive(Debug)]
pub(crate) struct Bound {
    /// It listens.
    pub socket: UnixListener,
    /// To be held as long as that.
    pub file: SocketFile,
}

/// The file of a socket of our own, which goes with it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Held as long as the socket is ours.
    lock: Option<File>,
}

impl Bound {
    /// Listens on `address` for root and `others`, as `Listener::bind` does.
    pub(crate) fn at(address: &Address, others: &[u32]) -> Result<Bound, BindError> {
        let Address::Unix(path) = address;
        let path = path.clone();
        let directory_mode = match others {
            [] => 0o700,
            _ => 0o711,
        };
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(directory_mode)
                .create(directory);
            made.map_err(|source| BindError::Directory {
                path: directory.to_owned(),
                source,
            })?;
        }
        let lock = lock(&path)?;
        remove_stale(&path)?;
        match open(&path, others) {
            Ok(socket) => Ok(Bound {
                socket,
                file: SocketFile {
                    path,
                    lock: Some(lock),
                },
            }),
            Err(source) => Err(BindError::Bind { path, source }),
        }
    }
}

impl Drop for SocketFile {
    /// Removes the file, and waits a limited time for a file system that does not answer.
    fn drop(&mut self) {
        let (path, lock) = (std::mem::take(&mut self.path), self.lock.take());
        let (sending, removed) = sync_channel::<Infallible>(0);
        let thread = thread::Builder::new().name("socket".to_owned());
        let begun = thread.spawn(move || {
            // What is left of it, a later start removes.
            fs::remove_file(path).ok();
            drop((lock, sending));
        });
        if begun.is_ok() {
            removed.recv_timeout(REMOVAL_LIMIT).ok();
        }
    }
}

/// Two switches that start at once must not take the socket from one another.
fn lock(socket: &Path) -> Result<File, BindError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let opened = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(LOCK_FLAGS.bits().cast_signed())
        .open(&path);
    let file = opened.map_err(|source| BindError::Lock {
        path: path.clone(),
        source,
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BindError::Live {
            path: socket.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(BindError::Lock { path, source }),
    }
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Bind {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(source)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    match connect_at_once(path) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // There are too many who wait to be accepted, so somebody listens.
        Ok(_) | Err(Errno::AGAIN) => Err(BindError::Live {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

fn open(path: &Path, others: &[u32]) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // On Linux the file that bind makes has the mode of the descriptor, so it is never more open than this.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNERS))?;
    socket.bind(path)?;
    let file = Handle::open(path)?;
    // The umask may have closed it further.
    file.set_mode(OWNERS)?;
    if !others.is_empty() {
        file.let_in(others)?;
    }
    socket.listen(BACKLOG)
}
