//! Addresses of Unix sockets: their spelling, and the files that they name.
//!
//! Parsing never reads the file system, but `identity` and `file_id` do.

use std::fmt::{self, Display};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The longest path that fits into `sun_path`: 108 bytes with the final zero.
pub const MAX_PATH_BYTES: usize = 107;

/// The beginning of the path of a named pipe on Windows.
const PIPE: &str = r"\\";

/// The limit on symbolic links that are followed one after another. Linux has the same limit.
const MAX_LINKS: u8 = 40;

/// Why a text is not the address of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The path after the scheme is empty.
    #[error("the socket path is empty")]
    Empty,
    /// The path is relative, so it would depend on the daemon's working directory.
    #[error("the socket path {0:?} is relative")]
    Relative(String),
    /// The path ends with `/`, and its last name is not that of a file such as `name.sock`: it names a directory.
    #[error("the socket path {0:?} names a directory")]
    Directory(String),
    /// A blank at either end is usually a mistake, and no runtime serves such a path.
    #[error("the socket path {0:?} begins or ends with a blank")]
    Blank(String),
    /// The path is so long that the kernel rejects or cuts it.
    #[error("the socket path is {0} bytes long, and the kernel takes at most {MAX_PATH_BYTES}")]
    TooLong(usize),
    /// The scheme is not `unix`.
    #[error("{0:?} is not a Unix socket; criswitch supports only Unix sockets on this platform")]
    Scheme(String),
    /// The path has a zero byte. The kernel would cut the path there.
    #[error("the socket path {0:?} contains a NUL byte")]
    Nul(String),
}

impl AddressError {
    /// A suggestion that follows the word "try".
    pub fn hint(&self) -> &'static str {
        match self {
            AddressError::Empty | AddressError::Relative(_) => {
                "an absolute path, such as \"/run/name/name.sock\""
            }
            AddressError::Directory(_) => "the path of the socket in it",
            AddressError::Blank(_) => "the path without the blank",
            AddressError::TooLong(_) => "a shorter path, or a symbolic link to its directory",
            AddressError::Scheme(_) => "the path of a Unix socket, plain or after \"unix://\"",
            AddressError::Nul(_) => "the path without the NUL byte",
        }
    }
}

/// Reads an absolute path, `unix:///path` or `unix:/path`.
///
/// Doubled slashes, `.` and a trailing slash are dropped, so that two spellings of one path are equal. Symbolic links
/// and `..` stay, because resolving them needs the file system.
///
/// # Errors
/// If `text` has none of these forms, or if the path is empty, relative, too long or contains a NUL byte.
pub fn parse(text: &str) -> Result<PathBuf, AddressError> {
    let path = without_scheme(text)?;
    if path.is_empty() {
        return Err(AddressError::Empty);
    }
    if path.contains('\0') {
        return Err(AddressError::Nul(path.to_owned()));
    }
    if path.trim() != path {
        return Err(AddressError::Blank(path.to_owned()));
    }
    if !path.starts_with('/') {
        return Err(AddressError::Relative(path.to_owned()));
    }
    let is_directory = path.ends_with('/') && Path::new(path).extension().is_none();
    if is_directory {
        return Err(AddressError::Directory(path.to_owned()));
    }
    let path: PathBuf = Path::new(path).components().collect();
    match path.as_os_str().len() {
        0..=MAX_PATH_BYTES => Ok(path),
        length => Err(AddressError::TooLong(length)),
    }
}

/// The address as messages and `criswitch status` show it: the path.
pub fn show(path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    path.display().fmt(f)
}

/// The address in the form that the kubelet and crictl accept.
pub fn endpoint(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// Identifies a file by device, inode number and creation time. The time is needed because inode numbers are reused.
pub type FileId = (Inode, (i64, i64));

/// The file at an address now; `None` if there is no file.
pub fn file_id(path: &Path) -> Option<FileId> {
    let file = std::fs::metadata(path).ok()?;
    // A socket file is never modified, so its modification time is its creation time.
    let made = (file.mtime(), file.mtime_nsec());
    Some(((file.dev(), file.ino()), made))
}

/// The device and inode of a socket's file, which are the same for every path to the file.
pub type Inode = (u64, u64);

/// The socket at a path. Follows symbolic links.
///
/// # Errors
/// If the file is absent or not a socket.
pub fn socket_at(path: &Path) -> std::io::Result<Inode> {
    let file = std::fs::metadata(path)?;
    if super::files::is_socket(&file) {
        Ok((file.dev(), file.ino()))
    } else {
        Err(std::io::Error::other(format!(
            "it is {}, not a socket",
            super::files::kind(&file)
        )))
    }
}

/// Identifies the file that the address names now, for comparisons. Reads the file system.
pub fn identity(path: &Path) -> Identity {
    let file = std::fs::metadata(path).ok();
    Identity {
        path: real_path(path, MAX_LINKS),
        file: file.map(|file| (file.dev(), file.ino())),
    }
}

/// Identifies the file that an address names.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The path with its existing symbolic links resolved: `/var/run` is `/run` on most nodes.
    path: PathBuf,
    /// Device and inode of the file, if it exists: a bind mount shows one file at two paths.
    file: Option<Inode>,
}

impl Identity {
    /// Whether both identities belong to the same socket.
    pub fn is(&self, other: &Identity) -> bool {
        self.path == other.path || self.file.is_some() && self.file == other.file
    }
}

/// `path` with its symbolic links resolved. The file and some of its directories may be absent.
fn real_path(path: &Path, links: u8) -> PathBuf {
    let mut directories = path.ancestors().skip(1);
    let real = directories
        .find_map(|directory| {
            let rest = path.strip_prefix(directory).ok()?;
            Some(directory.canonicalize().ok()?.join(rest))
        })
        .unwrap_or_else(|| path.to_owned());
    match (std::fs::read_link(&real), real.parent()) {
        (Ok(target), Some(directory)) if links > 0 => real_path(&directory.join(target), links - 1),
        _ => real,
    }
}

fn without_scheme(text: &str) -> Result<&str, AddressError> {
    if text.starts_with(PIPE) {
        return Err(AddressError::Scheme(text.to_owned()));
    }
    if let Some(rest) = text.strip_prefix("unix:") {
        return Ok(rest.strip_prefix("//").unwrap_or(rest));
    }
    match text.split_once("://") {
        Some((scheme, _)) if !scheme.contains('/') => Err(AddressError::Scheme(text.to_owned())),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        parse(text).unwrap().display().to_string()
    }

    #[test]
    fn a_path_is_read_plain_or_after_its_scheme() {
        for text in ["/run/a.sock", "unix:///run/a.sock", "unix:/run/a.sock"] {
            assert_eq!(parsed(text), "/run/a.sock", "{text}");
        }
    }

    #[test]
    fn two_spellings_of_one_path_are_one_address() {
        for text in [
            "/run//a.sock",
            "/run/./a.sock",
            "/run/a.sock/",
            "unix:////run/a.sock",
        ] {
            assert_eq!(parse(text), parse("/run/a.sock"), "{text}");
        }
        assert_ne!(parse("/run/x/../a.sock"), parse("/run/a.sock"));
    }

    #[test]
    fn an_invalid_address_is_rejected_with_its_reason() {
        for (text, error) in [
            ("", AddressError::Empty),
            ("unix://", AddressError::Empty),
            ("run/a.sock", AddressError::Relative("run/a.sock".into())),
            (
                "unix://run/a.sock",
                AddressError::Relative("run/a.sock".into()),
            ),
            (
                "npipe:////./pipe/a",
                AddressError::Scheme("npipe:////./pipe/a".into()),
            ),
            (r"\\.\pipe\a", AddressError::Scheme(r"\\.\pipe\a".into())),
            (
                "tcp://127.0.0.1:1",
                AddressError::Scheme("tcp://127.0.0.1:1".into()),
            ),
            ("/run/a\0.sock", AddressError::Nul("/run/a\0.sock".into())),
            ("/run/a/", AddressError::Directory("/run/a/".into())),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_path_may_be_107_bytes_and_not_one_more() {
        let longest = format!("/{}.s", "a".repeat(104));
        assert_eq!(parsed(&longest), longest);
        let spelt_longer = format!("/.//{}.s/", "a".repeat(104));
        assert_eq!(parsed(&spelt_longer), longest);
        let longer = format!("/{}", "a".repeat(107));
        assert_eq!(parse(&longer), Err(AddressError::TooLong(108)));
    }
}
