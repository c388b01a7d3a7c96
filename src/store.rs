//! The state on disk, for the next start: a backend's cached lists, one file each, and which backends there are.
//!
//! Reads and writes files, and blocks. It decides nothing.
//!
//! The files of backends are in the runtime directory, and belong to one boot. The register, in the state directory,
//! outlives the boot: it tells a restart from a reboot, and a backend whose file was lost from a new one. Both are
//! replaced as a whole, so a kill leaves the old file or the new one. A file that is damaged, old, of another machine or
//! of another user is set aside.

mod file;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use prost::Message;

use crate::file_work::FileWork;
use file::Fault;

const REGISTER: &str = "backends.register";
const SUFFIX: &str = "backend";

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// For what one boot needs: files of backends.
    pub runtime: PathBuf,
    /// For what outlives the boot: the register.
    pub state: PathBuf,
}

/// What tells this boot of this machine from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's random id of the boot.
    pub id: String,
    /// The id of the machine (machine-id(5)); empty where it has none.
    pub machine: String,
}

/// What is saved of one backend: what criswitch would serve for it if it were away.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Saved {
    /// The boot that this belongs to.
    #[prost(string, tag = "1")]
    pub boot: String,
    /// The run of criswitch that wrote it, counted over all starts. Each start writes every backend's file again, so a
    /// file of an earlier run is old.
    #[prost(uint64, tag = "2")]
    pub run: u64,
    /// Its socket.
    #[prost(string, tag = "3")]
    pub socket: String,
    /// Its name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// It is part of lists.
    #[prost(bool, tag = "5")]
    pub joined: bool,
    /// An encoded `ListPodSandboxResponse`; none if criswitch could serve none.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub pods: Option<Bytes>,
    /// An encoded `ListContainersResponse`.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub containers: Option<Bytes>,
    /// An encoded `ListImagesResponse`.
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub images: Option<Bytes>,
    /// The handlers that its pods were created with, by the pods' ids.
    #[prost(map = "string, string", tag = "9")]
    pub handlers: HashMap<String, String>,
}

/// All backends that criswitch has had since the boot.
#[derive(Clone, PartialEq, Eq, Message)]
struct Register {
    #[prost(string, tag = "1")]
    boot: String,
    #[prost(string, tag = "2")]
    machine: String,
    /// The run of criswitch that wrote it.
    #[prost(uint64, tag = "3")]
    run: u64,
    #[prost(string, repeated, tag = "4")]
    sockets: Vec<String>,
}

/// What is known of a backend at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its lists, and when it last answered.
    Saved(Box<Saved>, SystemTime),
    /// It has not answered since the machine was started, so none of its pods runs.
    Empty,
    /// criswitch did not have it when it ran last in this boot: no client has seen its pods.
    New,
    /// It may have pods that clients have seen.
    Unknown,
}

/// What is saved of backends, and when each last answered, by their sockets.
type SavedBackends = BTreeMap<String, (Saved, SystemTime)>;

/// What a start finds.
#[derive(Debug)]
pub struct Found {
    saved: SavedBackends,
    before: Before,
    /// What was set aside, and why; one sentence each.
    pub problems: Vec<String>,
}

/// When criswitch ran last.
#[derive(Debug)]
enum Before {
    /// Never on this machine, as far as is known.
    Never,
    EarlierBoot,
    /// In this boot, with these backends.
    ThisBoot(BTreeSet<String>),
}

/// The files.
#[derive(Debug)]
pub struct Store {
    directories: Directories,
    boot: Boot,
    run: u64,
    registered: Mutex<BTreeSet<String>>,
    /// What keeps the work on the files in turn.
    pub(crate) work: FileWork,
}

impl Boot {
    /// This boot of this machine.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn current() -> io::Result<Boot> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        Ok(Boot {
            id: id.trim().to_owned(),
            machine: machine.trim().to_owned(),
        })
    }
}

impl Store {
    /// Opens the directories, which are made if they are missing, and reads what is there.
    ///
    /// # Errors
    /// A directory cannot be made or read.
    pub fn open(directories: Directories, boot: Boot) -> io::Result<(Store, Found)> {
        for directory in [&directories.runtime, &directories.state] {
            let mut make = DirBuilder::new();
            make.recursive(true).mode(0o700).create(directory)?;
        }
        let mut problems = Vec::new();
        let (register, before) = read_register(&directories.state, &boot, &mut problems);
        let store = Store {
            directories,
            boot,
            run: register.run + 1,
            registered: Mutex::default(),
            work: FileWork::default(),
        };
        let saved = store.read_backends(register.run, &mut problems);
        if saved.is_err() {
            // What cannot be read now is old when it can be read again.
            store.register(register.sockets.into_iter().collect()).ok();
        }
        let mut saved = saved?;
        if let Before::ThisBoot(registered) = &before {
            // Forgotten, or new and shown to nobody.
            saved.retain(|socket, _| registered.contains(socket));
        }
        let found = Found {
            saved,
            before,
            problems,
        };
        Ok((store, found))
    }

    fn read_backends(&self, run: u64, problems: &mut Vec<String>) -> io::Result<SavedBackends> {
        let mut saved = BTreeMap::new();
        for file in fs::read_dir(&self.directories.runtime)? {
            let path = file?.path();
            if !is_of_backend(&path) {
                continue;
            }
            match read_backend(&path, &self.boot, run) {
                Ok(Some(found)) => drop(saved.insert(found.0.socket.clone(), found)),
                Ok(None) => fs::remove_file(&path)?,
                Err(fault) => problems.push(set_aside(&path, &fault)),
            }
        }
        Ok(saved)
    }

    /// Registers these backends and no others, and removes what is saved of others.
    ///
    /// # Errors
    /// The files cannot be changed.
    pub fn replace_all(&self, sockets: BTreeSet<String>) -> io::Result<()> {
        let paths: BTreeSet<_> = sockets.iter().map(|socket| self.path(socket)).collect();
        for file in fs::read_dir(&self.directories.runtime)? {
            let path = file?.path();
            if is_of_backend(&path) && !paths.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        self.register(sockets)
    }

    fn register(&self, sockets: BTreeSet<String>) -> io::Result<()> {
        self.change_register(|registered| *registered = sockets)
    }

    /// One change after the other; if the register cannot be written, the one before stays.
    fn change_register(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> io::Result<()> {
        let mut registered = self.registered();
        let mut sockets = registered.clone();
        change(&mut sockets);
        let register = Register {
            boot: self.boot.id.clone(),
            machine: self.boot.machine.clone(),
            run: self.run,
            sockets: sockets.iter().cloned().collect(),
        };
        let path = self.directories.state.join(REGISTER);
        file::replace(&path, &register.encode_to_vec(), SystemTime::now())?;
        *registered = sockets;
        Ok(())
    }

    /// Saves a backend that last answered at `answered`, and registers it. What cannot be written is removed: then the
    /// backend is [`Known::Unknown`] at the next start, and the reason is returned.
    ///
    /// # Errors
    /// It can be neither written nor removed.
    pub fn save(&self, mut saved: Saved, answered: SystemTime) -> io::Result<Option<io::Error>> {
        saved.boot.clone_from(&self.boot.id);
        saved.run = self.run;
        let path = self.path(&saved.socket);
        let written = file::replace(&path, &saved.encode_to_vec(), answered);
        if written.is_err() {
            self.remove(&saved.socket)?;
        }
        self.add_to_register(saved.socket)?;
        Ok(written.err())
    }

    fn add_to_register(&self, socket: String) -> io::Result<()> {
        if self.registered().contains(&socket) {
            return Ok(());
        }
        self.change_register(|sockets| {
            sockets.insert(socket);
        })
    }

    /// Notes that a backend whose file is unchanged answered at `answered`. The time is lost if it cannot be written.
    pub fn touch(&self, socket: &str, answered: SystemTime) {
        let file = fs::File::options().write(true).open(self.path(socket));
        drop(file.and_then(|file| file.set_modified(answered)));
    }

    /// Removes what is saved of a backend.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, socket: &str) -> io::Result<()> {
        match fs::remove_file(self.path(socket)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a backend from the register too: if it is found later, it is new.
    ///
    /// # Errors
    /// The files cannot be changed.
    pub fn forget(&self, socket: &str) -> io::Result<()> {
        self.change_register(|sockets| {
            sockets.remove(socket);
        })?;
        self.remove(socket)
    }

    fn path(&self, socket: &str) -> PathBuf {
        let name = format!("{:016x}.{SUFFIX}", file::hash(socket.as_bytes()));
        self.directories.runtime.join(name)
    }

    fn registered(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    /// What is known of the backend of this socket; it is not asked for again.
    pub fn take(&mut self, socket: &str) -> Known {
        let was_registered = self.before.remove(socket);
        match (self.saved.remove(socket), &self.before) {
            (Some((saved, answered)), _) => Known::Saved(Box::new(saved), answered),
            (None, Before::Never) => Known::Unknown,
            (None, Before::EarlierBoot) => Known::Empty,
            (None, Before::ThisBoot(_)) if was_registered => Known::Unknown,
            (None, Before::ThisBoot(_)) => Known::New,
        }
    }

    /// The sockets of backends that were saved or registered, and not taken yet.
    pub fn sockets(&self) -> BTreeSet<String> {
        let mut sockets: BTreeSet<_> = self.saved.keys().cloned().collect();
        if let Before::ThisBoot(registered) = &self.before {
            sockets.extend(registered.iter().cloned());
        }
        sockets
    }
}

impl Before {
    /// Whether this backend was registered; it is not any more.
    fn remove(&mut self, socket: &str) -> bool {
        match self {
            Before::ThisBoot(registered) => registered.remove(socket),
            Before::Never | Before::EarlierBoot => false,
        }
    }
}

fn is_of_backend(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == SUFFIX)
}

fn read_register(directory: &Path, boot: &Boot, problems: &mut Vec<String>) -> (Register, Before) {
    let path = directory.join(REGISTER);
    let read = file::read(&path).and_then(|(content, _)| {
        let register = Register::decode(content).map_err(|_| Fault::Damaged)?;
        match register.machine == boot.machine {
            true => Ok(register),
            false => Err(Fault::OtherMachine),
        }
    });
    match read {
        Ok(register) if register.boot == boot.id => {
            let sockets = register.sockets.iter().cloned().collect();
            (register, Before::ThisBoot(sockets))
        }
        Ok(register) => (register, Before::EarlierBoot),
        Err(fault) => {
            if !fault.is_absence() {
                problems.push(set_aside(&path, &fault));
            }
            (Register::default(), Before::Never)
        }
    }
}

/// The backend in a file; none if the file is of an earlier boot.
fn read_backend(path: &Path, boot: &Boot, run: u64) -> Result<Option<(Saved, SystemTime)>, Fault> {
    let (content, answered) = file::read(path)?;
    let saved = Saved::decode(content).map_err(|_| Fault::Damaged)?;
    match saved.boot == boot.id {
        true if saved.run < run => Err(Fault::Old),
        true => Ok(Some((saved, answered))),
        false => Ok(None),
    }
}

/// Renames a file, so that a person can look at it and no start reads it again.
fn set_aside(path: &Path, fault: &Fault) -> String {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".bad");
    let (from, to) = (path.display(), Path::new(&aside).display());
    match fs::rename(path, &aside) {
        Ok(()) => format!("{from} is not used, because {fault}; it is {to} now"),
        Err(error) => format!("{from} is not used, because {fault}; it cannot be renamed: {error}"),
    }
}
