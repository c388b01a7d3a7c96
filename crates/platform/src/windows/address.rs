//! Addresses of named pipes: their spelling, and the pipes that they name.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The longest path of a pipe in characters, with the prefix.
pub const MAX_PATH_BYTES: usize = 256;

/// The prefix of the path of every local pipe.
const PREFIX: &str = r"\\.\pipe\";

/// Why a text is not the address of a named pipe.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The name of the pipe is empty.
    #[error("the name of the pipe is empty")]
    Empty,
    /// The text is not the path of a local pipe.
    #[error("{0:?} is not a named pipe; criswitch supports only local named pipes on Windows")]
    NotAPipe(String),
    /// The path is so long that Windows rejects it.
    #[error(
        "the path of the pipe is {0} characters long, and Windows takes at most {MAX_PATH_BYTES}"
    )]
    TooLong(usize),
    /// The name has a control character.
    #[error("the name of the pipe in {0:?} contains a control character")]
    Control(String),
}

impl AddressError {
    /// A suggestion that follows the word "try".
    pub fn hint(&self) -> &'static str {
        match self {
            AddressError::Empty | AddressError::NotAPipe(_) => {
                "the address of a pipe, such as \"npipe:////./pipe/containerd-containerd\""
            }
            AddressError::TooLong(_) => "a shorter name",
            AddressError::Control(_) => "the name without the control character",
        }
    }
}

/// Reads `npipe:////./pipe/NAME`, `npipe://./pipe/NAME` or `\\.\pipe\NAME`. A slash and a backslash are equal.
///
/// # Errors
/// If `text` has none of these forms, or if the name is empty, too long or has a control character.
pub fn parse(text: &str) -> Result<PathBuf, AddressError> {
    let path = match text.strip_prefix("npipe:") {
        Some(rest) => format!(r"\\{}", rest.trim_start_matches(['/', '\\'])),
        None => text.to_owned(),
    };
    let path = path.replace('/', r"\");
    let prefix = path.get(..PREFIX.len());
    let name = if prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(PREFIX)) {
        path.get(PREFIX.len()..).unwrap_or_default()
    } else {
        return Err(AddressError::NotAPipe(text.to_owned()));
    };
    if name.is_empty() {
        return Err(AddressError::Empty);
    }
    if name.contains(char::is_control) {
        return Err(AddressError::Control(text.to_owned()));
    }
    match path.encode_utf16().count() {
        0..=MAX_PATH_BYTES => Ok(format!("{PREFIX}{name}").into()),
        length => Err(AddressError::TooLong(length)),
    }
}

/// The address as messages and `criswitch status` show it: in the kubelet's spelling.
///
/// # Errors
/// If `f` fails.
pub fn show(path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&endpoint(path))
}

/// The address in the form that the kubelet and crictl accept.
pub fn endpoint(path: &Path) -> String {
    format!("npipe://{}", path.display().to_string().replace('\\', "/"))
}

/// Identifies a pipe. Two spellings of one pipe have equal ids, because Windows ignores the case of the name.
pub type FileId = u64;

/// The pipe of an address. The id does not say whether a process serves the pipe, and stays the same when a different
/// process serves it.
pub fn file_id(path: &Path) -> Option<FileId> {
    let mut hasher = DefaultHasher::new();
    lower(path).hash(&mut hasher);
    Some(hasher.finish())
}

/// Identifies a pipe for `criswitch discover`.
pub type Inode = u64;

/// The pipe of an address. Windows connects to the pipe for a moment.
///
/// # Errors
/// If there is no such pipe. A pipe that is busy or denies access exists.
pub fn socket_at(path: &Path) -> io::Result<Inode> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        _ => file_id(path).ok_or_else(|| io::ErrorKind::NotFound.into()),
    }
}

/// Identifies the pipe that an address names.
#[derive(Clone, Debug)]
pub struct Identity(String);

/// Identifies the pipe that the address names, for comparisons.
pub fn identity(path: &Path) -> Identity {
    Identity(lower(path))
}

impl Identity {
    /// Whether both identities belong to the same pipe.
    pub fn is(&self, other: &Identity) -> bool {
        self.0 == other.0
    }
}

fn lower(path: &Path) -> String {
    path.to_string_lossy().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_in_each_spelling_and_shown_in_the_kubelets() {
        for text in [
            "npipe:////./pipe/containerd-containerd",
            "npipe://./pipe/containerd-containerd",
            r"npipe:\\.\pipe\containerd-containerd",
            r"\\.\pipe\containerd-containerd",
            r"\\.\PIPE\containerd-containerd",
            "//./pipe/containerd-containerd",
        ] {
            let path = parse(text).unwrap();
            assert_eq!(path, Path::new(r"\\.\pipe\containerd-containerd"), "{text}");
            assert_eq!(endpoint(&path), "npipe:////./pipe/containerd-containerd");
        }
    }

    #[test]
    fn the_case_of_a_name_makes_no_other_pipe() {
        let (one, other) = (parse(r"\\.\pipe\A").unwrap(), parse(r"\\.\pipe\a").unwrap());
        assert!(identity(&one).is(&identity(&other)));
        assert_eq!(file_id(&one), file_id(&other));
    }

    #[test]
    fn an_absent_pipe_is_not_a_socket() {
        let error = socket_at(Path::new(r"\\.\pipe\criswitch-absent")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_invalid_address_is_rejected_with_its_reason() {
        for text in [
            "",
            "/run/containerd/containerd.sock",
            "unix:///run/a.sock",
            r"\\server\pipe\a",
            "npipe:////server/pipe/a",
            "tcp://127.0.0.1:1",
            r"C:\a.sock",
        ] {
            let error = AddressError::NotAPipe(text.to_owned());
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
        assert_eq!(parse("npipe:////./pipe/"), Err(AddressError::Empty));
        let control = r"\\.\pipe\a".to_owned() + "\0";
        assert_eq!(parse(&control), Err(AddressError::Control(control.clone())));
    }

    #[test]
    fn a_path_may_be_256_characters_and_not_one_more() {
        let longest = format!("{PREFIX}{}", "a".repeat(MAX_PATH_BYTES - PREFIX.len()));
        assert!(parse(&longest).is_ok());
        let longer = longest + "a";
        assert_eq!(parse(&longer), Err(AddressError::TooLong(257)));
    }
}
