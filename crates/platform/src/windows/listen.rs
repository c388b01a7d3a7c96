//! Listens on a named pipe. Only the allowed users can open the pipe, and criswitch never joins a pipe that another
//! process serves.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use interprocess::os::windows::ToWtf16;
use interprocess::os::windows::named_pipe::PipeListenerOptions;
use interprocess::os::windows::named_pipe::pipe_mode::Bytes;
use interprocess::os::windows::named_pipe::tokio::PipeListener;
use interprocess::os::windows::security_descriptor::SecurityDescriptor;

use super::connect::Stream;
use super::users::Sid;

/// The size of the pipe's buffers, in bytes.
const BUFFER: u32 = 64 << 10;

/// The security descriptor of the pipe: nothing is inherited. SYSTEM, the administrators and the owner, who runs
/// criswitch, may do everything.
const OWN_USERS: &str = "D:P(A;;GA;;;SY)(A;;GA;;;BA)(A;;GA;;;S-1-3-4)";
/// The rights of any other user: to read and write, but not to create an instance of the pipe and so serve clients.
const READ_WRITE: &str = "0x12019b";

/// The error if another process serves the pipe (`ERROR_ACCESS_DENIED`, as `FILE_FLAG_FIRST_PIPE_INSTANCE` demands).
const TAKEN: i32 = 5;
/// How long criswitch keeps trying while another process serves the pipe. After a restart, a pipe instance of the
/// previous process exists until the client has also closed its end.
const TAKEN_LIMIT: Duration = Duration::from_secs(3);
/// The wait between two attempts.
const TAKEN_PAUSE: Duration = Duration::from_millis(100);

/// Why criswitch cannot listen on a pipe.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process serves the pipe.
    #[error(
        "another process serves {path}, or criswitch may not create it; stop that process, run criswitch as an administrator, or change `listen`"
    )]
    Live {
        /// The path of the pipe.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The security descriptor or the pipe cannot be created.
    #[error("cannot listen on {path}")]
    Bind {
        /// The path of the pipe.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// A pipe that criswitch serves.
#[derive(Debug)]
pub struct Bound {
    /// The pipe.
    pub socket: Acceptor,
    /// A pipe has no file.
    pub file: SocketFile,
}

/// A pipe that clients can connect to.
#[derive(Debug)]
pub struct Acceptor(PipeListener<Bytes, Bytes>);

/// A pipe disappears with its last instance, so it leaves no file behind.
#[derive(Debug)]
pub struct SocketFile;

impl SocketFile {
    /// Does nothing.
    pub fn remove(self) {}
}

impl Acceptor {
    /// Waits for the next client. When this returns, the next instance of the pipe exists already.
    ///
    /// # Errors
    /// If a next instance of the pipe cannot be created.
    pub async fn accept(&self) -> io::Result<Stream> {
        self.0.accept().await.map(Stream::accepted)
    }
}

impl Bound {
    /// Creates the pipe for SYSTEM, the administrators, criswitch's own user and the users of `allow` on this machine.
    /// Blocks for at most `TAKEN_LIMIT`. Needs a tokio runtime.
    ///
    /// # Errors
    /// If another process serves the pipe, or if it cannot be created.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller is not the thread that serves calls"
    )]
    pub fn at(path: &Path, allow: &[Sid]) -> Result<Bound, BindError> {
        let until = Instant::now() + TAKEN_LIMIT;
        let is_taken = |error: &io::Error| error.raw_os_error() == Some(TAKEN);
        let created = loop {
            match create(path, allow) {
                Err(error) if is_taken(&error) && Instant::now() < until => {
                    thread::sleep(TAKEN_PAUSE);
                }
                created => break created,
            }
        };
        let created = created.map_err(|source| {
            let path = path.to_owned();
            if is_taken(&source) {
                BindError::Live { path, source }
            } else {
                BindError::Bind { path, source }
            }
        });
        Ok(Bound {
            socket: Acceptor(created?),
            file: SocketFile,
        })
    }
}

fn create(path: &Path, allow: &[Sid]) -> io::Result<PipeListener<Bytes, Bytes>> {
    let others = allow.iter().map(|sid| format!("(A;;{READ_WRITE};;;{sid})"));
    let text = OWN_USERS.to_owned() + &others.collect::<String>();
    let text = OsStr::new(&text).to_wtf_16().map_err(io::Error::other)?;
    let access = SecurityDescriptor::deserialize(&text)?;
    // The first instance has `FILE_FLAG_FIRST_PIPE_INSTANCE`, so it fails if any process serves the pipe.
    let options = PipeListenerOptions::new()
        .path(path)
        .accept_remote(false)
        .input_buffer_size_hint(BUFFER)
        .output_buffer_size_hint(BUFFER)
        .security_descriptor(Some(access));
    options.create_tokio_duplex()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::address::socket_at;
    use crate::connect::dial;

    /// More clients than instances of the pipe that wait for a client.
    const CLIENTS: usize = 50;

    #[tokio::test]
    async fn clients_at_once_wait_while_the_pipe_is_busy_and_read_all_that_was_written() {
        let path = format!(r"\\.\pipe\criswitch-test-{}", std::process::id());
        let path = Path::new(&path);
        let users = [Sid::parse("S-1-5-32-545").unwrap()];
        let socket = Bound::at(path, &users).unwrap().socket;
        let serve = async {
            for _ in 0..CLIENTS {
                let mut stream = socket.accept().await.unwrap();
                stream.write_all(&[7; 100]).await.unwrap();
            }
        };
        let read = || async {
            let (mut stream, _) = dial(path).unwrap().stream().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, [7; 100]);
        };
        let clients = futures_util::future::join_all((0..CLIENTS).map(|_| read()));
        tokio::join!(serve, clients);
        assert!(socket_at(path).is_ok());
    }

    #[tokio::test]
    async fn an_absent_pipe_is_an_error_at_once() {
        let dialed = dial(Path::new(r"\\.\pipe\criswitch-absent")).unwrap();
        let error = dialed.stream().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
