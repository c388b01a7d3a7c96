//! The differences between operating systems: addresses, sockets, users, files, signals and the service manager. Every
//! other module is the same on all systems.
//!
//! Each system has a directory with the same modules, and the same names in these modules.

pub mod file_work;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as os;
pub mod replace;

pub use os::{
    address, connect, files, kernel, listen, passed, paths, process, service, sockets, trust,
    usage, users,
};

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::iter::Sum;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Creates a file with this mode, less the bits of the umask.
///
/// # Errors
/// The path exists, even as a link, or its directory cannot be written.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    files::with_mode(options.write(true).create_new(true), mode).open(path)
}

/// Removes a file, if it exists.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if !is_absence(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an error says that a file does not exist.
pub fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Writes a new file. A file that cannot be written whole is removed.
///
/// # Errors
/// The file exists or cannot be written.
pub fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_new(path, mode)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .inspect_err(|_| {
            std::fs::remove_file(path).ok();
        })
}

/// Connects to the socket or named pipe at `path`. This blocks only if the socket's file system blocks.
///
/// # Errors
/// If nothing accepts the connection: the cause in words. [`io::ErrorKind::WouldBlock`]: the listener's queue is full.
pub fn dial(path: &Path) -> io::Result<connect::Dialed> {
    connect::dial(path).map_err(|error| match (error.kind(), address::socket_at(path)) {
        (full @ io::ErrorKind::WouldBlock, _) => {
            io::Error::new(full, "the socket's queue of waiting connections is full")
        }
        (_, Err(wrong)) if wrong.kind() == io::ErrorKind::Other => wrong,
        _ => error,
    })
}

/// The process of a client, as the kernel reports it. An unknown id is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user of the process.
    pub uid: Option<u32>,
    /// The id of the process.
    pub pid: Option<i32>,
}

/// The process that serves a backend's socket, as the kernel reports it. An unknown fact is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The user of the process.
    pub user: Option<users::UserId>,
    /// The id of the process.
    pub pid: Option<i32>,
    /// Whether the user of the process is an administrator or the user of criswitch.
    pub is_own: bool,
}

impl Server {
    /// The user of the process, if that user is neither an administrator, nor the user of criswitch, nor `expected`.
    pub fn unexpected_user(&self, expected: Option<users::UserId>) -> Option<users::UserId> {
        self.user
            .filter(|user| !self.is_own && expected != Some(*user))
    }
}

/// A socket path at which processes listen, although new connections do not reach all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSocket {
    /// The path, without the link `/var/run`.
    pub path: PathBuf,
    /// The processes in the order of their ids. At most one of them gets new connections, and none if the path does not
    /// exist.
    pub processes: Vec<SocketProcess>,
}

/// A process that serves a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketProcess {
    /// The id of the process.
    pub pid: i32,
    /// The name of its program, as the kernel shows it.
    pub program: String,
}

/// The size and free space of a file system. Other programs may use the file system too.
#[derive(Clone, Copy, Debug)]
pub struct FreeSpace {
    /// The size of the file system.
    pub bytes: u64,
    /// The bytes that a process without privileges may still write.
    pub available_bytes: u64,
    /// The number of inodes.
    pub inodes: u64,
    /// The number of unused inodes.
    pub free_inodes: u64,
}

/// The names of the extended attributes of security modules begin with this.
const SECURITY: &str = "security.";

/// The metadata that a copy of a file needs: its mode, owner, time of the last write, and extended attributes.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Attributes {
    mode: u32,
    owner: [u32; 2],
    /// Seconds and nanoseconds since 1970.
    written: (u64, u32),
    /// `None` for a new file, which keeps the extended attributes that the file system gives it.
    extended: Option<BTreeMap<String, Vec<u8>>>,
}

impl Attributes {
    /// The attributes of a new version of the file: only the time of the last write changes.
    #[must_use]
    pub fn now(&self) -> Attributes {
        let written = Attributes::new(0).written;
        Attributes {
            written,
            ..self.clone()
        }
    }

    /// These attributes, without the permission of users other than the owner to write, without set-user-id and
    /// set-group-id, and with the owner's permission to execute if `mode` has it. No other user gets a permission.
    #[must_use]
    pub fn with_mode_like(mut self, mode: u32) -> Attributes {
        let mut kept = self.mode & !0o6022;
        // An access list may let others write. Without the list, its mask is no longer the group's permission.
        let lists = self.extended.as_mut();
        if lists.is_some_and(|all| all.remove("system.posix_acl_access").is_some()) {
            kept &= !0o070;
        }
        self.mode = kept | mode & 0o100;
        self
    }

    /// Whether both attributes are equal, apart from the time of the last write and from labels of security modules
    /// such as SELinux, which change with a new policy.
    #[must_use]
    pub fn is_like(&self, other: &Attributes) -> bool {
        let own = |attributes: &Attributes| -> BTreeMap<_, _> {
            attributes
                .extended
                .clone()
                .unwrap_or_default()
                .into_iter()
                .filter(|(name, _)| !name.starts_with(SECURITY))
                .collect()
        };
        (self.mode, self.owner) == (other.mode, other.owner)
            && (self.extended.is_none() || own(self) == own(other))
    }
}

/// The operating system's figures for this process; `None` if a figure cannot be read.
#[derive(Default)]
pub struct ProcessStats {
    /// The processor time since the start.
    pub cpu_seconds: Option<f64>,
    /// The memory in use.
    pub resident_bytes: Option<f64>,
    /// The size of the address space.
    pub virtual_bytes: Option<f64>,
    /// The time of the start, since 1970.
    pub start_seconds: Option<f64>,
    /// The number of open file descriptors.
    pub open_fds: Option<f64>,
    /// The limit of open file descriptors.
    pub max_fds: Option<f64>,
}

/// A kernel, as this machine or a container sees it. A fact that the kernel does not show is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Such as `6.12.9`.
    pub release: Option<String>,
    /// The whole text about the kernel and its build.
    pub version: Option<String>,
    /// A random id, different in each boot of each kernel.
    pub boot_id: Option<String>,
}

/// The kernel that a container sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    /// The kernel's own facts.
    pub kernel: Kernel,
    /// Whether the processors report a hypervisor, as in a virtual machine.
    pub has_hypervisor: bool,
    /// The line of the kernel's log that names a userspace kernel.
    pub log: Option<String>,
    /// The memory that the kernel has and does not use, in bytes.
    pub free_memory_bytes: Option<u64>,
}

/// Memory and processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The memory that is in use now, in bytes.
    pub memory_bytes: u64,
    /// The processor time since the start.
    pub cpu: Duration,
}

/// The memory and processor time of everything that the runtime started for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// The directories of the pod's cgroups in the cgroup parent of the pod.
    pub cgroups: Vec<PathBuf>,
    /// The usage that the kernel counts in these cgroups.
    pub in_cgroups: Usage,
    /// The usage that the kernel counts in cgroups of the pod elsewhere. Kata has such a cgroup for the virtual
    /// machine.
    pub in_other_cgroups: Usage,
    /// The proportional set size of the processes in all of these cgroups, in bytes. It includes pages of files that
    /// the kernel charged to other cgroups.
    pub pss_in_cgroups_bytes: u64,
    /// The processes outside of all of these cgroups.
    pub processes: Vec<ProcessUsage>,
}

/// The memory and processor time of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// The id of the process.
    pub id: i32,
    /// The name of its program.
    pub name: String,
    /// The memory of the process, and its processor time including its ended children.
    pub usage: Usage,
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), |sum, usage| Usage {
            memory_bytes: sum.memory_bytes + usage.memory_bytes,
            cpu: sum.cpu + usage.cpu,
        })
    }
}

impl PodUsage {
    /// The usage outside of the pod's cgroup parent. No limit of the pod bounds it.
    pub fn outside(&self) -> Usage {
        self.processes
            .iter()
            .map(|process| process.usage)
            .chain([self.in_other_cgroups])
            .sum()
    }

    /// The least size, in bytes, of the file pages that the pod's processes use but that the kernel charged to other
    /// cgroups.
    pub fn charged_elsewhere_bytes(&self) -> u64 {
        let charged = self.in_cgroups.memory_bytes + self.in_other_cgroups.memory_bytes;
        self.pss_in_cgroups_bytes.saturating_sub(charged)
    }

    /// The usage of all of the pod.
    pub fn total(&self) -> Usage {
        [self.in_cgroups, self.outside()].into_iter().sum()
    }
}
