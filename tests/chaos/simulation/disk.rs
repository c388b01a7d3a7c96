//! The state on disk that one instance of criswitch leaves to the next, intact or damaged.
//!
//! Each instance has a separate directory. A restart copies the current files to the next directory. A save that the
//! killed instance had begun may still run, but the next instance does not see it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use criswitch::store::{Boot, Found, Saved, Store};
use criswitch_config::Directories;
use criswitch_config::address::Address;
use criswitch_cri::codec::protobuf;
use criswitch_platform::replace::hidden;
use fastrand::Rng;
use prost::Message;
use prost::encoding::decode_varint;
use tokio::time::Instant;

use super::files::RUNTIMES;
use super::tables::number;

/// The length of the content's hash in bytes. The hash comes after the first line of a file.
const HASH: usize = 8;
const REGISTER: &str = "backends.register";
/// The number of the field that says which run of criswitch wrote the register.
const REGISTER_RUN: u32 = 3;
/// The names of the directories within an instance's directory.
const RUNTIME: &str = "runtime";
const STATE: &str = "state";
/// The directory with a copy of the files that an instance wrote at its start.
const FIRST: &str = "first";

/// The directory with a copy of the files as they were before a start that is killed.
const FOUND: &str = "found";
/// Once a backend's file is writable again, criswitch has saved the backend within this time.
const SAVED_AGAIN: Duration = Duration::from_secs(2);
/// The duration of a full disk: longer than any schedule.
const FULL: Duration = Duration::from_secs(1 << 30);

/// How a file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    Empty,
    /// The file is cut to this share, in 256ths.
    Cut(u8),
    /// The bytes after this share of the file, in 256ths, are zero.
    Torn(u8),
    /// One bit is flipped.
    Flip(u16),
    Nonsense,
    /// The file cannot be read.
    Unreadable,
    Lost,
    /// The file is an old copy: the file that the instance before the last one left at its end.
    Earlier,
}

impl Spoil {
    pub fn any(rng: &mut Rng) -> Spoil {
        match rng.u32(..11) {
            0 => Spoil::Empty,
            1 => Spoil::Cut(rng.u8(..)),
            2 => Spoil::Torn(rng.u8(..)),
            3..6 => Spoil::Flip(rng.u16(..)),
            6 => Spoil::Nonsense,
            7 => Spoil::Lost,
            8 => Spoil::Unreadable,
            _ => Spoil::Earlier,
        }
    }
}

/// The files of all instances.
pub struct Disk {
    root: PathBuf,
    life: u32,
    boots: u32,
    machine: u32,
    /// The time until which a backend's file may be out of date because a write failed.
    unsaved: [Option<Instant>; RUNTIMES],
}

impl Disk {
    pub fn new(root: &Path) -> Disk {
        Disk {
            root: root.to_owned(),
            life: 0,
            boots: 0,
            machine: 0,
            unsaved: [None; RUNTIMES],
        }
    }

    /// Opens the state of the next instance, and returns what it finds there.
    pub fn open(&self) -> (Store, Found) {
        let boot = Boot {
            id: format!("boot-{}", self.boots),
            machine: format!("machine-{}", self.machine),
        };
        let directories = Directories {
            runtime: self.of(self.life, RUNTIME),
            state: self.of(self.life, STATE),
        };
        Store::open(directories, boot)
    }

    /// Keeps a copy of the files that the instance wrote at its start.
    pub fn keep_first(&self) {
        copy(&self.of(self.life, RUNTIME), &self.of(self.life, FIRST));
    }

    /// Makes the file of a backend unwritable, or writable again.
    pub fn fill(&mut self, backend: usize, is_full: bool) {
        // criswitch writes a new file under this name, then renames it. A directory of this name makes the write fail.
        let new = hidden(&self.path_of(backend)).unwrap();
        if is_full {
            fs::create_dir(new).ok();
            self.unsaved[backend] = Some(Instant::now() + FULL);
        } else if self.unsaved[backend].is_some() {
            fs::remove_dir(new).ok();
            self.unsaved[backend] = Some(Instant::now() + SAVED_AGAIN);
        }
    }

    pub fn make_room(&mut self) {
        (0..RUNTIMES).for_each(|backend| self.fill(backend, false));
    }

    /// Returns the backends whose files the last instance could not write, and removes these files.
    pub fn lose_unsaved(&mut self) -> [bool; RUNTIMES] {
        let unsaved = std::mem::take(&mut self.unsaved)
            .map(|until| until.is_some_and(|until| until > Instant::now()));
        let backends = (0..RUNTIMES).filter(|backend| unsaved[*backend]);
        backends.for_each(|backend| drop(fs::remove_file(self.path_of(backend))));
        unsaved
    }

    /// Runs `start`, then restores files as if `start` had been killed: the files of the backends in `written`, one bit
    /// each, are new; the register and the other backends' files are as before.
    pub fn kill_start(&self, written: u8, start: impl FnOnce()) {
        let (now, found) = (
            |directory| self.of(self.life, directory),
            |directory: &str| self.of(self.life, FOUND).join(directory),
        );
        for directory in [STATE, RUNTIME] {
            copy(&now(directory), &found(directory));
        }
        start();
        let files = (0..RUNTIMES).filter(|backend| written & (1 << backend) == 0);
        let files = files.map(|backend| (RUNTIME, self.name_of(backend)));
        for (directory, name) in files.chain([(STATE, REGISTER.to_owned())]) {
            let path = now(directory).join(&name);
            fs::remove_file(&path).ok();
            fs::copy(found(directory).join(&name), path).ok();
        }
    }

    fn path_of(&self, backend: usize) -> PathBuf {
        self.of(self.life, RUNTIME).join(self.name_of(backend))
    }

    fn name_of(&self, backend: usize) -> String {
        format!("{:016x}.backend", hash(format!("/{backend}").as_bytes()))
    }

    /// Copies the files of the ended instance for the next instance. With `first`, the files of backends are those that
    /// the ended instance wrote at its start.
    pub fn hand_on(&mut self, first: bool) {
        let (last, next) = (self.life, self.life + 1);
        let runtime = if first { FIRST } else { RUNTIME };
        copy(&self.of(last, STATE), &self.of(next, STATE));
        copy(&self.of(last, runtime), &self.of(next, RUNTIME));
        self.life = next;
    }

    pub fn reboot(&mut self) {
        self.boots += 1;
    }

    /// Moves the disk to another machine.
    pub fn move_to_another(&mut self) {
        self.boots += 1;
        self.machine += 1;
    }

    pub fn spoil_register(&self, spoil: Spoil) {
        let path = PathBuf::from(STATE).join(REGISTER);
        self.spoil(&path, spoil);
    }

    /// Damages the file of a backend, and returns the path of the file. `None` if the backend has no file.
    pub fn spoil_backend(&self, backend: usize, spoil: Spoil) -> Option<PathBuf> {
        let path = self.file_of(backend)?;
        let name = PathBuf::from(RUNTIME).join(path.file_name()?);
        self.spoil(&name, spoil);
        Some(path)
    }

    fn spoil(&self, name: &Path, spoil: Spoil) {
        let path = self.of(self.life, "").join(name);
        if matches!(spoil, Spoil::Lost | Spoil::Unreadable) {
            let removed = fs::remove_file(&path);
            if removed.is_ok() && spoil == Spoil::Unreadable {
                // A symbolic link to itself can be renamed, but neither opened nor copied, like a file on a bad block.
                symlink(&path, &path).unwrap();
            }
            return;
        }
        let Ok(mut content) = fs::read(&path) else {
            return;
        };
        let left = |share: u8| content.len() * usize::from(share) / 256;
        match spoil {
            Spoil::Empty => content.clear(),
            Spoil::Cut(share) => content.truncate(left(share)),
            Spoil::Torn(share) => {
                let left = left(share);
                content[left..].fill(0);
            }
            Spoil::Flip(at) => {
                let at = usize::from(at) % content.len();
                content[at] ^= 1;
            }
            Spoil::Nonsense => content = b"nonsense".repeat(50),
            Spoil::Earlier => {
                let before = self.life.checked_sub(2).map(|life| self.of(life, ""));
                let earlier = before.and_then(|before| fs::read(before.join(name)).ok());
                match earlier {
                    Some(earlier) => content = earlier,
                    None => content.clear(),
                }
            }
            Spoil::Lost | Spoil::Unreadable => {}
        }
        fs::write(path, content).unwrap();
    }

    /// Cuts off the file of each backend at a different place, and corrects the hash.
    pub fn tear_all(&self) {
        for backend in 0..RUNTIMES {
            let share = [32, 96, 160, 224][backend % 4];
            if let Some(path) = self.spoil_backend(backend, Spoil::Cut(share)) {
                change_saved(&path, |_| {});
            }
        }
    }

    /// Restores an old register, if there is one: the register that the instance before the last one left. Sets the run
    /// number of this register in the files of all backends, so that criswitch cannot notice the old register.
    pub fn put_back_register(&self) {
        let name = PathBuf::from(STATE).join(REGISTER);
        let earlier = self
            .life
            .checked_sub(2)
            .map(|life| self.of(life, "").join(&name));
        let Some((_, register)) = earlier.and_then(|earlier| read(&earlier)) else {
            return;
        };
        self.spoil(&name, Spoil::Earlier);
        let run = protobuf::varint(&register, &[REGISTER_RUN]).unwrap();
        self.change_all(|_, saved| saved.run = run);
    }

    /// Changes the saved state of every backend.
    pub fn change_all(&self, change: impl Fn(usize, &mut Saved)) {
        for path in files(&self.of(self.life, RUNTIME)) {
            change_saved(&path, |saved| {
                let backend = number(&Address::parse(&saved.socket).unwrap());
                change(backend, saved);
            });
        }
    }

    fn file_of(&self, backend: usize) -> Option<PathBuf> {
        let is_its = |path: &PathBuf| {
            let saved = read(path).and_then(|(_, content)| Saved::decode(content).ok());
            saved.is_some_and(|saved| saved.socket == format!("/{backend}"))
        };
        files(&self.of(self.life, RUNTIME)).into_iter().find(is_its)
    }

    fn of(&self, life: u32, directory: &str) -> PathBuf {
        self.root.join(life.to_string()).join(directory)
    }
}

/// Changes the readable part of a file and corrects the file's hash, even if the hash was wrong before.
pub fn change_saved(path: &Path, change: impl FnOnce(&mut Saved)) {
    let Some((line, content)) = read(path) else {
        return;
    };
    let Some(mut saved) = before_tear(&content) else {
        return;
    };
    change(&mut saved);
    let content = saved.encode_to_vec();
    let hash = hash(&content).to_le_bytes();
    fs::write(path, [&line[..], &hash, &content].concat()).unwrap();
}

fn hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// Decodes a content that may be cut off: its complete fields, and the complete items of the list that is cut off.
fn before_tear(content: &[u8]) -> Option<Saved> {
    let (whole, mut torn) = content.split_at(whole_fields(content));
    let mut left = BytesMut::from(whole);
    if torn.len() > 1 {
        let number = u32::from(torn.get_u8() >> 3);
        decode_varint(&mut torn).ok()?;
        protobuf::put_bytes(&mut left, number, &torn[..whole_fields(torn)]);
    }
    Saved::decode(left).ok()
}

/// The total length of the fields before the first unreadable field.
fn whole_fields(message: &[u8]) -> usize {
    let whole = protobuf::fields(message).map_while(Result::ok);
    whole.map(|field| field.raw.len()).sum()
}

/// Reads the first line and the content of a file. The hash between them is not checked.
fn read(path: &Path) -> Option<(Bytes, Bytes)> {
    let mut line = Bytes::from(fs::read(path).ok()?);
    let end = line.iter().position(|byte| *byte == b'\n')? + 1;
    let mut content = line.split_off(end);
    (content.len() >= HASH).then(|| (line, content.split_off(HASH)))
}

/// The files of backends in `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "backend"))
        .collect()
}

/// Copies the files of a directory. The copy may lack a file that is being replaced.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let name = file.unwrap().file_name();
        fs::copy(from.join(&name), to.join(&name)).ok();
    }
}
