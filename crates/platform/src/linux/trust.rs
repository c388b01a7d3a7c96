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
    sentence(path, &faults(path, &fs::metadata(path).ok()?), what)
}

/// The note about a directory above a path. The mode of a sticky directory is ignored, because other users cannot
/// rename root's files in it.
pub fn note_above(path: &Path, what: &str) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let mut faults = faults(path, &found);
    faults.retain(|fault| !(fault.mode && found.mode() & STICKY != 0));
    sentence(path, &faults, what)
}

/// A fault of a path, and the command that fixes it.
struct UntrustedPath {
    what: String,
    command: String,
    /// Whether the fault is in the mode, not in the owner.
    mode: bool,
}

fn fault(what: String, command: String, mode: bool) -> UntrustedPath {
    UntrustedPath {
        what,
        command,
        mode,
    }
}

fn faults(path: &Path, found: &Metadata) -> Vec<UntrustedPath> {
    let (mode, uid, gid, path) = (found.mode(), found.uid(), found.gid(), path.display());
    let mut faults = Vec::new();
    if !users::is_own(uid) {
        let what = format!("belongs to user {uid}");
        faults.push(fault(what, format!("chown root {path}"), false));
    }
    if mode & GROUP_WRITES != 0 && gid != ROOT {
        let what = format!("may be written by group {gid} (mode {:04o})", mode & 0o7777);
        faults.push(fault(what, format!("chmod g-w {path}"), true));
    }
    if mode & OTHERS_WRITE != 0 {
        let what = format!("may be written by every user (mode {:04o})", mode & 0o7777);
        let command = match mode & STICKY {
            0 => format!("chmod o-w {path}"),
            // A sticky directory such as /tmp is open on purpose, so the note suggests a different directory.
            _ => "a directory that only criswitch uses, such as /run/criswitch or /etc/criswitch"
                .to_owned(),
        };
        faults.push(fault(what, command, true));
    }
    faults
}

fn sentence(path: &Path, faults: &[UntrustedPath], what: &str) -> Option<String> {
    let words = faults
        .iter()
        .map(|fault| fault.what.as_str())
        .collect::<Vec<_>>()
        .join(" and ");
    let commands = faults
        .iter()
        .map(|fault| fault.command.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    (!faults.is_empty()).then(|| {
        format!(
            "{} {words}, so users other than root can replace {what}; try {commands}",
            path.display()
        )
    })
}
