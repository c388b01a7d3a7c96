//! Files and directories. Windows has no modes: a file inherits the access of its directory.

use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::Hash;
use std::io;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Attributes, FreeSpace};

/// Opens a link instead of its target (`FILE_FLAG_OPEN_REPARSE_POINT`).
const NO_LINK: u32 = 0x0020_0000;
/// The file that is locked in order to lock a directory, because Windows cannot lock a directory.
const LOCK: &str = "criswitch.lock";

/// Opens a file that an administrator names, for reading.
///
/// # Errors
/// If the file cannot be opened, or is a directory.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        File::open(path)
    }
}

/// Opens a file that criswitch has written, for reading. `None` if the path is a link.
///
/// # Errors
/// If the file cannot be opened.
pub fn open_own(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(NO_LINK).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Changes nothing: Windows has no modes.
pub fn with_mode(options: &mut OpenOptions, _: u32) -> &mut OpenOptions {
    options
}

/// Changes nothing: Windows has no modes.
///
/// # Errors
/// None.
pub fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

/// Changes nothing: a new file has the owner of the process.
///
/// # Errors
/// None.
pub fn set_owner(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Creates a directory and all directories above it.
///
/// # Errors
/// If a directory cannot be created.
pub fn make_directories(path: &Path, _: u32) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Opens the file that is locked in order to lock a directory.
///
/// # Errors
/// If the file cannot be opened or created.
pub fn lock_of(directory: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options.open(directory.join(LOCK))
}

/// Whether the user that criswitch runs as owns the file. Unknown, so it counts as true.
pub fn is_own(_: &Metadata) -> bool {
    true
}

/// The metadata that changes when a file changes.
pub fn version(file: &Metadata) -> impl Hash + use<> {
    let (created, written) = (file.creation_time(), file.last_write_time());
    (file.file_size(), created, written)
}

/// Whether the file is a socket: never.
pub fn is_socket(_: &Metadata) -> bool {
    false
}

/// The kind of a file in words, for messages about a file that is not a pipe.
pub fn kind(_: &Metadata) -> &'static str {
    "a file"
}

/// The mode of a file: without any permissions of other users.
pub fn mode(_: &Metadata) -> u32 {
    0
}

/// Not supported, because criswitch does not change Windows nodes.
///
/// # Errors
/// Always.
pub fn runs_no_programs(_: &Path) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Attributes {
    /// Not supported, because criswitch does not change Windows nodes.
    ///
    /// # Errors
    /// Always.
    pub fn of(_: &Path) -> io::Result<Attributes> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The attributes of a new file with this mode.
    #[must_use]
    pub fn new(mode: u32) -> Attributes {
        Attributes {
            mode,
            ..Attributes::default()
        }
    }

    /// Not supported, because criswitch does not change Windows nodes.
    ///
    /// # Errors
    /// Always.
    pub fn set(&self, _: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Not supported, because criswitch does not change Windows nodes.
///
/// # Errors
/// Always.
pub fn make_link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl FreeSpace {
    /// The file system of this path. `None` if the path does not exist. NTFS has no limit on files, so the inodes are
    /// zero. May block.
    pub fn of(path: &Path) -> Option<FreeSpace> {
        let (mut available_bytes, mut bytes) = (0, 0);
        let space = (Some(&mut available_bytes), Some(&mut bytes));
        winsafe::GetDiskFreeSpaceEx(path.to_str(), space.0, space.1, None).ok()?;
        Some(FreeSpace {
            bytes,
            available_bytes,
            inodes: 0,
            free_inodes: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_free_space_and_an_absent_one_has_none() {
        let space = FreeSpace::of(&std::env::temp_dir()).unwrap();
        assert!(0 < space.available_bytes && space.available_bytes <= space.bytes);
        assert!(FreeSpace::of(Path::new(r"C:\criswitch-absent\x")).is_none());
    }
}
