//! Replaces a file at once, so that other programs read its old content or its new content, never a part.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::platform::{create_new, files, remove};

/// The mode and the owner of the new file.
pub enum Access<'a> {
    /// The file has this mode, whatever the umask of the process is.
    Mode(u32),
    /// The file has the mode and the owner of this file.
    Like(&'a Metadata),
}

/// Creates or replaces the file at `path`. Writes a hidden file in the same directory, and renames it.
///
/// # Errors
/// If the file cannot be written. Then the old file is unchanged.
pub fn replace(path: &Path, content: &str, access: &Access<'_>) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(ErrorKind::IsADirectory.into());
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    let new = path.with_file_name(hidden);
    let written = write(&new, content, access).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        fs::remove_file(&new).ok();
    }
    written
}

/// Writes a new file. Removes an existing file first, because a different user may own it. Follows no link.
fn write(path: &Path, content: &str, access: &Access<'_>) -> io::Result<()> {
    remove(path)?;
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
