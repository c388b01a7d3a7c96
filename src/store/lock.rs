//! Locks the directories of the state for one process: two processes would overwrite each other's files.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use criswitch_platform::files;

use criswitch_config::Directories;

/// Keeps the directories locked for this process until this value is dropped.
#[derive(Debug)]
pub struct Lock {
    _directories: Vec<File>,
}

/// Another process uses this directory.
#[derive(Debug, thiserror::Error)]
#[error(
    "another criswitch saves its state in {0}; stop it, or change `runtime_dir` and `state_dir`"
)]
pub struct InUse(PathBuf);

impl Lock {
    /// Locks the directories, and creates missing ones. Skips a directory that cannot be opened or whose file system
    /// has no locks.
    ///
    /// # Errors
    /// Another process has locked a directory.
    pub fn of(directories: &Directories) -> Result<Lock, InUse> {
        // If a directory cannot be created, `Store::open` reports the reason.
        super::make_directories(directories).ok();
        let both = [&directories.runtime, &directories.state];
        let paths: BTreeSet<_> = both.into_iter().flat_map(fs::canonicalize).collect();
        let mut locked = Vec::new();
        for path in paths {
            let Ok(directory) = files::lock_of(&path) else {
                continue;
            };
            match directory.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(InUse(path)),
                Ok(()) | Err(TryLockError::Error(_)) => locked.push(directory),
            }
        }
        Ok(Lock {
            _directories: locked,
        })
    }
}
