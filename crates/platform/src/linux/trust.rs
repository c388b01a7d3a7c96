//! Finds files and directories that users other than root may write. Such a user can change what criswitch does, and so
//! can run pods as root.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::users::{self, ROOT};

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A sentence about a path if users besides root and criswitch's own user may write it. `what` is the thing that they
/// could replace.
pub fn note(path: &Path, what: &str) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    sentence(path, &found, found.mode(), what)
}

/// The note about a directory above a path. The mode of a sticky directory is ignored, because other users cannot
/// rename root's files in it.
pub fn note_above(path: &Path, what: &str) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let mode = if found.mode() & STICKY == 0 {
        found.mode()
    } else {
        0
    };
    sentence(path, &found, mode, what)
}

/// The faults of a path of this mode in words, and the commands that fix them.
fn sentence(path: &Path, found: &Metadata, mode: u32, what: &str) -> Option<String> {
    let (uid, gid, path) = (found.uid(), found.gid(), path.display());
    let (mut faults, mut commands) = (Vec::new(), Vec::new());
    if !users::is_own(uid) {
        faults.push(format!("belongs to user {uid}"));
        commands.push(format!("chown root {path}"));
    }
    if mode & GROUP_WRITES != 0 && gid != ROOT {
        faults.push(format!(
            "may be written by group {gid} (mode {:04o})",
            mode & 0o7777
        ));
        commands.push(format!("chmod g-w {path}"));
    }
    if mode & OTHERS_WRITE != 0 {
        faults.push(format!(
            "may be written by every user (mode {:04o})",
            mode & 0o7777
        ));
        commands.push(match mode & STICKY {
            0 => format!("chmod o-w {path}"),
            // A sticky directory such as /tmp is open on purpose, so the note suggests a different directory.
            _ => "a directory that only criswitch uses, such as /run/criswitch or /etc/criswitch"
                .to_owned(),
        });
    }
    let (faults, commands) = (faults.join(" and "), commands.join("; "));
    (!faults.is_empty()).then(|| {
        format!("{path} {faults}, so users other than root can replace {what}; try {commands}")
    })
}
