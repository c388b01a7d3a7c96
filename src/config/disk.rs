//! The configuration's files on the disk: which there are, and their bytes.
//!
//! Never waits for who writes to a pipe, and takes no more than a configuration can have.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The largest file that is read, in bytes: a thousand rows take a tenth of it.
const MOST_BYTES: u64 = 1 << 20;
/// The most drop-ins that are read: each is a file that somebody has to look at, so a thousand are a mistake.
const MOST_DROP_INS: usize = 256;
/// To open a pipe does not wait for its other end then, and a terminal does not become the daemon's.
const HARMLESS: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The drop-ins in `folder`, in the order of their names; none if there is no such directory.
///
/// # Errors
/// Also if there are more than a configuration can have.
pub(crate) fn drop_ins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if !is_drop_in(&name) {
            continue;
        }
        if paths.len() == MOST_DROP_INS {
            let what = format!("it has more than {MOST_DROP_INS} files *.toml");
            return Err(io::Error::new(ErrorKind::QuotaExceeded, what));
        }
        paths.push(folder.join(name));
    }
    paths.sort();
    Ok(paths)
}

/// As the shell's `*.toml`: what begins with a dot is an editor's, not ours.
pub(crate) fn is_drop_in(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.ends_with(b".toml") && !name.starts_with(b".")
}

/// What is in a file.
///
/// # Errors
/// Also if it is no regular file, or larger than a configuration can be.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(
        path,
        OFlags::RDONLY | HARMLESS,
        Mode::empty(),
    )?);
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !kind.is_file() {
        let what = "it is a pipe, a device or a socket";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        let what = format!("it is larger than {} MiB", MOST_BYTES >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Whether something has this name, wherever it may lead to.
pub(crate) fn is_there(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
