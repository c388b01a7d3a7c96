//! The sockets at which processes of this machine listen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use procfs::process::{FDTarget, Process, all_processes};
use procfs::{ProcError, ProcResult};

use super::paths::in_run;
use crate::{LostSocket, SocketProcess};

/// The flag of a listening socket in /proc/net/unix (`__SO_ACCEPTCON`), as the kernel writes it.
const LISTENS: &[u8] = b"00010000";
/// The columns of /proc/net/unix with the flags and the inode. The path is the rest of the line after the inode.
const FLAGS: usize = 3;
const INODE: usize = 6;

/// The sockets in init's network namespace on which a process listens that new connections do not reach. Either another
/// process has bound the path later, or the file was removed, or the file belongs to a socket that no process has open.
/// These are found for paths that `wanted` accepts; the first case with `others` for every path. Only an attempt to
/// connect shows the last case, so it is found only for paths that `dials` accepts too. Only paths in init's file
/// systems count: a container may have the same path in its own file system.
///
/// # Errors
/// If the kernel does not show its sockets, or not the processes of the sockets at wanted paths.
pub fn lost_sockets(
    wanted: impl Fn(&Path) -> bool,
    dials: impl Fn(&Path) -> bool,
    others: bool,
) -> io::Result<Vec<LostSocket>> {
    let is_dead = |path: &Path| !path.exists() || dials(path) && refuses(path);
    let mut bound: BTreeMap<PathBuf, Vec<u64>> = BTreeMap::new();
    for line in fs::read("/proc/1/net/unix")?.split(|byte| *byte == b'\n') {
        if let Some((path, inode)) = listens_at(line) {
            bound.entry(path).or_default().push(inode);
        }
    }
    bound.retain(|path, inodes| {
        let is_wanted = wanted(path);
        (is_wanted || others) && inodes.len() > 1 || is_wanted && is_dead(path)
    });
    if bound.is_empty() {
        return Ok(Vec::new());
    }
    let needed = bound.iter().filter(|(path, _)| wanted(path));
    let needed = needed.flat_map(|(_, inodes)| inodes).copied().collect();
    let servers = servers(&bound.values().flatten().copied().collect(), &needed)?;
    let mut lost = Vec::new();
    for (path, inodes) in bound {
        let mut processes: Vec<_> = inodes
            .iter()
            .filter_map(|inode| servers.get(inode))
            .filter(|process| sees(process.pid, &path))
            .cloned()
            .collect();
        processes.sort_by_key(|process| process.pid);
        if processes.len() > 1 || !processes.is_empty() && is_dead(&path) {
            lost.push(LostSocket { path, processes });
        }
    }
    Ok(lost)
}

/// Whether nothing listens at the file.
fn refuses(path: &Path) -> bool {
    crate::dial(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The path, without the link `/var/run`, and the inode of the listening socket in a line of /proc/net/unix.
fn listens_at(line: &[u8]) -> Option<(PathBuf, u64)> {
    let mut columns = line
        .splitn(INODE + 2, |byte| *byte == b' ')
        .collect::<Vec<_>>();
    // The kernel pads the inode with blanks.
    while columns.len() == INODE + 2 && columns.get(INODE).is_some_and(|inode| inode.is_empty()) {
        let rest = columns.pop()?;
        columns.pop();
        columns.extend(rest.splitn(2, |byte| *byte == b' '));
    }
    let [.., inode, path] = columns.as_slice() else {
        return None;
    };
    let path = Path::new(OsStr::from_bytes(path));
    let inode = str::from_utf8(inode).ok()?.parse().ok()?;
    let listens = columns.get(FLAGS).is_some_and(|flags| *flags == LISTENS);
    (listens && path.is_absolute()).then(|| (in_run(path), inode))
}

/// For each socket, the process with the lowest id that has the socket open. A socket whose process has ended meanwhile
/// is missing, and so is one whose process is not visible.
///
/// # Errors
/// If the process of a socket in `needed` may be one that is not visible.
fn servers(
    sockets: &HashSet<u64>,
    needed: &HashSet<u64>,
) -> io::Result<HashMap<u64, SocketProcess>> {
    let mut servers = HashMap::new();
    let mut is_hidden = false;
    for process in all_processes().map_err(io::Error::other)?.flatten() {
        let files = match process.fd() {
            Ok(files) => files,
            Err(error) => {
                is_hidden |= matches!(error, ProcError::PermissionDenied(_));
                continue;
            }
        };
        for file in files.filter_map(ProcResult::ok) {
            if let FDTarget::Socket(inode) = file.target
                && sockets.contains(&inode)
            {
                servers.entry(inode).or_insert_with(|| named(&process));
            }
        }
    }
    if is_hidden && needed.iter().any(|inode| !servers.contains_key(inode)) {
        let what = "the files of other users' processes are not visible; run the command as root";
        return Err(io::Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(servers)
}

fn named(process: &Process) -> SocketProcess {
    let program = process.stat().map(|stat| stat.comm).unwrap_or_default();
    SocketProcess {
        pid: process.pid,
        program,
    }
}

/// Whether the process sees the same directory at the path of the socket as init does.
fn sees(pid: i32, socket: &Path) -> bool {
    directory_of(pid, socket).is_some_and(|directory| directory_of(1, socket) == Some(directory))
}

/// The device and the inode of the directory that a process sees at the path of a socket.
fn directory_of(pid: i32, socket: &Path) -> Option<(u64, u64)> {
    let below = socket.parent()?.strip_prefix("/").ok()?;
    let directory = fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(below)).ok()?;
    Some((directory.dev(), directory.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_lost_when_its_path_is_bound_again_or_leads_to_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["twice", "removed", "fine", "left behind"];
        let paths = names.map(|name| folder.path().join(name));
        let [twice, removed, fine, left] = &paths;
        let bind = |path: &Path| UnixListener::bind(path).unwrap();
        let _served = paths.each_ref().map(|path| bind(path));
        for path in [twice, removed, left] {
            fs::remove_file(path).unwrap();
        }
        let _second = bind(twice);
        drop(bind(left));
        // Without privileges, the kernel shows neither init's directories nor the files of other users' processes.
        let lost =
            |dials: bool| lost_sockets(|path| path.starts_with(folder.path()), |_| dials, false);
        if let (Ok(lost), Ok(unasked)) = (lost(true), lost(false))
            && sees(std::process::id().cast_signed(), fine)
        {
            let of = |path: &PathBuf| {
                let lost = lost.iter().find(|lost| lost.path == *path);
                lost.map(|lost| lost.processes.len())
            };
            assert_eq!(unasked.len(), 2);
            assert_eq!(
                [twice, removed, fine, left].map(of),
                [Some(2), Some(1), None, Some(1)]
            );
        }
    }
}
