//! The sockets of simulated runtimes and of the tests' clients: Unix sockets, or named pipes on Windows.

use std::io;
use std::path::Path;

use criswitch_platform::connect::{self, Stream};

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

/// Connects to a socket.
pub async fn connect(socket: &Path) -> io::Result<Stream> {
    Ok(connect::dial(&address(socket))?.stream().await?.0)
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use tokio::net::{UnixListener, UnixStream};

    pub type Listener = UnixListener;

    /// The address of the socket with this path.
    pub fn address(socket: &Path) -> PathBuf {
        socket.to_owned()
    }

    /// A part of the error of a connection to a runtime that has ended.
    pub const REFUSED: &str = "refused";

    /// The path of a socket as messages show it.
    pub fn shown(socket: &Path) -> PathBuf {
        socket.to_owned()
    }

    /// Removes the socket of a runtime that has ended.
    pub fn remove(socket: &Path) {
        std::fs::remove_file(socket).unwrap();
    }

    /// The prefix of the addresses of all sockets in a directory, as a configuration file writes it.
    pub fn text(directory: &Path) -> String {
        directory.to_str().unwrap().to_owned()
    }

    /// Binds the socket, and replaces the file of a previous server.
    pub fn bind(socket: &Path) -> Listener {
        std::fs::remove_file(socket).ok();
        UnixListener::bind(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()))
    }

    /// Calls listen(2) again from a process of this user: `SO_PEERCRED` of a listener shows the last process that
    /// called listen(2). The process runs perl, because every Debian system has perl.
    pub fn listen_as(user: u32, listener: &Listener) {
        let listener = listener.as_fd().try_clone_to_owned().unwrap();
        let mut perl = Command::new("perl");
        perl.args(["-e", "listen(STDIN, 128) or die"]);
        perl.stdin(listener).uid(user).gid(user);
        assert!(perl.status().unwrap().success());
    }

    pub async fn accept(listener: &Listener) -> io::Result<UnixStream> {
        Ok(listener.accept().await?.0)
    }
}

#[cfg(windows)]
mod windows {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    use criswitch_platform::address;
    use criswitch_platform::connect::Stream;
    use criswitch_platform::listen::{Acceptor, Bound};

    use crate::PATIENCE;

    pub type Listener = Acceptor;

    /// The address of the pipe for this path: the name of the directory and the name of the file.
    pub fn address(socket: &Path) -> PathBuf {
        if let Ok(pipe) = address::parse(socket.to_str().unwrap()) {
            return pipe;
        }
        let directory = socket.parent().and_then(Path::file_name).unwrap();
        let name = Path::new(directory).join(socket.file_name().unwrap());
        Path::new(r"\\.\pipe").join(name)
    }

    /// A part of the error of a connection to a runtime that has ended. The words about the absent pipe differ between
    /// Windows and Wine.
    pub const REFUSED: &str = "cannot connect: ";

    /// The address of a pipe as messages show it.
    pub fn shown(socket: &Path) -> PathBuf {
        address::endpoint(&address(socket)).into()
    }

    /// Does nothing: a pipe ends with its runtime.
    pub fn remove(_: &Path) {}

    /// The prefix of the addresses of all pipes in a directory, as a configuration file writes it.
    pub fn text(directory: &Path) -> String {
        address::endpoint(&address(&directory.join("any")))
            .trim_end_matches("/any")
            .to_owned()
    }

    /// Creates the pipe, after the last instance of a previous server has ended.
    pub fn bind(socket: &Path) -> Listener {
        let begun = Instant::now();
        loop {
            match Bound::at(&address(socket), &[]) {
                Ok(bound) => return bound.socket,
                Err(error) if begun.elapsed() > PATIENCE => panic!("{error}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    pub fn listen_as(_: u32, _: &Listener) {
        unimplemented!("Windows reports no user of a pipe's server");
    }

    pub async fn accept(listener: &Listener) -> io::Result<Stream> {
        listener.accept().await
    }
}
