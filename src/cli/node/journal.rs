//! The journal of a machine's changes: the files to change, their previous and their new content, and whether all
//! changes are made.
//!
//! A record is one line of JSON. It is on the disk before the changes that it announces, so that changes that end at
//! any moment can be undone by a later process, without a network.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::{Context, bail};
use criswitch::platform::{Attributes, create_new, files, process};
use serde::{Deserialize, Serialize};

use super::root::Root;

/// The directory of the journal and of the contents.
const DIRECTORY: &str = "/var/lib/criswitch/node";
const JOURNAL: &str = "journal";
pub(super) const FILE: &str = "/var/lib/criswitch/node/journal";
const PRIVATE: u32 = 0o600;

/// The number of moments after which the process ends without any further work, for tests of interruptions.
static CUT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Ends this process at the moment of this number, as a crash would.
pub(super) fn end_at(moment: usize) {
    CUT.store(moment, Ordering::Relaxed);
}

/// A moment between two changes on the disk.
fn moment() {
    if CUT.fetch_sub(1, Ordering::Relaxed) == 0 {
        process::kill();
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Record {
    /// These changes begin after this record.
    Begin(Generation),
    /// All changes of the last generation are made.
    Complete,
    /// The last generation is undone.
    Undone { at: String },
}

/// The changes of one `apply`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Generation {
    pub(super) at: String,
    pub(super) version: String,
    pub(super) changes: Vec<FileChange>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileChange {
    pub(super) path: PathBuf,
    pub(super) before: State,
    pub(super) after: State,
    /// The directories that do not exist before the change, the outermost first.
    new_directories: Vec<PathBuf>,
}

/// The state of a path.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    Absent,
    Link(PathBuf),
    File {
        /// The name of the file with the content in the directory of the journal.
        content: String,
        attributes: Attributes,
    },
}

/// New content of a path.
pub(super) enum New<'a> {
    Link(&'a Path),
    /// The bytes, and the mode of a file that does not exist yet.
    File(&'a [u8], u32),
}

/// The journal of a machine.
pub(super) struct Journal<'a> {
    root: &'a Root<'a>,
    directory: PathBuf,
    /// Locked, so that no other process changes the machine. `None` if the journal is only read.
    file: Option<File>,
    /// The generations that are not undone.
    pub(super) generations: Vec<Generation>,
    /// Whether the changes of the last generation may be incomplete.
    pub(super) is_open: bool,
    /// The time at which the last generation was undone.
    pub(super) undone: Option<String>,
}

impl<'a> Journal<'a> {
    /// Reads the journal, and changes nothing.
    pub(super) fn read(root: &'a Root<'a>) -> anyhow::Result<Journal<'a>> {
        let directory = root.at(Path::new(DIRECTORY));
        let text = match fs::read_to_string(directory.join(JOURNAL)) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {DIRECTORY}/{JOURNAL}"))?,
        };
        let mut journal = Journal {
            root,
            directory,
            file: None,
            generations: Vec::new(),
            is_open: false,
            undone: None,
        };
        // A line without an end was cut. Its changes have not begun.
        for line in text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
        {
            let record = serde_json::from_str(line);
            journal.add(record.with_context(|| format!("cannot read {DIRECTORY}/{JOURNAL}"))?);
        }
        Ok(journal)
    }

    /// Creates the journal if it is missing, and locks it.
    pub(super) fn open(root: &'a Root<'a>) -> anyhow::Result<Journal<'a>> {
        let directory = root.at(Path::new(DIRECTORY));
        let mut options = File::options();
        options.read(true).append(true).create(true);
        let path = directory.join(JOURNAL);
        let opened = make_directories(&missing(&directory))
            .and_then(|()| files::with_mode(&mut options, PRIVATE).open(&path));
        let mut file = opened.with_context(|| format!("cannot write {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!("another criswitch changes this machine now; try again when it has ended");
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        sync_directory(&path)?;
        Ok(Journal {
            file: Some(file),
            ..Journal::read(root)?
        })
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Begin(generation) => {
                self.generations.push(generation);
                self.is_open = true;
                self.undone = None;
            }
            Record::Complete => self.is_open = false,
            Record::Undone { at } => {
                self.generations.pop();
                self.is_open = false;
                self.undone = Some(at);
            }
        }
    }

    fn write(&mut self, record: Record) -> anyhow::Result<()> {
        let line = serde_json::to_string(&record)? + "\n";
        moment();
        let file = self.file.as_mut().context("the journal is only read")?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        moment();
        self.add(record);
        Ok(())
    }

    /// Makes these changes. A process that ends meanwhile leaves an open journal.
    pub(super) fn apply<'c>(
        &mut self,
        version: &str,
        new: impl IntoIterator<Item = (&'c Path, New<'c>)>,
    ) -> anyhow::Result<()> {
        let number = self.generations.len();
        let changes = new.into_iter().enumerate().map(|(index, (path, new))| {
            let name = format!("{number}-{index}");
            let planned = self.planned(path, &new, &name);
            planned.with_context(|| format!("cannot save {}", path.display()))
        });
        let changes = changes.collect::<anyhow::Result<Vec<_>>>()?;
        sync_directory(&self.directory.join(JOURNAL))?;
        self.write(Record::Begin(Generation {
            at: now(),
            version: version.to_owned(),
            changes: changes.clone(),
        }))?;
        for change in &changes {
            let real = self.root.at(&change.path);
            let new = change.new_directories.iter().map(|path| self.root.at(path));
            make_directories(&new.collect::<Vec<_>>())
                .and_then(|()| self.set(&real, &change.after))
                .with_context(|| format!("cannot change {}", change.path.display()))?;
        }
        self.write(Record::Complete)
    }

    /// The change of a path. Saves the old and the new content beside the journal.
    fn planned(&self, path: &Path, new: &New<'_>, name: &str) -> io::Result<FileChange> {
        let real = self.root.at(path);
        let before = match fs::symlink_metadata(&real) {
            Err(error) if error.kind() == ErrorKind::NotFound => State::Absent,
            Err(error) => return Err(error),
            Ok(about) if about.is_symlink() => State::Link(fs::read_link(&real)?),
            Ok(_) => State::File {
                content: self.save(&fs::read(&real)?, &format!("{name}.before"))?,
                attributes: Attributes::of(&real)?,
            },
        };
        let after = match (new, &before) {
            (New::Link(target), _) => State::Link((*target).to_owned()),
            (New::File(bytes, mode), before) => State::File {
                content: self.save(bytes, &format!("{name}.after"))?,
                attributes: match before {
                    State::File { attributes, .. } => attributes.now(),
                    _ => Attributes::new(*mode),
                },
            },
        };
        let parent = real.parent().map(missing).unwrap_or_default();
        let below = real.ancestors().count() - path.ancestors().count();
        let new_directories = parent.iter().map(|directory| {
            let parts = directory.components().skip(below + 1);
            Path::new("/").join(parts.collect::<PathBuf>())
        });
        Ok(FileChange {
            path: path.to_owned(),
            before,
            after,
            new_directories: new_directories.collect(),
        })
    }

    fn save(&self, bytes: &[u8], name: &str) -> io::Result<String> {
        moment();
        let path = self.directory.join(name);
        remove(&path)?;
        let mut file = create_new(&path, PRIVATE)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(name.to_owned())
    }

    /// Undoes the last generation. Returns the files that somebody else has changed so that they stay as they are; then
    /// the generation is not undone.
    pub(super) fn undo(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        let Some(generation) = self.generations.last().cloned() else {
            return Ok(Vec::new());
        };
        let mut left = Vec::new();
        for change in generation.changes.iter().rev() {
            let undone = self.undo_one(change);
            if !undone.with_context(|| format!("cannot undo {}", change.path.display()))? {
                left.push(change.path.clone());
            }
        }
        if left.is_empty() {
            self.write(Record::Undone { at: now() })?;
        }
        Ok(left)
    }

    /// Whether the file has its previous content again, or no longer the part that was changed.
    fn undo_one(&self, change: &FileChange) -> io::Result<bool> {
        let real = self.root.at(&change.path);
        remove(&hidden(&real))?;
        if self.is_at(&change.after, &real)? || fs::symlink_metadata(&real).is_err() {
            self.set(&real, &change.before)?;
        } else if !self.is_at(&change.before, &real)? && !self.undo_part(change, &real)? {
            return Ok(false);
        }
        for directory in change.new_directories.iter().rev() {
            moment();
            match fs::remove_dir(self.root.at(directory)) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Undoes the changed lines of a file that somebody else has changed too. Returns whether that was possible.
    fn undo_part(&self, change: &FileChange, real: &Path) -> io::Result<bool> {
        let text = |state: &State| match state {
            State::File { content, .. } => fs::read_to_string(self.directory.join(content)).ok(),
            _ => None,
        };
        let (Some(before), Some(after)) = (text(&change.before), text(&change.after)) else {
            return Ok(false);
        };
        let now = fs::read_to_string(real)?;
        let Some(merged) = without_change(&before, &after, &now) else {
            return Ok(false);
        };
        let attributes = Attributes::of(real)?;
        self.replace(real, |new| write(new, merged.as_bytes(), &attributes))?;
        Ok(true)
    }

    /// Whether a path has this state. The time of the last write does not count.
    pub(super) fn is_at(&self, state: &State, real: &Path) -> io::Result<bool> {
        let is_link = fs::symlink_metadata(real).map(|about| about.is_symlink());
        Ok(match (state, is_link) {
            (_, Err(error)) if error.kind() != ErrorKind::NotFound => return Err(error),
            (State::Absent, is_link) => is_link.is_err(),
            (State::Link(target), Ok(true)) => fs::read_link(real)? == *target,
            (
                State::File {
                    content,
                    attributes,
                },
                Ok(false),
            ) => {
                let saved = fs::read(self.directory.join(content))?;
                attributes.is_like(&Attributes::of(real)?) && fs::read(real)? == saved
            }
            _ => false,
        })
    }

    /// Gives a path this state, at once.
    fn set(&self, real: &Path, state: &State) -> io::Result<()> {
        match state {
            State::Absent => {
                moment();
                remove(real)?;
                sync_directory(real)
            }
            State::Link(target) => self.replace(real, |new| files::make_link(target, new)),
            State::File {
                content,
                attributes,
            } => {
                let bytes = fs::read(self.directory.join(content))?;
                self.replace(real, |new| write(new, &bytes, attributes))
            }
        }
    }

    /// Makes a hidden file beside a path, and renames it to the path.
    fn replace(&self, real: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let new = hidden(real);
        remove(&new)?;
        moment();
        make(&new)?;
        moment();
        fs::rename(&new, real)?;
        moment();
        sync_directory(real)
    }

    /// The files that are not as the journal says, of all generations.
    pub(super) fn drifted(&self) -> io::Result<Vec<PathBuf>> {
        let mut seen: Vec<&Path> = Vec::new();
        let mut drifted = Vec::new();
        let changes = self.generations.iter().rev().flat_map(|its| &its.changes);
        for change in changes {
            // A later generation has the last word on its files.
            if seen.contains(&&*change.path) {
                continue;
            }
            seen.push(&change.path);
            if !self.is_at(&change.after, &self.root.at(&change.path))? {
                drifted.push(change.path.clone());
            }
        }
        Ok(drifted)
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

fn write(path: &Path, bytes: &[u8], attributes: &Attributes) -> io::Result<()> {
    let mut file = create_new(path, PRIVATE)?;
    file.write_all(bytes)?;
    attributes.set(&file)?;
    file.sync_all()
}

/// The hidden file that becomes the file at `path`.
fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.criswitch-new"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The directory and those above it that do not exist, the outermost first.
fn missing(directory: &Path) -> Vec<PathBuf> {
    let missing = directory.ancestors().take_while(|path| !path.exists());
    let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

fn make_directories(directories: &[PathBuf]) -> io::Result<()> {
    for directory in directories.iter().filter(|path| !path.exists()) {
        moment();
        DirBuilder::new().create(directory)?;
        sync_directory(directory)?;
    }
    Ok(())
}

/// Writes the directory of a path to the disk, with the names in it.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    match File::open(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        directory => directory?.sync_all(),
    }
}

/// `now` with the lines of `before` in place of the lines that are different in `after`. `None` if `now` has neither of
/// these lines, or has them several times.
fn without_change(before: &str, after: &str, now: &str) -> Option<String> {
    let lines =
        |text: &str| -> Vec<String> { text.split_inclusive('\n').map(str::to_owned).collect() };
    let (old, new) = (lines(before), lines(after));
    let start = old
        .iter()
        .zip(&new)
        .take_while(|(old, new)| old == new)
        .count();
    let ends = old
        .iter()
        .skip(start)
        .rev()
        .zip(new.iter().skip(start).rev());
    let end = ends.take_while(|(old, new)| old == new).count();
    let part = |lines: &[String]| -> String {
        lines
            .iter()
            .skip(start)
            .take(lines.len() - start - end)
            .cloned()
            .collect()
    };
    let (old, new) = (part(&old), part(&new));
    match (now.matches(&*new).count(), now.matches(&*old).count()) {
        _ if new.is_empty() => None,
        (1, _) => Some(now.replace(&*new, &old)),
        // Undone before.
        (0, 1) => Some(now.to_owned()),
        (0, _) if old.is_empty() => Some(now.to_owned()),
        _ => None,
    }
}
