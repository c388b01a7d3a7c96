//! Finds files and directories of criswitch that users other than root may write. Such a user can change what criswitch
//! does, and so can run pods as root. The module also finds the number of a user by name.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Config;
use super::value::{self, Wrong};
use crate::config::address::Address;

const ROOT: u32 = 0;
/// The file with the node's users. A user of a name service must be configured by number, because a name service may
/// not answer.
const USERS: &str = "/etc/passwd";
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Returns a sentence for each file or directory that users besides root and `own` may write. Checks the files of the
/// configuration, the directories of the configuration, socket and state, and all directories above. Reads the disk.
pub(super) fn notes(config: &Config, own: u32) -> Vec<String> {
    let main = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
    let Address::Unix(listen) = &config.listen;
    let mut notes = Vec::new();
    let directories = [
        (main.parent(), "the configuration"),
        (Some(&*main.with_file_name("conf.d")), "the configuration"),
        (listen.parent(), "the socket"),
        (config.runtime_dir.as_deref(), "the state"),
        (config.state_dir.as_deref(), "the state"),
    ];
    let files = config
        .files
        .iter()
        .map(|file| (Some(&**file), "the configuration"));
    for (path, what) in files.chain(directories) {
        notes.extend(path.and_then(|path| note(path, own, what)));
        for above in path.map(directories_above).unwrap_or_default() {
            notes.extend(note_above(&above, own, what));
        }
    }
    let mut seen = Vec::new();
    notes.retain(|note| {
        let new = !seen.contains(note);
        seen.push(note.clone());
        new
    });
    notes
}

/// The number of a user, from a number or a name.
pub(super) fn user(text: &str) -> Result<u32, Wrong> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return value::uid(text);
    }
    let users = fs::read(USERS).unwrap_or_default();
    let users = String::from_utf8_lossy(&users);
    let uid = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    });
    let what = format!("{USERS} has no user {text:?}");
    uid.ok_or_else(|| value::wrong(what, "the user's number, such as \"1000\""))
}

/// The directories above `path`, after all symbolic links are resolved; none if `path` does not exist yet.
fn directories_above(path: &Path) -> Vec<PathBuf> {
    let real = path.canonicalize().unwrap_or_default();
    let above = real.ancestors().skip(1).map(Path::to_owned);
    above.filter(|path| path.is_absolute()).collect()
}

fn note(path: &Path, own: u32, what: &str) -> Option<String> {
    sentence(path, &faults(path, &fs::metadata(path).ok()?, own), what)
}

/// The note about a directory above a path. The mode of a sticky directory is ignored, because other users cannot
/// rename root's files in it.
fn note_above(path: &Path, own: u32, what: &str) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let mut faults = faults(path, &found, own);
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

fn faults(path: &Path, found: &Metadata, own: u32) -> Vec<UntrustedPath> {
    let (mode, uid, gid, path) = (found.mode(), found.uid(), found.gid(), path.display());
    let fault = |what, command, mode| UntrustedPath {
        what,
        command,
        mode,
    };
    let mut faults = Vec::new();
    if uid != ROOT && uid != own {
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
    let words = faults.iter().map(|fault| fault.what.as_str());
    let words = words.collect::<Vec<_>>().join(" and ");
    let commands = faults.iter().map(|fault| fault.command.as_str());
    let commands = commands.collect::<Vec<_>>().join("; ");
    (!faults.is_empty()).then(|| {
        format!(
            "{} {words}, so users other than root can replace {what}; try {commands}",
            path.display()
        )
    })
}
