//! Binds a socket. The socket's file never has more permissions than it needs, and a socket that another process serves
//! is never replaced.

use std::convert::Infallible;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::{io, thread};

use rustix::fs::Mode;
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixSocket};

use super::access::Handle;
use super::address::{FileId, file_id};
use super::connect::{Stream, connect_at_once};
use super::files::{self, NO_LINK};
use super::users::ROOT;

/// The most connections that wait in the socket's queue to be accepted.
const BACKLOG: u32 = 1024;
/// The mode of a socket that only the owner may use.
const OWNERS: u32 = 0o600;
/// How long the drop of a `SocketFile` waits for the removal of its file.
const REMOVAL_LIMIT: Duration = Duration::from_secs(1);

/// Why criswitch cannot listen on a socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The socket's directory cannot be created.
    #[error("cannot create the directory {path} for the socket; create it, or change `listen`")]
    Directory {
        /// The path of the directory.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The lock file cannot be opened.
    #[error(
        "cannot lock {path}; if it is a link, remove it; otherwise run criswitch as root, or change `listen`"
    )]
    Lock {
        /// The path of the lock file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another process serves the socket.
    #[error("another process serves {path}; stop that process, or change `listen`")]
    Live {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The path is not a socket.
    #[error("{path} exists and is not a socket; move it, or change `listen`")]
    NotASocket {
        /// The path of the file.
        path: PathBuf,
    },
    /// A system call on the socket or its file failed.
    #[error("cannot listen on {path}")]
    Bind {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// A listening socket whose file criswitch has created.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub socket: Acceptor,
    /// Removes the socket's file on drop.
    pub file: SocketFile,
}

/// A listening socket.
#[derive(Debug)]
pub struct Acceptor(pub(super) UnixListener);

/// The file of a socket. Dropping this value removes the file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Identifies the file. `None` if the file could not be read: then the file is not removed.
    id: Option<FileId>,
    /// The lock file of the path, locked until the socket's file is removed.
    lock: Option<File>,
}

impl Acceptor {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// If the system call fails, for example because file descriptors ran out.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(self.0.accept().await?.0)
    }
}

impl Bound {
    /// Listens at `path` for root, criswitch's own user and the users of `allow`. The socket's file has mode 0600 from
    /// the start. A stale socket file is removed. A missing directory is created with mode 0700, or 0711 if `allow`
    /// names users other than root. These users get access by an ACL, or by mode 0666 if the file system has no ACLs.
    /// Blocks on the disk; needs a tokio runtime.
    ///
    /// # Errors
    /// If criswitch cannot listen at `path`. A socket that another process serves is never replaced.
    pub fn at(path: &Path, allow: &[u32]) -> Result<Bound, BindError> {
        let (path, others) = (path.to_owned(), others(allow));
        let directory_mode = match others[..] {
            [] => 0o700,
            _ => 0o711,
        };
        if let Some(directory) = path.parent() {
            files::make_directories(directory, directory_mode).map_err(|source| {
                BindError::Directory {
                    path: directory.to_owned(),
                    source,
                }
            })?;
        }
        let lock = lock(&path)?;
        remove_stale(&path)?;
        match open(&path, &others) {
            Ok(socket) => Ok(Bound {
                socket: Acceptor(socket),
                file: SocketFile {
                    id: file_id(&path),
                    path,
                    lock: Some(lock),
                },
            }),
            Err(source) => Err(BindError::Bind { path, source }),
        }
    }
}

/// Returns the allowed users other than root.
pub(super) fn others(allow: &[u32]) -> Vec<u32> {
    allow.iter().copied().filter(|uid| *uid != ROOT).collect()
}

impl SocketFile {
    /// Removes the file.
    pub fn remove(self) {
        drop(self);
    }
}

impl Drop for SocketFile {
    /// Removes the file on another thread, because its file system may not answer. Waits at most `REMOVAL_LIMIT`.
    fn drop(&mut self) {
        let (path, lock) = (std::mem::take(&mut self.path), self.lock.take());
        let id = self.id;
        let (sending, removed) = sync_channel::<Infallible>(0);
        let thread = thread::Builder::new().name("socket".to_owned());
        let begun = thread.spawn(move || {
            // If the removal fails, the next start removes the file.
            if id.is_some() && file_id(&path) == id {
                fs::remove_file(path).ok();
            }
            drop((lock, sending));
        });
        if begun.is_ok() {
            removed.recv_timeout(REMOVAL_LIMIT).ok();
        }
    }
}

/// Locks the socket's path: two criswitch processes that start at once must not take the socket from one another.
fn lock(socket: &Path) -> Result<File, BindError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let opened = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(NO_LINK.bits().cast_signed())
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
        // `EAGAIN` means that the socket's queue is full, so a process listens on the socket.
        Ok(_) | Err(Errno::AGAIN) => Err(BindError::Live {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

fn open(path: &Path, others: &[u32]) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // On Linux, bind gives the file the mode of the descriptor, so the file never has more permissions than these.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNERS))?;
    socket.bind(path)?;
    let file = Handle::open(path)?;
    // The umask may have removed permissions, so the mode is set once more.
    file.set_mode(OWNERS)?;
    if !others.is_empty() {
        file.allow(others)?;
    }
    socket.listen(BACKLOG)
}
