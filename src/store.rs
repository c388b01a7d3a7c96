//! The state on disk for the next start: one file for each backend's cached lists, and a register of the backends.
//!
//! Reads and writes files, and blocks. Makes no decisions.
//!
//! The files of backends are in the runtime directory, and belong to one boot. The register, in the state directory,
//! outlives the boot: it distinguishes a restart from a reboot, and a backend whose file was lost from a new backend.
//! Files are replaced as a whole, so a kill leaves the old file or the new one. A damaged or old file, or a file of a
//! different machine or user, is set aside.
//!
//! If a client has seen pods of a backend, the next start must not treat it as new or empty. So criswitch first writes
//! the backend's file, or removes it; then it writes the register, if the one on disk lacks the backend; then clients
//! see the change. A start writes in the same order, and clients see nothing before its end. A kill leaves:
//!
//! - before the register is replaced: the old register, and files of the last run or this run, with equal content;
//! - after that: the new register, and files of this run. A file of a backend that was just forgotten may remain.
//!
//! So a file is of a later run than the register only if a start was killed or an old register was restored. criswitch
//! cannot distinguish the two, so a backend without a file is then unknown. Files are used in both cases, including the
//! file of a backend that the register lacks.

mod file;
pub mod file_work;
mod lock;
mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use parking_lot::Mutex;
use prost::Message;

use crate::store::file_work::FileWork;
use file::{Fault, Lasts};
pub use lock::{InUse, Lock};
use saved::Register;
pub use saved::Saved;

const REGISTER: &str = "backends.register";
const SUFFIX: &str = "backend";

/// The directories of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// The directory for state of one boot: the files of backends.
    pub runtime: PathBuf,
    /// The directory for state that outlives the boot: the register.
    pub state: PathBuf,
}

/// Identifies this boot of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's random id of the boot.
    pub id: String,
    /// The id of the machine (machine-id(5)); empty if there is none.
    pub machine: String,
}

/// The state of a backend at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastKnown {
    /// The saved lists, and when the backend last answered.
    Saved(Box<Saved>, SystemTime),
    /// The backend has not answered since the boot, so none of its pods runs.
    Empty,
    /// The last run of criswitch in this boot did not have the backend, so no client has seen its pods.
    New,
    /// criswitch never ran on this machine. Only clients of the backend's own socket have seen its pods.
    First,
    /// The backend may have pods that clients have seen.
    Unknown,
}

/// Saved backends, and when each last answered, by socket.
type SavedBackends = BTreeMap<String, (Saved, SystemTime)>;

/// The state that a start finds on disk.
#[derive(Debug)]
pub struct Found {
    saved: SavedBackends,
    before: LastRun,
    /// The files that were set aside or are old, and why; one sentence each.
    pub problems: Vec<String>,
}

#[derive(Debug)]
enum LastRun {
    /// Never on this machine.
    Never,
    EarlierBoot,
    /// criswitch ran in this boot, with these backends.
    ThisBoot(BTreeSet<String>),
    /// Unknown: the register is lost, or older than a backend's file.
    Lost,
}

/// The state on disk.
#[derive(Debug)]
pub struct Store {
    directories: Directories,
    boot: Boot,
    run: u64,
    registered: Mutex<Registered>,
    /// Serializes the work on the files.
    pub work: FileWork,
}

#[derive(Debug)]
struct Registered {
    /// All backends that criswitch has.
    wanted: BTreeSet<String>,
    on_disk: OnDisk,
    /// Whether the register on disk is of this run and has all wanted backends.
    is_written: bool,
}

#[derive(Debug)]
enum OnDisk {
    /// There is no usable register: a backend without a file is unknown at the next start.
    Nothing,
    /// The register is of this boot and has these backends; any other backend is new at the next start.
    ThisBoot(BTreeSet<String>),
    /// Another register is there: a backend without a file may be new or empty at the next start.
    Other,
}

impl Directories {
    fn make(&self) -> io::Result<()> {
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        make.create(&self.runtime)?;
        make.create(&self.state)
    }
}

impl Boot {
    /// Reads the ids of this boot and this machine.
    ///
    /// # Errors
    /// The kernel's boot id cannot be read.
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
    /// Creates missing directories and reads the files in them. Faults become [`Found::problems`]. While the state
    /// cannot be saved, clients do not see it.
    pub fn open(directories: Directories, boot: Boot) -> (Store, Found) {
        let mut problems = Vec::new();
        if let Err(error) = directories.make() {
            problems.push(format!("cannot create a directory for the state: {error}"));
        }
        let (register, mut before, on_disk) =
            read_register(&directories.state, &boot, &mut problems);
        let wanted = match &before {
            LastRun::ThisBoot(sockets) => sockets.clone(),
            _ => BTreeSet::new(),
        };
        let registered = Registered {
            wanted,
            on_disk,
            is_written: false,
        };
        let mut store = Store {
            directories,
            boot,
            run: register.run,
            registered: Mutex::new(registered),
            work: FileWork::default(),
        };
        let known = problems.len();
        let saved = store.read_backends(register.run, &mut problems);
        let newest = newest_run(&register, &saved);
        if newest > register.run && register.run > 0 {
            problems.push(older_register(&store.register_path()));
        }
        // A file that was set aside shows that criswitch ran before.
        let is_not_first = matches!(before, LastRun::Never) && problems.len() > known;
        if newest > register.run || is_not_first {
            before = LastRun::Lost;
        }
        store.run = newest + 1;
        let found = Found {
            saved,
            before,
            problems,
        };
        (store, found)
    }

    fn read_backends(&self, run: u64, problems: &mut Vec<String>) -> SavedBackends {
        let mut saved = BTreeMap::new();
        for path in self.files(problems) {
            match read_backend(&path, &self.boot, run) {
                Ok(Some(found)) => drop(saved.insert(found.0.socket.clone(), found)),
                // The file is of an earlier boot: no start uses it.
                Ok(None) => drop(fs::remove_file(&path)),
                Err(fault) => problems.push(set_aside(&path, &fault)),
            }
        }
        saved
    }

    /// The paths of the backends' files.
    fn files(&self, problems: &mut Vec<String>) -> Vec<PathBuf> {
        let directory = &self.directories.runtime;
        let files = fs::read_dir(directory).and_then(|files| {
            let paths = files.map(|file| Ok(file?.path()));
            paths.collect::<io::Result<Vec<_>>>()
        });
        let mut files = files.unwrap_or_else(|error| {
            problems.push(format!("{} cannot be read: {error}", directory.display()));
            Vec::new()
        });
        files.retain(|path| is_of_backend(path));
        files
    }

    /// Saves and registers the backends of a start, and removes all others. The next [`save`] of a backend retries what
    /// failed.
    ///
    /// [`save`]: Store::save
    pub fn begin(&self, backends: impl IntoIterator<Item = (Saved, SystemTime)>) {
        let mut sockets = BTreeSet::new();
        for (saved, answered) in backends {
            sockets.insert(saved.socket.clone());
            self.write_or_remove(saved, answered).ok();
        }
        let mut registered = self.registered.lock();
        registered.wanted.clone_from(&sockets);
        if self.write_register(&mut registered).is_ok() {
            let paths: BTreeSet<_> = sockets.iter().map(|socket| self.path(socket)).collect();
            let mut others = self.files(&mut Vec::new());
            others.retain(|path| !paths.contains(path));
            others.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// Registers the wanted backends, and no others. On an error the register on disk is unchanged.
    fn write_register(&self, registered: &mut Registered) -> io::Result<()> {
        registered.is_written = false;
        let register = Register {
            boot: self.boot.id.clone(),
            machine: self.boot.machine.clone(),
            run: self.run,
            sockets: registered.wanted.iter().cloned().collect(),
        };
        let (content, now) = (register.encode_to_vec(), SystemTime::now());
        // Without a sync, a loss of power could turn a reboot into a first start.
        self.replace(&self.register_path(), &content, now, Lasts::Always)?;
        registered.on_disk = OnDisk::ThisBoot(registered.wanted.clone());
        registered.is_written = true;
        Ok(())
    }

    /// Registers a backend. If writing fails and the register on disk would mislead the next start, sets it aside and
    /// returns the error.
    fn register(&self, socket: String) -> io::Result<Option<io::Error>> {
        let mut registered = self.registered.lock();
        let is_new = registered.wanted.insert(socket.clone());
        if registered.is_written && !is_new {
            return Ok(None);
        }
        let Err(error) = self.write_register(&mut registered) else {
            return Ok(None);
        };
        match &registered.on_disk {
            OnDisk::ThisBoot(sockets) if sockets.contains(&socket) => return Ok(None),
            OnDisk::Nothing => {}
            OnDisk::ThisBoot(_) | OnDisk::Other => {
                let path = self.register_path();
                fs::rename(&path, aside(&path))?;
                registered.on_disk = OnDisk::Nothing;
            }
        }
        Ok(Some(error))
    }

    /// Replaces a file. Creates its directory again if that was removed.
    fn replace(&self, path: &Path, content: &[u8], at: SystemTime, lasts: Lasts) -> io::Result<()> {
        let replace = || file::replace(path, content, at, lasts);
        replace().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => self.directories.make().and_then(|()| replace()),
            _ => Err(error),
        })
    }

    /// Saves a backend that last answered at `answered`, and registers it. If its file cannot be written, the file is
    /// removed and the error returned: the backend is then [`LastKnown::Unknown`] at the next start.
    ///
    /// # Errors
    /// The file can be neither written nor removed.
    pub fn save(&self, saved: Saved, answered: SystemTime) -> io::Result<Option<io::Error>> {
        let socket = saved.socket.clone();
        let lost = self.write_or_remove(saved, answered)?;
        Ok(lost.or(self.register(socket)?))
    }

    fn write_or_remove(
        &self,
        mut saved: Saved,
        answered: SystemTime,
    ) -> io::Result<Option<io::Error>> {
        saved.boot.clone_from(&self.boot.id);
        saved.run = self.run;
        let (path, content) = (self.path(&saved.socket), saved.encode_to_vec());
        let written = self.replace(&path, &content, answered, Lasts::ThisBoot);
        if written.is_err() {
            self.remove(&saved.socket)?;
        }
        Ok(written.err())
    }

    /// Notes that a backend with an unchanged file answered at `answered`. Ignores errors: only the time is lost.
    pub fn touch(&self, socket: &str, answered: SystemTime) {
        let file = fs::File::options().write(true).open(self.path(socket));
        drop(file.and_then(|file| file.set_modified(answered)));
    }

    /// Removes a backend's file.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, socket: &str) -> io::Result<()> {
        match fs::remove_file(self.path(socket)) {
            Err(error) if !is_absence(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a backend's file, and the backend from the register: if found later, it is new. If the register cannot
    /// be written, the backend is [`LastKnown::Unknown`] at the next start, and the error is returned.
    ///
    /// # Errors
    /// The backend's file cannot be removed.
    pub fn forget(&self, socket: &str) -> io::Result<Option<io::Error>> {
        let mut registered = self.registered.lock();
        registered.wanted.remove(socket);
        let lost = self.write_register(&mut registered).err();
        self.remove(socket)?;
        Ok(lost)
    }

    fn path(&self, socket: &str) -> PathBuf {
        let name = format!("{:016x}.{SUFFIX}", file::hash(socket.as_bytes()));
        self.directories.runtime.join(name)
    }

    fn register_path(&self) -> PathBuf {
        self.directories.state.join(REGISTER)
    }
}

impl Found {
    /// The state that a start would find in `directories` now; `None` if criswitch never ran, or ran as another user.
    /// Changes nothing, so a daemon may use the directories.
    pub fn look(directories: &Directories, boot: &Boot) -> Option<Found> {
        let own = rustix::process::geteuid().as_raw();
        if fs::metadata(&directories.state).ok()?.uid() != own {
            return None;
        }
        let files = fs::read_dir(&directories.runtime).into_iter().flatten();
        let paths = files.flatten().map(|file| file.path());
        let paths: Vec<_> = paths.filter(|path| is_of_backend(path)).collect();
        let path = directories.state.join(REGISTER);
        let (register, mut before) = match register_at(&path, boot) {
            Ok(register) => {
                let before = register.before(boot);
                (register, before)
            }
            Err(Fault::OtherMachine) => return None,
            Err(fault) if fault.is_absence() && paths.is_empty() && !aside(&path).exists() => {
                return None;
            }
            Err(_) => (Register::default(), LastRun::Lost),
        };
        let saved = paths
            .iter()
            .filter_map(|path| read_backend(path, boot, register.run).ok()?)
            .map(|found| (found.0.socket.clone(), found))
            .collect();
        if newest_run(&register, &saved) > register.run {
            before = LastRun::Lost;
        }
        Some(Found {
            saved,
            before,
            problems: Vec::new(),
        })
    }

    /// Takes the state of the backend with this socket. Call it once for each backend.
    pub fn take(&mut self, socket: &str) -> LastKnown {
        let was_registered = self.before.remove(socket);
        match (self.saved.remove(socket), &self.before) {
            (Some((saved, answered)), _) => LastKnown::Saved(Box::new(saved), answered),
            (None, LastRun::Never) => LastKnown::First,
            (None, LastRun::Lost) => LastKnown::Unknown,
            (None, LastRun::EarlierBoot) => LastKnown::Empty,
            (None, LastRun::ThisBoot(_)) if was_registered => LastKnown::Unknown,
            (None, LastRun::ThisBoot(_)) => LastKnown::New,
        }
    }

    /// The sockets of saved or registered backends that were not taken yet.
    pub fn sockets(&self) -> BTreeSet<String> {
        let mut sockets: BTreeSet<_> = self.saved.keys().cloned().collect();
        if let LastRun::ThisBoot(registered) = &self.before {
            sockets.extend(registered.iter().cloned());
        }
        sockets
    }
}

impl Register {
    fn before(&self, boot: &Boot) -> LastRun {
        match self.boot == boot.id {
            true => LastRun::ThisBoot(self.sockets.iter().cloned().collect()),
            false => LastRun::EarlierBoot,
        }
    }
}

impl LastKnown {
    /// The automatically registered handlers of the backend.
    pub(crate) fn auto_registered(&self) -> Vec<String> {
        match self {
            LastKnown::Saved(saved, _) => saved.auto_registered.clone(),
            LastKnown::Empty | LastKnown::New | LastKnown::First | LastKnown::Unknown => Vec::new(),
        }
    }

    /// Whether the backend may have pods or containers that are not in its saved lists.
    pub(crate) fn is_partial(&self) -> bool {
        match self {
            LastKnown::Saved(saved, _) => saved.is_partial(),
            LastKnown::Unknown | LastKnown::First => true,
            LastKnown::Empty | LastKnown::New => false,
        }
    }
}

impl LastRun {
    /// Whether the backend was registered. Removes it.
    fn remove(&mut self, socket: &str) -> bool {
        match self {
            LastRun::ThisBoot(registered) => registered.remove(socket),
            LastRun::Never | LastRun::EarlierBoot | LastRun::Lost => false,
        }
    }
}

fn is_of_backend(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == SUFFIX)
}

fn register_at(path: &Path, boot: &Boot) -> Result<Register, Fault> {
    let (content, _) = file::read(path)?;
    let register = Register::decode(content).map_err(|_| Fault::Damaged)?;
    match register.machine == boot.machine {
        true => Ok(register),
        false => Err(Fault::OtherMachine),
    }
}

fn read_register(
    directory: &Path,
    boot: &Boot,
    problems: &mut Vec<String>,
) -> (Register, LastRun, OnDisk) {
    let path = directory.join(REGISTER);
    let fault = match register_at(&path, boot) {
        Ok(register) if register.boot == boot.id => {
            let sockets: BTreeSet<_> = register.sockets.iter().cloned().collect();
            let on_disk = OnDisk::ThisBoot(sockets.clone());
            return (register, LastRun::ThisBoot(sockets), on_disk);
        }
        Ok(register) => return (register, LastRun::EarlierBoot, OnDisk::Other),
        Err(fault) => fault,
    };
    // A register that was set aside shows that criswitch ran before.
    let is_first = match &fault {
        Fault::OtherMachine => true,
        fault => fault.is_absence() && !aside(&path).exists(),
    };
    if !fault.is_absence() {
        problems.push(set_aside(&path, &fault));
    }
    let on_disk = match path.exists() {
        true => OnDisk::Other,
        false => OnDisk::Nothing,
    };
    let before = if is_first {
        LastRun::Never
    } else {
        LastRun::Lost
    };
    (Register::default(), before, on_disk)
}

/// The last run that wrote the register or one of the files.
fn newest_run(register: &Register, saved: &SavedBackends) -> u64 {
    let runs = saved.values().map(|(saved, _)| saved.run);
    runs.fold(register.run, u64::max)
}

fn older_register(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path} is older than the files of the backends: an earlier run of criswitch wrote it. A backend without a file counts as unknown"
    )
}

/// The backend in a file; `None` if the file is of an earlier boot.
fn read_backend(path: &Path, boot: &Boot, run: u64) -> Result<Option<(Saved, SystemTime)>, Fault> {
    let (content, answered) = file::read(path)?;
    let saved = Saved::decode(content).map_err(|_| Fault::Damaged)?;
    match saved.boot == boot.id {
        true if saved.run < run => Err(Fault::Old),
        true => Ok(Some((saved, answered))),
        false => Ok(None),
    }
}

/// Renames a file, so that no start reads it and an administrator can.
fn set_aside(path: &Path, fault: &Fault) -> String {
    let aside = aside(path);
    let (from, to) = (path.display(), aside.display());
    match fs::rename(path, &aside) {
        Ok(()) => format!("{from} is not used, because {fault}; criswitch has renamed it to {to}"),
        Err(error) => format!("{from} is not used, because {fault}; it cannot be renamed: {error}"),
    }
}

/// The path of a file that was set aside.
fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".bad");
    aside.into()
}

/// Whether the file does not exist.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}
