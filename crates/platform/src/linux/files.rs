//! Files: opening them without waiting, their modes and owners, and directories.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::hash::Hash;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, XattrFlags};
use rustix::io::Errno;

use crate::{Attributes, FreeSpace, SECURITY, users};

/// With these flags, open(2) neither waits for the other end of a pipe nor makes a terminal the daemon's controlling
/// terminal.
const HARMLESS: OFlags = OFlags::NONBLOCK
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// These flags keep open(2) from following a link, and from waiting for the other end of a pipe.
pub(super) const NO_LINK: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
/// The bits of a mode without the bits for the file type.
const MODE: u32 = 0o7777;
/// The limit of Linux on the names of all extended attributes of a file, and on each value, in bytes.
const MOST_EXTENDED: usize = 1 << 16;
/// The mode bits that let users other than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Opens a file that an administrator names, for reading. Never waits for the other end of a pipe.
///
/// # Errors
/// If the file cannot be opened, or is a directory.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::from(rustix::fs::open(
        path,
        OFlags::RDONLY | HARMLESS,
        Mode::empty(),
    )?);
    if file.metadata()?.is_dir() {
        Err(Errno::ISDIR.into())
    } else {
        Ok(file)
    }
}

/// Opens a file that criswitch has written, for reading. Follows no link. `None` if users other than root and
/// criswitch's own user may write the file.
///
/// # Errors
/// If the file cannot be opened.
pub fn open_own(path: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .read(true)
        .custom_flags(NO_LINK.bits().cast_signed())
        .open(path)?;
    let about = file.metadata()?;
    let is_own = is_own(&about) && about.mode() & OTHERS_WRITE == 0;
    Ok(is_own.then_some(file))
}

/// Whether the file system of a path runs no programs.
///
/// # Errors
/// If it cannot be examined.
pub fn runs_no_programs(path: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statvfs(path)?
        .f_flag
        .contains(StatVfsMountFlags::NOEXEC))
}

/// Sets the mode of a file that `options` create.
pub fn with_mode(options: &mut OpenOptions, mode: u32) -> &mut OpenOptions {
    options.mode(mode)
}

/// Sets the mode of an open file.
///
/// # Errors
/// If the mode cannot be changed.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Gives an open file the user and the group of `old`.
///
/// # Errors
/// If they differ and cannot be changed: only root may give a file to a different user.
pub fn set_owner(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) == (old.uid(), old.gid()) {
        Ok(())
    } else {
        std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()))
    }
}

/// Creates a directory and all directories above it, with this mode. Changes no existing directory.
///
/// # Errors
/// If a directory cannot be created.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Opens the file that is locked in order to lock a directory: the directory itself.
///
/// # Errors
/// If the directory cannot be opened.
pub fn lock_of(directory: &Path) -> io::Result<File> {
    File::open(directory)
}

/// Whether the user that criswitch runs as owns the file.
pub fn is_own(file: &Metadata) -> bool {
    file.uid() == users::own()
}

/// The metadata that changes when a file changes. Programs such as archive tools can set the time of the last write
/// (mtime). No program can set the time of the last change (ctime).
pub fn version(file: &Metadata) -> impl Hash + use<> {
    let written = (file.mtime(), file.mtime_nsec());
    let changed = (file.ctime(), file.ctime_nsec());
    (file.ino(), file.size(), written, changed)
}

/// Whether the file is a socket.
pub fn is_socket(file: &Metadata) -> bool {
    file.file_type().is_socket()
}

/// The kind of a file in words, for messages about a file that is not a socket.
pub fn kind(file: &Metadata) -> &'static str {
    if file.is_dir() {
        "a directory"
    } else if file.is_symlink() {
        "a symbolic link"
    } else if file.is_file() {
        "a file"
    } else {
        "a device or a pipe"
    }
}

/// The mode of a file.
pub fn mode(file: &Metadata) -> u32 {
    file.permissions().mode()
}

impl Attributes {
    /// The attributes of a file. Follows no link.
    ///
    /// # Errors
    /// If the file cannot be examined.
    pub fn of(path: &Path) -> io::Result<Attributes> {
        let about = std::fs::symlink_metadata(path)?;
        let time = about
            .modified()?
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Attributes {
            mode: mode(&about) & MODE,
            owner: [about.uid(), about.gid()],
            written: (time.as_secs(), time.subsec_nanos()),
            extended: Some(extended(path)?),
        })
    }

    /// The attributes of a new file with this mode, owned by the user and group of this process.
    #[must_use]
    pub fn new(mode: u32) -> Attributes {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Attributes {
            mode,
            owner: [users::own(), rustix::process::getegid().as_raw()],
            written: (now.as_secs(), now.subsec_nanos()),
            extended: None,
        }
    }

    /// Gives a new file these attributes.
    ///
    /// # Errors
    /// If an attribute cannot be set.
    pub fn set(&self, file: &File) -> io::Result<()> {
        let [uid, gid] = self.owner;
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
        if let Some(extended) = &self.extended {
            // For example, the default ACL of the directory.
            let given = attribute_names(|names| rustix::fs::flistxattr(file, names))?;
            for name in given
                .iter()
                .filter(|name| !name.starts_with(SECURITY) && !extended.contains_key(*name))
            {
                // Errors are ignored, because some file systems do not allow the removal of their attributes.
                rustix::fs::fremovexattr(file, name.as_str()).ok();
            }
        }
        set_mode(file, self.mode)?;
        for (name, value) in self.extended.iter().flatten() {
            rustix::fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty())?;
        }
        let (seconds, nanoseconds) = self.written;
        file.set_modified(UNIX_EPOCH + Duration::new(seconds, nanoseconds))
    }
}

/// The extended attributes of a file; none if its file system has none.
fn extended(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut attributes = BTreeMap::new();
    for name in attribute_names(|names| rustix::fs::llistxattr(path, names))? {
        let mut value = vec![0; MOST_EXTENDED];
        let length = rustix::fs::lgetxattr(path, &*name, &mut value)?;
        value.truncate(length);
        attributes.insert(name, value);
    }
    Ok(attributes)
}

/// The names of extended attributes that a call lists; none if the file system has none.
fn attribute_names(
    list: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> io::Result<Vec<String>> {
    let mut names = vec![0; MOST_EXTENDED];
    let length = match list(&mut names) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    names.truncate(length);
    names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Makes a symbolic link.
///
/// # Errors
/// If the link cannot be made.
pub fn make_link(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

impl FreeSpace {
    /// The file system of this path. `None` if the path does not exist. May block.
    pub fn of(path: &Path) -> Option<FreeSpace> {
        let found = rustix::fs::statvfs(path).ok()?;
        Some(FreeSpace {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            free_inodes: found.f_favail,
        })
    }
}
