//! The files of the machine, below the directory that is its `/`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use criswitch_config::disk;
use serde_json::Value;

use super::finding::{Finding, report};

/// Texts of files that have not been written yet.
pub(super) type PlannedTexts = BTreeMap<PathBuf, String>;

/// The limit on links that are followed one after another. Linux has the same limit.
pub(super) const MAX_LINKS: u8 = 40;

/// A machine.
#[derive(Clone, Copy)]
pub(super) struct Root<'a> {
    directory: &'a Path,
    /// If set, the machine is seen as after its next boot: it has these texts in its files, and no processes.
    planned: Option<&'a PlannedTexts>,
}

impl Root<'_> {
    pub(super) fn of(directory: &Path) -> Root<'_> {
        Root {
            directory,
            planned: None,
        }
    }

    /// The machine after its next boot, with these texts in its files.
    pub(super) fn with<'b>(&'b self, planned: &'b PlannedTexts) -> Root<'b> {
        Root {
            directory: self.directory,
            planned: Some(planned),
        }
    }

    /// Converts a path on the checked machine to a path on this machine.
    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.directory.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Converts a path like [`Root::at`], and follows symbolic links below the root of the checked machine. Otherwise
    /// an absolute link would name a file of this machine.
    pub(super) fn real(&self, path: &Path) -> PathBuf {
        if self.directory == Path::new("/") {
            path.to_owned()
        } else {
            self.follow(path, MAX_LINKS)
        }
    }

    /// Converts a path like [`Root::real`], but does not follow a link at the path itself.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        let folder = self.real(path.parent().unwrap_or(path));
        match path.file_name() {
            Some(name) => folder.join(name),
            None => folder,
        }
    }

    /// The path on the checked machine that the link at `path` names; `None` if there is no link.
    pub(super) fn target(&self, path: &Path) -> Option<PathBuf> {
        Some(
            path.parent()?
                .join(std::fs::read_link(self.place(path)).ok()?),
        )
    }

    fn follow(&self, path: &Path, links: u8) -> PathBuf {
        let mut at = self.directory.to_owned();
        let mut parts = path.strip_prefix("/").unwrap_or(path).components();
        while let Some(part) = parts.next() {
            let folder = at.clone();
            match part {
                Component::ParentDir if at == self.directory => {}
                Component::ParentDir => _ = at.pop(),
                part => at.push(part),
            }
            if links > 0
                && at != self.directory
                && let Ok(target) = std::fs::read_link(&at)
            {
                let folder = folder.strip_prefix(self.directory).unwrap_or(&folder);
                return self.follow(&folder.join(target).join(parts.as_path()), links - 1);
            }
        }
        at
    }

    /// Whether the file exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.real(Path::new(path)).exists()
    }

    /// Whether the machine has processes; a mounted image has none.
    pub(super) fn runs(&self) -> bool {
        self.planned.is_none() && !self.is_image()
    }

    /// Whether this is a machine that does not run, such as a mounted image. The files below /run that such a machine
    /// will have are unknown: they are made at its boot.
    pub(super) fn is_image(&self) -> bool {
        !std::fs::read_dir(self.at(Path::new("/proc")))
            .is_ok_and(|mut found| found.next().is_some())
    }

    /// The ids of root's processes in ascending order, with their command lines as the kernel shows them. Processes of
    /// other users are skipped, because a user can give a process any command line. Processes in containers, which have
    /// their own PID namespace, are skipped too: a kubelet of kind or k3d is not the kubelet of the machine.
    pub(super) fn processes(&self) -> Vec<(u32, String)> {
        if !self.runs() {
            return Vec::new();
        }
        let of_init = self.pid_namespace(1);
        let file = |pid, name| self.text(Path::new(&format!("/proc/{pid}/{name}"))).ok()?;
        std::fs::read_dir(self.at(Path::new("/proc")))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect::<BTreeSet<u32>>()
            .into_iter()
            .filter(|pid| {
                let its = self.pid_namespace(*pid);
                of_init.is_none() || its.is_none() || its == of_init
            })
            .filter(|pid| file(*pid, "status").is_none_or(|status| is_of_root(&status)))
            .filter_map(|pid| Some((pid, file(pid, "cmdline")?)))
            .collect()
    }

    fn pid_namespace(&self, pid: u32) -> Option<PathBuf> {
        std::fs::read_link(self.at(Path::new(&format!("/proc/{pid}/ns/pid")))).ok()
    }

    /// The names in a directory; none if it does not exist.
    pub(super) fn names_in(&self, folder: &Path) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.real(folder)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<BTreeSet<_>>>()
            .map(Vec::from_iter)
    }

    /// The text of a file; `None` if the file does not exist. The text of the null device is empty. Any other file that
    /// is not a regular file, or is larger than 1 MiB, is an error.
    pub(super) fn text(&self, path: &Path) -> io::Result<Option<String>> {
        if let Some(text) = self.planned.and_then(|planned| planned.get(path)) {
            return Ok(Some(text.clone()));
        }
        let real = self.real(path);
        match disk::bytes(&real) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // A link to the null device masks a unit or a drop-in.
            Err(_) if real.canonicalize().is_ok_and(|it| it.ends_with("dev/null")) => {
                Ok(Some(String::new()))
            }
            bytes => Ok(Some(String::from_utf8_lossy(&bytes?).into_owned())),
        }
    }

    /// Whether this is the machine on which the command runs.
    pub(super) fn is_this_machine(&self) -> bool {
        self.planned.is_none() && self.directory == Path::new("/")
    }

    /// The files with one of these extensions in a directory, in the order of their names.
    pub(super) fn files_in(&self, folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
        self.paths_in(folder)
            .into_iter()
            .filter(|path| {
                let end = path.extension();
                ends.iter().any(|known| end == Some(known.as_ref())) && !self.real(path).is_dir()
            })
            .collect()
    }

    /// The drop-ins of the kubelet in a directory and its subdirectories, in the order of their names. The kubelet does
    /// not follow links to directories: it reads each link with the name of a drop-in as a file.
    pub(super) fn kubelet_drop_ins(&self, folder: &Path) -> Vec<PathBuf> {
        let is_drop_in = |path: &Path| path.as_os_str().as_encoded_bytes().ends_with(b".conf");
        let is_link = |path: &Path| {
            self.place(path).is_symlink() && !path.as_os_str().as_encoded_bytes().ends_with(b"/")
        };
        if is_link(folder) {
            return Some(folder.to_owned())
                .filter(|it| is_drop_in(it))
                .into_iter()
                .collect();
        }
        let mut files = Vec::new();
        for path in self.paths_in(folder) {
            if is_link(&path) || self.real(&path).is_dir() {
                files.extend(self.kubelet_drop_ins(&path));
            } else if is_drop_in(&path) {
                files.push(path);
            }
        }
        files
    }

    /// The files and directories in a directory, in the order of their names.
    fn paths_in(&self, folder: &Path) -> BTreeSet<PathBuf> {
        let planned = self.planned.into_iter().flat_map(BTreeMap::keys).cloned();
        std::fs::read_dir(self.real(folder))
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(folder.join(entry.ok()?.file_name())))
            .chain(planned.filter(|path| path.parent() == Some(folder)))
            .collect()
    }

    /// The value of the first document in a YAML file; `None` if the file is missing or unreadable. An unreadable file
    /// becomes a finding.
    pub(super) fn yaml(&self, path: &Path, findings: &mut Vec<Finding>) -> Option<Value> {
        let (error, hint) = match self.text(path) {
            Ok(text) => match serde_saphyr::read(&mut text?.as_bytes()).next()? {
                Ok(value) => return Some(value),
                Err(error) => yaml_error(&error),
            },
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                (error.to_string(), "running the command as root")
            }
            Err(error) => (error.to_string(), "a YAML file"),
        };
        report(
            findings,
            path.display(),
            format!("cannot be read: {error}"),
            hint,
        );
        None
    }
}

/// Whether root has started the process with this `/proc/PID/status`: its real user is 0. The real user of a setuid
/// program is the user that has started it.
fn is_of_root(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .is_some_and(|uids| uids.split_whitespace().next() == Some("0"))
}

/// The text of an error in a YAML file, with a hint.
fn yaml_error(error: &serde_saphyr::Error) -> (String, &'static str) {
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => {
            let key = key.as_deref().unwrap_or_default();
            (
                format!("line {}: the key {key:?} occurs twice", location.line()),
                "removing one of the two",
            )
        }
        error => {
            let place = error.location().map_or(0, |place| place.line());
            (format!("line {place} is not valid YAML"), "a YAML file")
        }
    }
}
