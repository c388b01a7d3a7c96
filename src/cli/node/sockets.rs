//! The sockets of the switch and its backends, as files.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use criswitch::address::Address;
use criswitch::config::{BackendConfig, Config};

use super::{Finding, Root, tell};

/// Whether group or others may write to a directory, and so put a socket of their own in the place of one.
const WRITABLE: u32 = 0o022;
/// Only who owns a file in a directory may then remove it.
const STICKY: u32 = 0o1000;
/// Whether others may reach what is in a directory.
const REACHABLE: u32 = 0o001;

pub(super) fn judge(config: &Config, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let Address::Unix(listen) = &config.listen;
    judge_listen(listen, root, findings);
    if let Some(directory) = listen.parent() {
        let others = config.allow_uids.iter().any(|uid| *uid != 0);
        judge_directory(directory, others, root, findings);
    }
    for backend in &config.table.backends {
        judge_backend(backend, root, findings);
    }
}

/// A socket need not be there: the switch makes it.
fn judge_listen(listen: &Path, root: &Root<'_>, findings: &mut Vec<Finding>) {
    match fs::symlink_metadata(root.at(listen)) {
        Ok(file) if !file.file_type().is_socket() => {
            let what = format!("is {}, where the switch's socket goes", kind(&file));
            tell(findings, listen.display(), what, "moving it away");
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let what = format!("cannot be looked at: {error}");
            tell(findings, listen.display(), what, "another \"listen\"");
        }
        _ => {}
    }
}

/// Nor need its directory.
fn judge_directory(path: &Path, others: bool, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let Ok(directory) = fs::metadata(root.at(path)) else {
        return;
    };
    let mode = directory.permissions().mode();
    let shown = path.display();
    if directory.is_dir() && mode & WRITABLE != 0 && mode & STICKY == 0 {
        let what = "others than its owner can replace the switch's socket";
        tell(findings, &shown, what, format_args!("chmod go-w {shown}"));
    }
    if directory.is_dir() && others && mode & REACHABLE == 0 {
        let what = "the users of \"allow_uids\" cannot reach the socket in it";
        tell(findings, &shown, what, format_args!("chmod o+x {shown}"));
    }
}

fn judge_backend(backend: &BackendConfig, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let Address::Unix(path) = &backend.socket;
    let name = &backend.name;
    let (what, hint) = match fs::metadata(root.at(path)) {
        Ok(file) if file.file_type().is_socket() => return,
        Ok(file) => (
            format!("backend {name:?}: this is {}, not a socket", kind(&file)),
            "the path of its socket",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!("backend {name:?}: there is no such socket");
            (what, "starting the runtime")
        }
        Err(error) => (
            format!("backend {name:?}: cannot be looked at: {error}"),
            "the path of its socket",
        ),
    };
    tell(findings, path.display(), what, hint);
}

fn kind(file: &Metadata) -> &'static str {
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
