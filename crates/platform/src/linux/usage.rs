//! The memory and the processor time that a pod costs this machine: what the kernel counts in the pod's cgroups, and
//! the processes outside of these cgroups that run for the pod, such as its shim.
//!
//! A runtime puts the id of a pod or container, 64 hex digits, into the name of its cgroup and into the arguments of
//! the processes that it starts for this pod or container. A command that names the id, such as `crictl exec`, counts
//! too while it runs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::process::{MountInfo, MountInfos, Process, Stat, all_processes_with_root};
use procfs::{FromRead, ProcError};
use rustix::io::Errno;

use super::paths::below;
use crate::{PodUsage, ProcessUsage, Usage};

/// The type of a mount of cgroup v1, and of cgroup v2.
const V1: &str = "cgroup";
const V2: &str = "cgroup2";
/// The controllers of cgroup v1 that count memory and processor time.
const MEMORY: &str = "memory";
const CPU: &str = "cpuacct";
/// Proportional set size: each page that processes share is divided among them. The pages of a shim's program, which
/// all shims share, thus count once.
const PSS: &str = "Pss";

/// The cgroups and processes of this machine.
#[derive(Debug)]
pub struct Machine {
    proc: PathBuf,
    hierarchy: Hierarchy,
}

/// The directories with the cgroups that count memory and processor time.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    /// cgroup v1: one directory for each controller.
    V1 {
        memory: PathBuf,
        cpu: PathBuf,
    },
    V2(PathBuf),
}

/// Cgroups of a pod, in the hierarchies that count memory and processor time.
struct Cgroups {
    memory: Vec<PathBuf>,
    cpu: Vec<PathBuf>,
}

/// A process and the facts that decide whether it runs for the pod.
struct CandidateProcess {
    process: Process,
    stat: Stat,
    arguments: Vec<String>,
    is_in_cgroup: bool,
}

impl Machine {
    /// Finds the cgroups of the machine whose root directory is `root`.
    ///
    /// # Errors
    /// No mount has the cgroups.
    pub fn at(root: &Path) -> io::Result<Machine> {
        let proc = below(root, "/proc");
        let mounts = MountInfos::from_file(proc.join("self/mountinfo")).map_err(io_error)?;
        let hierarchy = Hierarchy::of(root, &mounts.0).ok_or_else(|| {
            let what = "/proc/self/mountinfo has no mount of cgroup v2, and none of the controllers memory and cpuacct \
                        of cgroup v1";
            io::Error::new(ErrorKind::NotFound, what)
        })?;
        Ok(Machine { proc, hierarchy })
    }

    /// The memory and processor time that the pod uses now. `ids` are the ids of the pod and of its containers.
    /// `parent` is the pod's cgroup parent; if it is `None`, all cgroups with an id count as the pod's.
    ///
    /// # Errors
    /// A file cannot be read, or the machine has neither a cgroup nor a process of the pod.
    pub fn usage_of(&self, ids: &[&str], parent: Option<&str>) -> io::Result<PodUsage> {
        let [inside, others] = self.hierarchy.cgroups_of(ids, parent)?;
        let (processes, pss_in_cgroups_bytes) = self.processes_of(ids)?;
        if inside.is_empty() && others.is_empty() && processes.is_empty() {
            let what = "this machine has no cgroup and no process of the pod; run criswitch in the namespaces of the \
                        node";
            return Err(io::Error::new(ErrorKind::NotFound, what));
        }
        Ok(PodUsage {
            in_cgroups: self.hierarchy.usage(&inside)?,
            in_other_cgroups: self.hierarchy.usage(&others)?,
            cgroups: inside.memory,
            pss_in_cgroups_bytes,
            processes,
        })
    }

    /// The processes that have an id in their arguments, and their descendants. Processes in cgroups of the pod are not
    /// included, but their proportional set size is also returned.
    fn processes_of(&self, ids: &[&str]) -> io::Result<(Vec<ProcessUsage>, u64)> {
        let all = all_processes_with_root(&self.proc).map_err(io_error)?;
        let mut candidates = Vec::new();
        for process in all {
            let candidate = process.and_then(|process| self.candidate(process, ids));
            candidates.extend(if_running(candidate)?);
        }
        let mut pss_in_cgroups = 0;
        for candidate in candidates.extract_if(.., |candidate| candidate.is_in_cgroup) {
            pss_in_cgroups += if_running(candidate.pss())?.unwrap_or_default();
        }
        let mut processes = Vec::new();
        for candidate in chosen(&candidates, ids) {
            processes.extend(if_running(candidate.usage())?);
        }
        Ok((processes, pss_in_cgroups))
    }

    fn candidate(&self, process: Process, ids: &[&str]) -> Result<CandidateProcess, ProcError> {
        let cgroups = process.cgroups()?.0;
        let mut counted = cgroups.iter().filter(|cgroup| match self.hierarchy {
            Hierarchy::V1 { .. } => cgroup.controllers.iter().any(|it| it == MEMORY),
            Hierarchy::V2(_) => cgroup.hierarchy == 0,
        });
        Ok(CandidateProcess {
            stat: process.stat()?,
            arguments: process.cmdline()?,
            is_in_cgroup: counted.any(|cgroup| has_id(&cgroup.pathname, ids)),
            process,
        })
    }
}

impl Hierarchy {
    /// Prefers cgroup v1. A machine with both versions has its controllers in cgroup v1, and an empty mount of cgroup
    /// v2.
    fn of(root: &Path, mounts: &[MountInfo]) -> Option<Hierarchy> {
        let [memory, cpu] = [MEMORY, CPU].map(|name| {
            mounts
                .iter()
                .find(|mount| mount.fs_type == V1 && mount.super_options.contains_key(name))
                .map(|mount| place(root, mount))
        });
        if let (Some(memory), Some(cpu)) = (memory, cpu) {
            return Some(Hierarchy::V1 { memory, cpu });
        }
        let unified = mounts.iter().find(|mount| mount.fs_type == V2);
        unified.map(|mount| Hierarchy::V2(place(root, mount)))
    }

    /// The cgroups of a pod: first the cgroups in the pod's cgroup parent, then all others.
    fn cgroups_of(&self, ids: &[&str], parent: Option<&str>) -> io::Result<[Cgroups; 2]> {
        let (memory, cpu) = match self {
            Hierarchy::V1 { memory, cpu } => (memory, cpu),
            Hierarchy::V2(unified) => (unified, unified),
        };
        let (memory, other_memory) = divided(memory, ids, parent)?;
        let (cpu, other_cpu) = divided(cpu, ids, parent)?;
        Ok([(memory, cpu), (other_memory, other_cpu)].map(|(memory, cpu)| Cgroups { memory, cpu }))
    }

    /// The usage that the kernel counts in these cgroups.
    fn usage(&self, cgroups: &Cgroups) -> io::Result<Usage> {
        let [usage, inactive] = match self {
            Hierarchy::V1 { .. } => ["memory.usage_in_bytes", "total_inactive_file"],
            Hierarchy::V2(_) => ["memory.current", "inactive_file"],
        };
        Ok(Usage {
            memory_bytes: sum(&cgroups.memory, |cgroup| {
                working_set(cgroup, usage, inactive)
            })?,
            cpu: Duration::from_nanos(sum(&cgroups.cpu, |cgroup| match self {
                Hierarchy::V1 { .. } => number(&cgroup.join("cpuacct.usage")),
                Hierarchy::V2(_) => Ok(1000 * field(&cgroup.join("cpu.stat"), "usage_usec")?),
            })?),
        })
    }
}

impl Cgroups {
    fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty()
    }
}

impl CandidateProcess {
    /// The proportional set size, in bytes.
    fn pss(&self) -> Result<u64, ProcError> {
        let maps = self.process.smaps_rollup()?.memory_map_rollup.0;
        Ok(maps
            .iter()
            .filter_map(|map| map.extension.map.get(PSS))
            .sum())
    }

    fn usage(&self) -> Result<ProcessUsage, ProcError> {
        let own = self.stat.utime + self.stat.stime;
        // A shim starts programs, such as runc, that end soon.
        let ended = self.stat.cutime + self.stat.cstime;
        let ticks = own + u64::try_from(ended).unwrap_or_default();
        let seconds = ticks as f64 / procfs::ticks_per_second() as f64;
        Ok(ProcessUsage {
            id: self.stat.pid,
            name: self.name(),
            usage: Usage {
                memory_bytes: self.pss()?,
                cpu: Duration::from_secs_f64(seconds),
            },
        })
    }

    /// The name of the program. The kernel's name for a process has at most 15 characters.
    fn name(&self) -> String {
        self.arguments
            .first()
            .and_then(|program| Path::new(program).file_name())
            .map(OsStr::to_string_lossy)
            .map_or_else(|| self.stat.comm.clone(), String::from)
    }
}

/// The candidates that have an id in their arguments, and their descendants.
fn chosen<'c>(candidates: &'c [CandidateProcess], ids: &[&str]) -> Vec<&'c CandidateProcess> {
    let mut chosen = BTreeSet::new();
    loop {
        let before = chosen.len();
        for candidate in candidates {
            let mut arguments = candidate.arguments.iter();
            if chosen.contains(&candidate.stat.ppid) || arguments.any(|it| has_id(it, ids)) {
                chosen.insert(candidate.stat.pid);
            }
        }
        if chosen.len() == before {
            break;
        }
    }
    candidates
        .iter()
        .filter(|candidate| chosen.contains(&candidate.stat.pid))
        .collect()
}

/// The topmost cgroups of a pod below `directory`: first the cgroups in the pod's cgroup parent, then all others.
fn divided(
    directory: &Path,
    ids: &[&str],
    parent: Option<&str>,
) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let parent = parent.map(|parent| below(directory, parent));
    Ok(topmost(directory, ids)?
        .into_iter()
        .partition(|cgroup| parent.is_none() || cgroup.parent() == parent.as_deref()))
}

/// The cgroups below `directory` whose names have an id. Cgroups below such a cgroup are not included, because the
/// kernel counts a cgroup together with the cgroups below it.
fn topmost(directory: &Path, ids: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            // The cgroup was removed after its parent was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| at(&directory, &error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| at(&directory, &error))?;
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if has_id(&entry.file_name().to_string_lossy(), ids) {
                found.push(entry.path())
            } else {
                directories.push(entry.path())
            }
        }
    }
    found.sort();
    Ok(found)
}

fn has_id(text: &str, ids: &[&str]) -> bool {
    ids.iter().any(|id| text.contains(id))
}

/// The path of a mount below the directory `root`.
fn place(root: &Path, mount: &MountInfo) -> PathBuf {
    below(root, &mount.mount_point.to_string_lossy())
}

/// The working set as the kubelet computes it: all memory except pages of files that were not used lately.
fn working_set(cgroup: &Path, usage: &str, inactive: &str) -> io::Result<u64> {
    let usage = number(&cgroup.join(usage))?;
    let inactive = field(&cgroup.join("memory.stat"), inactive)?;
    Ok(usage.saturating_sub(inactive))
}

fn sum(cgroups: &[PathBuf], read: impl Fn(&Path) -> io::Result<u64>) -> io::Result<u64> {
    cgroups.iter().map(|cgroup| read(cgroup)).sum()
}

/// The number that is the content of a file.
fn number(path: &Path) -> io::Result<u64> {
    parsed(path, read(path)?.trim())
}

/// The number after `name` in a file with a name and a number in each line.
fn field(path: &Path, name: &str) -> io::Result<u64> {
    let text = read(path)?;
    let value = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value);
    parsed(path, value)
}

fn parsed(path: &Path, text: &str) -> io::Result<u64> {
    text.parse().map_err(|error| {
        let error = io::Error::new(ErrorKind::InvalidData, format!("{text:?}: {error}"));
        at(path, &error)
    })
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// `None` if the process has ended.
fn if_running<T>(read: Result<T, ProcError>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ProcError::NotFound(_)) => Ok(None),
        Err(ProcError::Io(error, _)) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {
            Ok(None)
        }
        Err(error) => Err(io_error(error)),
    }
}

fn io_error(error: ProcError) -> io::Error {
    let kind = match &error {
        ProcError::PermissionDenied(_) => ErrorKind::PermissionDenied,
        ProcError::NotFound(_) => ErrorKind::NotFound,
        _ => ErrorKind::Other,
    };
    let advice = match kind {
        ErrorKind::PermissionDenied => "; run criswitch as root",
        _ => "",
    };
    io::Error::new(kind, format!("{error}{advice}"))
}
