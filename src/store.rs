//! The state on disk for the next start: one file for the cached lists of each backend, and a register of all backends.
//!
//! The functions that read and write these files block. `file_work` runs them outside the thread that serves calls.
//!
//! The files of backends are in the runtime directory, and belong to one boot. The register is in the state directory,
//! and outlives the boot. With the register, a start can distinguish a restart from a reboot, and a new backend from a
//! backend whose file was lost.
//!
//! A file is replaced by a rename, so a kill leaves either the old file or the new one. A start renames each file that
//! it cannot use: a damaged or old file, or a file of a different machine or user.
//!
//! If a client has seen pods of a backend, the next start must not treat the backend as new or empty. So criswitch
//! writes in this order: first the backend's file, or it removes the file; then the register, if the register on disk
//! lacks the backend. Clients see the change only after that. A start writes in the same order, and clients see nothing
//! before its end. If a start is killed, it leaves:
//!
//! - before it has replaced the register: the old register, and files of the last run or of this run, with the same
//!   content;
//! - after that: the new register, and files of this run. Files of forgotten backends may remain.
//!
//! So a file is of a later run than the register only if a start was killed, if the register could not be written, or
//! if an old register was restored. criswitch cannot distinguish these cases, and treats a backend without a file as
//! unknown. In each case it uses all files, even if the register lacks their backends.

mod file;
mod lock;
mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use criswitch_config::Directories;
use criswitch_platform::file_work::FileWork;
use criswitch_platform::{files, process, remove};
use parking_lot::Mutex;
use prost::Message;

use file::{Fault, Lasts};
pub use lock::{InUse, Lock};
use saved::Register;
pub use saved::{Saved, SavedStatus};

const REGISTER: &str = "backends.register";
const SUFFIX: &str = "backend";
/// The mode of the directories.
const MODE: u32 = 0o700;

/// Identifies this boot of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's random id of the boot.
    pub id: String,
    /// The id of the machine (machine-id(5)); empty if there is none.
    pub machine: String,
}

/// The saved facts about a backend at a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastKnown {
    /// The saved lists, and when the backend last answered.
    Saved(Box<Saved>, SystemTime),
    /// The machine has rebooted since the last run of criswitch, so none of the backend's pods runs.
    Empty,
    /// The last run of criswitch in this boot did not have the backend, so no client has seen its pods.
    New,
    /// criswitch never ran on this machine. Only clients of the backend's own socket have seen its pods.
    First,
    /// The backend may have pods that clients have seen.
    Unknown,
}

/// By socket: the saved state of a backend, and when the backend last answered.
type SavedBackends = BTreeMap<String, (Saved, SystemTime)>;

/// The state that a start finds on disk.
#[derive(Debug)]
pub struct Found {
    saved: SavedBackends,
    before: LastRun,
    /// The problems with the files and directories, one sentence each.
    pub problems: Vec<String>,
}

#[derive(Debug)]
enum LastRun {
    /// criswitch never ran on this machine.
    Never,
    EarlierBoot,
    /// criswitch ran in this boot, with these backends.
    ThisBoot(BTreeSet<String>),
    /// The last run is unknown: the register is lost, or older than a backend's file. It had these backends, and
    /// perhaps more.
    Lost(BTreeSet<String>),
}

/// The state on disk.
#[derive(Debug)]
pub struct Store {
    directories: Directories,
    boot: Boot,
    run: u64,
    registered: Mutex<Registered>,
    /// Does all work on the files, one piece of work at a time.
    pub work: FileWork,
}

#[derive(Debug)]
struct Registered {
    /// The sockets of the backends that the register should have.
    wanted: BTreeSet<String>,
    on_disk: OnDisk,
    /// Whether the register on disk is of this run and has all wanted backends.
    is_written: bool,
}

#[derive(Debug)]
enum OnDisk {
    /// There is no register. The next start treats a backend without a file as unknown.
    Nothing,
    /// The register is of this boot and has these backends. The next start treats any other backend as new.
    ThisBoot(BTreeSet<String>),
    /// The register is of an earlier boot, or unusable. The next start may treat a backend without a file as new or
    /// empty.
    Other,
}

fn make_directories(directories: &Directories) -> io::Result<()> {
    files::make_directories(&directories.runtime, MODE)?;
    files::make_directories(&directories.state, MODE)
}

impl Boot {
    /// Reads the ids of this boot and this machine.
    ///
    /// # Errors
    /// The id of the boot cannot be read.
    pub fn current() -> io::Result<Boot> {
        let (id, machine) = process::boot()?;
        Ok(Boot { id, machine })
    }
}

impl Store {
    /// Creates missing directories and reads the files in them. Never fails: each fault becomes a sentence in
    /// [`Found::problems`].
    pub fn open(directories: Directories, boot: Boot) -> (Store, Found) {
        let mut problems = Vec::new();
        if let Err(error) = make_directories(&directories) {
            let (runtime, state) = (directories.runtime.display(), directories.state.display());
            problems.push(format!(
                "cannot create the directories {runtime} and {state} for the state: {error}"
            ));
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
        // If a backend's file is unusable, or the directory of these files cannot be read, criswitch may have run
        // before.
        let is_not_first = matches!(before, LastRun::Never) && problems.len() > known;
        if newest > register.run || is_not_first {
            before.be_lost();
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
                // The file is of an earlier boot, so no start uses it.
                Ok(None) => drop(fs::remove_file(&path)),
                Err(fault) => problems.push(set_aside(&path, &fault)),
            }
        }
        saved
    }

    /// Returns the paths of the backends' files.
    fn files(&self, problems: &mut Vec<String>) -> Vec<PathBuf> {
        let directory = &self.directories.runtime;
        let mut files = fs::read_dir(directory)
            .and_then(|files| {
                files
                    .map(|file| Ok(file?.path()))
                    .collect::<io::Result<Vec<_>>>()
            })
            .unwrap_or_else(|error| {
                problems.push(format!("{} cannot be read: {error}", directory.display()));
                Vec::new()
            });
        files.retain(|path| is_of_backend(path));
        files
    }

    /// Saves and registers the backends of a start, and removes the files of all other backends. Ignores errors: the
    /// next [`save`] of a backend tries again.
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

    /// Writes a register of exactly the wanted backends. On an error the register on disk is unchanged.
    fn write_register(&self, registered: &mut Registered) -> io::Result<()> {
        registered.is_written = false;
        let register = Register {
            boot: self.boot.id.clone(),
            machine: self.boot.machine.clone(),
            run: self.run,
            sockets: registered.wanted.iter().cloned().collect(),
        };
        let (content, now) = (register.encode_to_vec(), SystemTime::now());
        // The register is synced to the disk: if a loss of power removed it, the start after the reboot would look like
        // the first one.
        self.replace(&self.register_path(), &content, now, Lasts::Always)?;
        registered.on_disk = OnDisk::ThisBoot(registered.wanted.clone());
        registered.is_written = true;
        Ok(())
    }

    /// Registers a backend. If the register cannot be written, returns the error, unless the register on disk is of
    /// this boot and already has the backend. If the register on disk would make the next start treat the backend as
    /// new or empty, renames that register first.
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

    /// Replaces a file. If its directory was removed, creates the directory again.
    fn replace(&self, path: &Path, content: &[u8], at: SystemTime, lasts: Lasts) -> io::Result<()> {
        let replace = || file::replace(path, content, at, lasts);
        replace().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => make_directories(&self.directories).and_then(|()| replace()),
            _ => Err(error),
        })
    }

    /// Saves a backend that last answered at `answered`, and registers it. If the backend's file cannot be written,
    /// removes the file: the next start then treats the backend as [`LastKnown::Unknown`]. If the file cannot be
    /// written, or the backend cannot be registered, returns the error in `Ok`.
    ///
    /// # Errors
    /// The backend's file can be neither written nor removed, or the register can be neither written nor renamed.
    pub fn save(&self, saved: Saved, answered: SystemTime) -> io::Result<Option<io::Error>> {
        let socket = saved.socket.clone();
        Ok(self
            .write_or_remove(saved, answered)?
            .or(self.register(socket)?))
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
            if self.has_all_but_statuses(&saved) {
                return Ok(None);
            }
            self.remove(&saved.socket)?;
        }
        Ok(written.err())
    }

    /// Whether the file of a backend has all of `saved` but the kept statuses, and no other statuses. Such a file
    /// stays if it cannot be replaced, because only lists must be complete.
    fn has_all_but_statuses(&self, saved: &Saved) -> bool {
        let on_disk = read_backend(&self.path(&saved.socket), &self.boot, self.run);
        let rest = Saved {
            pod_statuses: Vec::new(),
            container_statuses: Vec::new(),
            ..saved.clone()
        };
        matches!(on_disk, Ok(Some((found, _))) if found == rest)
    }

    /// Sets the modification time of a backend's file to `answered`, the time of the backend's last answer. Ignores
    /// errors, because only this time is lost.
    pub fn touch(&self, socket: &str, answered: SystemTime) {
        let file = fs::File::options().write(true).open(self.path(socket));
        drop(file.and_then(|file| file.set_modified(answered)));
    }

    /// Removes a backend's file, if it exists.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, socket: &str) -> io::Result<()> {
        remove(&self.path(socket))
    }

    /// Removes a backend from the register, and removes its file. If the backend is configured again later, it is new.
    /// If the register cannot be written, returns the error in `Ok`: the next start then treats the backend as
    /// [`LastKnown::Unknown`].
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
    /// Returns the state that a start would find in `directories` now. Returns `None` if criswitch never ran on this
    /// machine, or ran as another user. Changes no file, so it is safe while a daemon uses the directories.
    pub fn look(directories: &Directories, boot: &Boot) -> Option<Found> {
        if !files::is_own(&fs::metadata(&directories.state).ok()?) {
            return None;
        }
        let paths: Vec<_> = fs::read_dir(&directories.runtime)
            .into_iter()
            .flatten()
            .flatten()
            .map(|file| file.path())
            .filter(|path| is_of_backend(path))
            .collect();
        let path = directories.state.join(REGISTER);
        let (register, mut before) = match register_at(&path, boot) {
            Ok(register) => {
                let before = register.last_run(boot);
                (register, before)
            }
            Err(Fault::OtherMachine) => return None,
            Err(fault) if fault.is_absence() && paths.is_empty() && !aside(&path).exists() => {
                return None;
            }
            Err(_) => (Register::default(), LastRun::Lost(renamed(&path, boot))),
        };
        let saved = paths
            .iter()
            .filter_map(|path| read_backend(path, boot, register.run).ok()?)
            .map(|found| (found.0.socket.clone(), found))
            .collect();
        if newest_run(&register, &saved) > register.run {
            before.be_lost();
        }
        Some(Found {
            saved,
            before,
            problems: Vec::new(),
        })
    }

    /// Removes and returns the state of the backend with this socket. Call this function once for each backend.
    pub fn take(&mut self, socket: &str) -> LastKnown {
        let was_registered = self.before.remove(socket);
        match (self.saved.remove(socket), &self.before) {
            (Some((saved, answered)), _) => LastKnown::Saved(Box::new(saved), answered),
            (None, LastRun::Never) => LastKnown::First,
            (None, LastRun::Lost(_)) => LastKnown::Unknown,
            (None, LastRun::EarlierBoot) => LastKnown::Empty,
            (None, LastRun::ThisBoot(_)) if was_registered => LastKnown::Unknown,
            (None, LastRun::ThisBoot(_)) => LastKnown::New,
        }
    }

    /// A fact about the whole node, from the file of the backend that answered last, because each file has such facts.
    pub fn of_node<T>(&self, of: impl Fn(&Saved) -> Option<T>) -> Option<T> {
        self.saved
            .values()
            .filter_map(|(saved, answered)| Some((of(saved)?, answered)))
            .max_by_key(|(_, answered)| *answered)
            .map(|(fact, _)| fact)
    }

    /// The sockets of saved or registered backends whose state [`Found::take`] has not returned yet.
    pub fn sockets(&self) -> BTreeSet<String> {
        let mut sockets: BTreeSet<_> = self.saved.keys().cloned().collect();
        if let LastRun::ThisBoot(registered) | LastRun::Lost(registered) = &self.before {
            sockets.extend(registered.iter().cloned());
        }
        sockets
    }
}

impl Register {
    fn last_run(&self, boot: &Boot) -> LastRun {
        if self.boot == boot.id {
            LastRun::ThisBoot(self.sockets.iter().cloned().collect())
        } else {
            LastRun::EarlierBoot
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
    /// Removes a backend from the registered backends. Returns whether it was registered.
    fn remove(&mut self, socket: &str) -> bool {
        match self {
            LastRun::ThisBoot(registered) | LastRun::Lost(registered) => registered.remove(socket),
            LastRun::Never | LastRun::EarlierBoot => false,
        }
    }

    /// Records that the register is lost or older than a backend's file. A backend that only such an older register has
    /// may be forgotten, so it does not count.
    fn be_lost(&mut self) {
        if !matches!(self, LastRun::Lost(_)) {
            *self = LastRun::Lost(BTreeSet::new());
        }
    }
}

fn is_of_backend(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == SUFFIX)
}

fn register_at(path: &Path, boot: &Boot) -> Result<Register, Fault> {
    let (content, _) = file::read(path)?;
    let register = Register::decode(content).map_err(|_| Fault::Damaged)?;
    if register.machine == boot.machine {
        Ok(register)
    } else {
        Err(Fault::OtherMachine)
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
    // An unusable register was renamed at an earlier start, so criswitch ran before.
    let is_first = match &fault {
        Fault::OtherMachine => true,
        fault => fault.is_absence() && !aside(&path).exists(),
    };
    if !fault.is_absence() {
        problems.push(set_aside(&path, &fault));
    }
    let on_disk = if path.exists() {
        OnDisk::Other
    } else {
        OnDisk::Nothing
    };
    let before = if is_first {
        LastRun::Never
    } else {
        LastRun::Lost(renamed(&path, boot))
    };
    (Register::default(), before, on_disk)
}

/// Returns the backends in the register that was renamed in this boot because it could not be written.
fn renamed(path: &Path, boot: &Boot) -> BTreeSet<String> {
    let register = register_at(&aside(path), boot).ok();
    let of_this_boot = register.filter(|register| register.boot == boot.id);
    of_this_boot
        .into_iter()
        .flat_map(|register| register.sockets)
        .collect()
}

/// Returns the number of the last run that wrote the register or a backend's file.
fn newest_run(register: &Register, saved: &SavedBackends) -> u64 {
    saved
        .values()
        .map(|(saved, _)| saved.run)
        .fold(register.run, u64::max)
}

fn older_register(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path} is older than the state files of the backends (`runtime_dir`): an earlier run of criswitch wrote it. Lists wait for each backend without a state file, and fail if that backend does not answer"
    )
}

/// Reads the state of a backend from its file. Returns `None` if the file is of an earlier boot.
fn read_backend(path: &Path, boot: &Boot, run: u64) -> Result<Option<(Saved, SystemTime)>, Fault> {
    let (content, answered) = file::read(path)?;
    let saved = Saved::decode(content).map_err(|_| Fault::Damaged)?;
    if saved.boot != boot.id {
        return Ok(None);
    }
    if saved.run < run {
        return Err(Fault::Old);
    }
    Ok(Some((saved, answered)))
}

/// Renames a file, so that no start reads it, but an administrator still can. Returns the problem as a sentence.
fn set_aside(path: &Path, fault: &Fault) -> String {
    let aside = aside(path);
    let (from, to) = (path.display(), aside.display());
    match fs::rename(path, &aside) {
        Ok(()) => format!("{from} is not used, because {fault}; criswitch has renamed it to {to}"),
        Err(error) => format!("{from} is not used, because {fault}; it cannot be renamed: {error}"),
    }
}

/// Returns the path that [`set_aside`] renames a file to.
fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".bad");
    aside.into()
}
