//! Locks a directory for one process: two processes would overwrite each other's files.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use super::Directories;

/// Keeps the directories locked for this process until dropped.
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
    /// Locks the directories, and creates missing ones. A directory that cannot be locked at all is skipped.
    ///
    /// # Errors
    /// Another process has locked one of them.
    pub fn of(directories: &Directories) -> Result<Lock, InUse> {
        // If this fails, opening the store reports the reason.
        directories.make().ok();
        let both = [&directories.runtime, &directories.state];
        let paths: BTreeSet<_> = both.into_iter().flat_map(fs::canonicalize).collect();
        let mut locked = Vec::new();
        for path in paths {
            let Ok(directory) = File::open(&path) else {
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
