//! Replaces a file atomically: other programs read its old content or its new content, never a part.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::{create_new, files, remove};

/// The mode and the owner of the new file.
pub enum Access<'a> {
    /// The file has this mode, whatever the umask of the process is.
    Mode(u32),
    /// The file has the mode and the owner of this file.
    Like(&'a Metadata),
}

/// Creates or replaces the file at `path`.
///
/// # Errors
/// If the file cannot be written. Then the old file is unchanged.
pub fn replace(path: &Path, content: &str, access: &Access<'_>) -> io::Result<()> {
    replace_with(path, |new| write(new, content, access))
}

/// Replaces the file at `path` by the file that `make` creates at a hidden path in the same directory. Removes an
/// existing hidden file first, because a different user may own it. If the process is killed, the path has the old file
/// or the complete new file.
///
/// # Errors
/// If the file cannot be made or renamed. Then the old file is unchanged, and the hidden file is removed, because it
/// would take space on a disk that may be full.
pub fn replace_with(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = hidden(path)?;
    remove(&new)?;
    let made = make(&new).and_then(|()| fs::rename(&new, path));
    if made.is_err() {
        fs::remove_file(&new).ok();
    }
    made
}

/// The path of the new file that replaces the file at `path`.
///
/// # Errors
/// If `path` names no file.
pub fn hidden(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    // No other program has a file of this name.
    hidden.push(".criswitch-new");
    Ok(path.with_file_name(hidden))
}

/// Writes a new file. Follows no link.
fn write(path: &Path, content: &str, access: &Access<'_>) -> io::Result<()> {
    let mode = match access {
        Access::Mode(mode) => *mode,
        Access::Like(old) => files::mode(old),
    };
    let mut file = create_new(path, mode)?;
    if let Access::Like(old) = access {
        files::set_owner(&file, old)?;
    }
    // The umask of the process may have cleared bits of the mode.
    files::set_mode(&file, mode)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_file_of_another_program_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (file, theirs) = (directory.path().join("x"), directory.path().join(".x.new"));
        fs::write(&theirs, "theirs").unwrap();
        replace(&file, "ours", &Access::Mode(0o600)).unwrap();
        assert_eq!(fs::read_to_string(theirs).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(file).unwrap(), "ours");
    }
}
