//! Files and directories that users other than administrators may write. No safe call reads the security descriptor of
//! a file, so criswitch finds none.

use std::path::Path;

/// A sentence about a path that other users may write: always `None`.
pub fn note(_: &Path, _: &str) -> Option<String> {
    None
}

/// The note about a directory above a path: always `None`.
pub fn note_above(_: &Path, _: &str) -> Option<String> {
    None
}
