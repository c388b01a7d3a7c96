//! Checks the socket files of criswitch and its backends.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::Path;

use criswitch::config::{BackendConfig, Config};
use criswitch::platform::{files, users};

use super::{Finding, Root, same, tell};

/// The mode bits that let users other than the owner write to a directory, and so replace a socket in the directory.
const WRITABLE: u32 = 0o022;
/// The mode bit of a directory in which users may remove only files that they own.
const STICKY: u32 = 0o1000;
/// The mode bit that lets every user reach the files in a directory.
const REACHABLE: u32 = 0o001;

/// criswitch's socket unit, the folders where systemd looks for units, and the link that enables the unit.
const UNIT: &str = "criswitch.socket";
const UNITS: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const ENABLED: &str = "/etc/systemd/system/sockets.target.wants/criswitch.socket";

pub(super) fn judge(config: &Config, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let listen = config.listen.path();
    judge_listen(listen, root, findings);
    if let Some(directory) = listen.parent() {
        let others = users::has_others(&config.allow_uids);
        judge_directory(directory, others, root, findings);
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
    if fs::symlink_metadata(root.at(Path::new(ENABLED))).is_err() {
        return;
    }
    let units = UNITS.map(|folder| Path::new(folder).join(UNIT));
    let Some(unit) = units.into_iter().find(|unit| root.at(unit).is_file()) else {
        return;
    };
    let drop_ins = UNITS.map(|folder| Path::new(folder).join(format!("{UNIT}.d")));
    let mut files: Vec<_> = drop_ins
        .iter()
        .flat_map(|folder| root.files_in(folder, "conf"))
        .collect();
    files.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    // If several directories have a drop-in with the same name, systemd reads only the first one. The administrator's
    // directory `/etc/systemd/system` comes first.
    files.dedup_by(|later, first| later.file_name() == first.file_name());
    files.insert(0, unit);
    let mut held = Vec::new();
    for file in &files {
        let text = root.text(file).ok().flatten().unwrap_or_default();
        for line in text.lines() {
            match line.trim().strip_prefix("ListenStream=") {
                // In systemd, an empty value clears the list.
                Some("") => held.clear(),
                Some(path) => held.push(path.trim().to_owned()),
                None => {}
            }
        }
    }
    if !held
        .iter()
        .any(|held| same(held, &listen.to_string_lossy()))
    {
        let place = match held.is_empty() {
            true => format!("{UNIT} has no ListenStream="),
            false => format!("systemd listens at {}", held.join(", ")),
        };
        let what = format!("{place}, but \"listen\" is {}", listen.display());
        let hint = format!(
            "systemctl edit {UNIT}, with the lines ListenStream= and ListenStream={}",
            listen.display()
        );
        tell(findings, UNIT, what, hint);
    }
}

/// Checks the path of criswitch's socket. The socket may be missing: criswitch creates it.
fn judge_listen(listen: &Path, root: &Root<'_>, findings: &mut Vec<Finding>) {
    match fs::symlink_metadata(root.at(listen)) {
        Ok(file) if !files::is_socket(&file) => {
            let what = format!(
                "is {}; criswitch needs this path for its socket",
                kind(&file)
            );
            tell(findings, listen.display(), what, "moving it");
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let what = format!("cannot be examined: {error}");
            tell(findings, listen.display(), what, "a different \"listen\"");
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
        tell(findings, &shown, what, format_args!("chmod go-w {shown}"));
    }
    if directory.is_dir() && others && mode & REACHABLE == 0 {
        let what = "the users of \"allow_uids\" cannot reach the socket in this directory";
        tell(findings, &shown, what, format_args!("chmod o+x {shown}"));
    }
}

fn judge_backend(backend: &BackendConfig, root: &Root<'_>, findings: &mut Vec<Finding>) {
    let path = backend.socket.path();
    let name = &backend.name;
    let (what, hint) = match fs::metadata(root.at(path)) {
        Ok(file) if files::is_socket(&file) => return,
        Ok(file) => (
            format!("backend {name:?}: this is {}, not a socket", kind(&file)),
            "the path of its socket",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!("backend {name:?}: this socket does not exist");
            (what, "starting the runtime")
        }
        Err(error) => (
            format!("backend {name:?}: cannot be examined: {error}"),
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
