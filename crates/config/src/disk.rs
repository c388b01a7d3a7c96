//! Reads the configuration's files from the disk: their names and bytes.
//!
//! Reading never waits for the other end of a pipe, and never exceeds the limits on files and bytes.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use criswitch_platform::files;

/// The limit on the size of a file, in bytes. A file with a thousand rows has a tenth of this size.
const MOST_BYTES: u64 = 1 << 20;
/// The limit on the number of drop-ins. People maintain these files, so a larger number is a mistake.
const MOST_DROP_INS: usize = 256;
/// The limit on the number of reads of a file that somebody removes and creates again and again.
const MOST_READS: usize = 10;

/// The drop-ins in `folder`, sorted by name; empty if there is no such directory.
///
/// # Errors
/// If `folder` cannot be read, or has more than `MOST_DROP_INS` drop-ins.
pub fn drop_ins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match present(folder, |folder| fs::read_dir(folder)) {
        // A symbolic link without a target is an error: its drop-ins may only be missing for a moment.
        Err(error) if error.kind() == ErrorKind::NotFound && !is_link(folder) => {
            return Ok(Vec::new());
        }
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if !is_drop_in(&name) {
            continue;
        }
        if paths.len() == MOST_DROP_INS {
            return Err(io::Error::new(
                ErrorKind::QuotaExceeded,
                format!("it has more than {MOST_DROP_INS} files *.toml"),
            ));
        }
        paths.push(folder.join(name));
    }
    paths.sort();
    Ok(paths)
}

/// The files in `folder` that are not drop-ins because of their names: at most `MOST_DROP_INS`, sorted by name. Files
/// of editors are skipped.
pub(super) fn not_drop_ins(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| {
            let of_editor = name.as_encoded_bytes().starts_with(b".")
                || name.as_encoded_bytes().ends_with(b"~");
            !is_drop_in(name) && !of_editor
        })
        .map(|name| folder.join(name))
        .take(MOST_DROP_INS)
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
}

/// Whether a name matches `*.toml` as in a shell. A name that begins with a dot does not match: such files belong to
/// editors.
pub fn is_drop_in(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.ends_with(b".toml") && !name.starts_with(b".")
}

/// The content of a file.
///
/// # Errors
/// If the file cannot be read, is not a regular file, or is larger than `MOST_BYTES`.
pub fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    present(path, whole)
}

/// Reads a path. A path that was removed and is there again is read again, for a limited number of times.
fn present<T>(path: &Path, read: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    for _ in 1..MOST_READS {
        match read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && path.exists() => {}
            outcome => return outcome,
        }
    }
    read(path)
}

fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = files::open(path)?;
    if !file.metadata()?.is_file() {
        let what = "it is a pipe, a device or a socket";
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", MOST_BYTES >> 20),
        ));
    }
    Ok(bytes)
}

/// Whether the path is a symbolic link, with or without a target.
pub fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|path| path.is_symlink())
}
