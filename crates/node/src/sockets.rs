//! Checks the socket files of criswitch and its backends.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use criswitch_config::{BackendConfig, Config};
use criswitch_platform::{files, users};

use super::finding::{Finding, report};
use super::root::Root;
use super::settings::same;
use super::unit::Unit;

/// The mode bits that let users other than the owner write to a directory, and so replace a socket in the directory.
const WRITABLE: u32 = 0o022;
/// The mode bit of a directory in which users may remove only files that they own.
const STICKY: u32 = 0o1000;
/// The mode bit that lets every user reach the files in a directory.
const REACHABLE: u32 = 0o001;

/// criswitch's socket unit.
const UNIT: &str = "criswitch.socket";

pub(super) fn judge(config: &Config, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let listen = config.listen.path();
    judge_listen(listen, root, findings);
    if let Some(directory) = listen.parent() {
        judge_directory(
            directory,
            users::has_others(&config.allow_uids),
            root,
            findings,
        );
    }
    judge_unit(listen, root, findings);
    // A mounted image has no running runtimes, and so no sockets.
    if root.runs() {
        for backend in &config.table.backends {
            judge_backend(backend, root, findings);
        }
    }
}

/// Checks that systemd listens at criswitch's socket, if the socket unit is enabled.
fn judge_unit(listen: &Path, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let unit = Unit::read(root, UNIT);
    if !unit.is_enabled(root) {
        return;
    }
    let streams = unit.values("ListenStream").into_iter();
    let streams: Vec<_> = streams.map(|stream| stream.text.as_str()).collect();
    let listen = listen.to_string_lossy();
    if streams.iter().any(|stream| same(stream, &listen)) {
        return;
    }
    let place = match streams.as_slice() {
        [] => format!("{UNIT} has no ListenStream="),
        streams => format!("systemd listens at {}", streams.join(", ")),
    };
    let what = format!("{place}, but \"listen\" is {listen}");
    report(
        findings,
        UNIT,
        what,
        format!("systemctl edit {UNIT}, with the lines ListenStream= and ListenStream={listen}"),
    );
}

/// Checks the path of criswitch's socket. The socket may be missing: criswitch creates it.
fn judge_listen(listen: &Path, root: &Root<'_>, findings: &mut Vec<Finding>) {
    match fs::symlink_metadata(root.at(listen)) {
        Ok(file) if !files::is_socket(&file) => {
            let kind = files::kind(&file);
            report(
                findings,
                listen.display(),
                format!("is {kind}; criswitch needs this path for its socket"),
                "moving it",
            );
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            report(
                findings,
                listen.display(),
                format!("cannot be examined: {error}"),
                "a different \"listen\"",
            );
        }
        _ => {}
    }
}

/// Checks the directory of criswitch's socket. The directory may be missing.
fn judge_directory(path: &Path, others: bool, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let Ok(directory) = fs::metadata(root.at(path)) else {
        return;
    };
    let mode = files::mode(&directory);
    let shown = path.display();
    if directory.is_dir() && mode & WRITABLE != 0 && mode & STICKY == 0 {
        let what = "users other than the owner of this directory can replace criswitch's socket";
        report(findings, &shown, what, format_args!("chmod go-w {shown}"));
    }
    if directory.is_dir() && others && mode & REACHABLE == 0 {
        let what = "the users of \"allow_uids\" cannot reach the socket in this directory";
        report(findings, &shown, what, format_args!("chmod o+x {shown}"));
    }
}

fn judge_backend(backend: &BackendConfig, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let (path, name) = (backend.socket.path(), &backend.name);
    let (what, hint) = match fs::metadata(root.at(path)) {
        Ok(file) if files::is_socket(&file) => return,
        Ok(file) => (
            format!("this is {}, not a socket", files::kind(&file)),
            "the path of its socket",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => (
            "this socket does not exist".to_owned(),
            "starting the runtime",
        ),
        Err(error) => (
            format!("cannot be examined: {error}"),
            "the path of its socket",
        ),
    };
    report(
        findings,
        path.display(),
        format!("backend {name:?}: {what}"),
        hint,
    );
}
