//! The changes of files that a machine gets, each with the state before and after it, and how they are made and undone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use criswitch::platform::{Attributes, create_new, files, process, remove};
use criswitch::store::replace::{hidden, replace_with};
use serde::{Deserialize, Serialize};

use super::root::Root;
use crate::cli::print;

pub(super) const PRIVATE: u32 = 0o600;

/// The number of moments after which the process ends without any further work, for tests of interruptions.
static CUT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Ends this process at the moment of this number, as a crash would.
pub(super) fn end_at(moment: usize) {
    CUT.store(moment, Ordering::Relaxed);
}

/// The boundary at which the process stops, for tests of interruptions.
static STOP: AtomicUsize = AtomicUsize::new(usize::MAX);
static BOUNDARIES: AtomicUsize = AtomicUsize::new(0);

/// Shows the boundaries between steps from now on, and stops this process at the one of this number until SIGCONT.
pub(super) fn stop_at(boundary: usize) {
    STOP.store(boundary, Ordering::Relaxed);
}

/// A boundary between two steps: the next one is this one.
pub(super) fn boundary(next: &str) {
    let stop = STOP.load(Ordering::Relaxed);
    if stop == usize::MAX {
        return;
    }
    let number = BOUNDARIES.fetch_add(1, Ordering::Relaxed);
    print(format!("boundary {number}: {next}\n")).ok();
    if number == stop {
        process::stop();
    }
}

/// A moment between two changes of the machine.
pub(super) fn moment() {
    if CUT.fetch_sub(1, Ordering::Relaxed) == 0 {
        process::kill();
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileChange {
    /// The step of the plan.
    pub(super) step: String,
    pub(super) path: PathBuf,
    pub(super) before: PathState,
    pub(super) after: PathState,
    /// The directories that do not exist before the change, the outermost first.
    new_directories: Vec<PathBuf>,
}

/// The state of a path.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum PathState {
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

/// The files of a machine, and the directory with their saved contents.
pub(super) struct Files<'a> {
    pub(super) root: &'a Root<'a>,
    pub(super) directory: PathBuf,
}

impl Files<'_> {
    /// The change of a path. Saves the old and the new content beside the journal.
    pub(super) fn planned(
        &self,
        step: &str,
        path: &Path,
        new: &New<'_>,
        name: &str,
    ) -> io::Result<FileChange> {
        let real = self.root.at(path);
        let before = match fs::symlink_metadata(&real) {
            Err(error) if error.kind() == ErrorKind::NotFound => PathState::Absent,
            Err(error) => return Err(error),
            Ok(about) if about.is_symlink() => PathState::Link(fs::read_link(&real)?),
            Ok(_) => PathState::File {
                content: self.save(&fs::read(&real)?, &format!("{name}.before"))?,
                attributes: Attributes::of(&real)?,
            },
        };
        let after = match (new, &before) {
            (New::Link(target), _) => PathState::Link((*target).to_owned()),
            (New::File(bytes, mode), before) => PathState::File {
                content: self.save(bytes, &format!("{name}.after"))?,
                attributes: match before {
                    PathState::File { attributes, .. } => attributes.now(),
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
            step: step.to_owned(),
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

    /// The bytes of the file in this state.
    pub(super) fn size(&self, state: &PathState) -> io::Result<u64> {
        match state {
            PathState::File { content, .. } => {
                Ok(fs::metadata(self.directory.join(content))?.len())
            }
            PathState::Absent | PathState::Link(_) => Ok(0),
        }
    }

    /// Makes a change.
    pub(super) fn make(&self, change: &FileChange) -> io::Result<()> {
        let new = change.new_directories.iter().map(|path| self.root.at(path));
        make_directories(&new.collect::<Vec<_>>())?;
        self.set(&self.root.at(&change.path), &change.after)
    }

    /// Whether the file has its previous content again, or no longer the part that was changed.
    pub(super) fn undo_one(&self, change: &FileChange) -> io::Result<bool> {
        let real = self.root.at(&change.path);
        remove(&hidden(&real)?)?;
        if self.is_at(&change.after, &change.path)? || fs::symlink_metadata(&real).is_err() {
            self.set(&real, &change.before)?;
        } else if !self.is_at(&change.before, &change.path)? && !self.undo_part(change, &real)? {
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

    /// Whether the path of a change is there, unfinished or not, or an empty directory that was made for it.
    pub(super) fn is_left(&self, change: &FileChange) -> bool {
        let real = self.root.at(&change.path);
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        let is_empty = |directory: &PathBuf| {
            let entries = fs::read_dir(self.root.at(directory));
            entries.is_ok_and(|mut entries| entries.next().is_none())
        };
        is_there(&real)
            || hidden(&real).is_ok_and(|path| is_there(&path))
            || change.new_directories.iter().any(is_empty)
    }

    /// Undoes the changed lines of a file that somebody else has changed too. Returns whether that was possible.
    fn undo_part(&self, change: &FileChange, real: &Path) -> io::Result<bool> {
        let text = |state: &PathState| match state {
            PathState::File { content, .. } => {
                fs::read_to_string(self.directory.join(content)).ok()
            }
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
    pub(super) fn is_at(&self, state: &PathState, path: &Path) -> io::Result<bool> {
        let real = &self.root.at(path);
        let is_link = fs::symlink_metadata(real).map(|about| about.is_symlink());
        Ok(match (state, is_link) {
            (_, Err(error)) if error.kind() != ErrorKind::NotFound => return Err(error),
            (PathState::Absent, is_link) => is_link.is_err(),
            (PathState::Link(target), Ok(true)) => fs::read_link(real)? == *target,
            (
                PathState::File {
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
    fn set(&self, real: &Path, state: &PathState) -> io::Result<()> {
        match state {
            PathState::Absent => {
                moment();
                remove(real)?;
                sync_directory(real)
            }
            PathState::Link(target) => self.replace(real, |new| files::make_link(target, new)),
            PathState::File {
                content,
                attributes,
            } => {
                let bytes = fs::read(self.directory.join(content))?;
                self.replace(real, |new| write(new, &bytes, attributes))
            }
        }
    }

    fn replace(&self, real: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        replace_with(real, |new| {
            moment();
            make(new)?;
            moment();
            Ok(())
        })?;
        moment();
        sync_directory(real)
    }
}

fn write(path: &Path, bytes: &[u8], attributes: &Attributes) -> io::Result<()> {
    let mut file = create_new(path, PRIVATE)?;
    file.write_all(bytes)?;
    attributes.set(&file)?;
    file.sync_all()
}

/// The directory and those above it that do not exist, the outermost first.
pub(super) fn missing(directory: &Path) -> Vec<PathBuf> {
    let missing = directory.ancestors().take_while(|path| !path.exists());
    let mut missing: Vec<_> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

pub(super) fn make_directories(directories: &[PathBuf]) -> io::Result<()> {
    for directory in directories.iter().filter(|path| !path.exists()) {
        moment();
        DirBuilder::new().create(directory)?;
        sync_directory(directory)?;
    }
    Ok(())
}

/// Writes the directory of a path to the disk, with the names in it.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
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
