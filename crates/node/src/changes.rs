//! Changes to files of a machine: the state before and after each change, and how a change is made and undone.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use criswitch_platform::replace::{hidden, replace_with};
use criswitch_platform::{Attributes, create_new, files, remove};
use serde::{Deserialize, Serialize};

use super::faults::moment;
use super::root::Root;
use super::steps::Content;

pub(super) const PRIVATE: u32 = 0o600;
/// The disk space that a write needs in addition to its content: for the names of files, and because the last block is
/// not full.
const STEP_BYTES: u64 = 8 << 10;

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileChange {
    /// The step of the plan.
    pub(super) step: String,
    pub(super) path: PathBuf,
    pub(super) before: PathState,
    pub(super) after: PathState,
    /// The directories that the change creates, the outermost first.
    new_directories: Vec<PathBuf>,
}

/// The state of a path.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum PathState {
    Absent,
    Link(PathBuf),
    File {
        /// The name of a file in the journal's directory, which has the content.
        content: String,
        attributes: Attributes,
    },
}

/// How a change is undone.
pub(super) enum UndoMethod {
    /// Restore the previous state of the path.
    Set,
    /// Write this text. Other programs have changed the file too, and the text has only their changes.
    Merge(String),
    /// Do nothing, because the path already has its previous state.
    Nothing,
}

/// The files of a machine, and the directory with their saved contents.
pub(super) struct Files<'a> {
    pub(super) root: &'a Root<'a>,
    pub(super) directory: PathBuf,
    /// The file that reserves disk space for the undo that is in progress.
    pub(super) room: Option<PathBuf>,
}

impl Files<'_> {
    /// The change of a path. Saves the old and the new content beside the journal.
    pub(super) fn planned(
        &self,
        step: &str,
        path: &Path,
        new: &Content,
        name: &str,
    ) -> io::Result<FileChange> {
        let before = self.save_before(path, name)?;
        let after = match new {
            Content::Link(target) => PathState::Link(target.clone()),
            Content::File { bytes, mode } => PathState::File {
                content: self.save(bytes, &format!("{name}.after"))?,
                attributes: match &before {
                    // The kubelet's files keep the modes that others gave them.
                    PathState::File { attributes, .. } if step == "endpoint" => attributes.now(),
                    PathState::File { attributes, .. } => attributes.now().with_mode_like(*mode),
                    _ if step == "endpoint" => self.new_attributes(path, *mode),
                    _ => self.new_attributes(path, *mode).with_mode_like(*mode),
                },
            },
        };
        Ok(FileChange {
            step: step.to_owned(),
            path: path.to_owned(),
            before,
            after,
            new_directories: self.new_directories(path),
        })
    }

    fn save_before(&self, path: &Path, name: &str) -> io::Result<PathState> {
        let real = self.root.place(path);
        Ok(match fs::symlink_metadata(&real) {
            Err(error) if error.kind() == ErrorKind::NotFound => PathState::Absent,
            Err(error) => return Err(error),
            Ok(about) if about.is_symlink() => PathState::Link(fs::read_link(&real)?),
            Ok(_) => PathState::File {
                content: self.save(&fs::read(&real)?, &format!("{name}.before"))?,
                attributes: Attributes::of(&real)?,
            },
        })
    }

    /// The attributes of a new file. If a symbolic link is at its path, these are the attributes of the link's target.
    fn new_attributes(&self, path: &Path, mode: u32) -> Attributes {
        fs::canonicalize(self.root.real(path))
            .ok()
            .filter(|target| target.is_file())
            .and_then(|target| Attributes::of(&target).ok())
            .map_or_else(|| Attributes::new(mode), |target| target.now())
    }

    fn new_directories(&self, path: &Path) -> Vec<PathBuf> {
        let real = self.root.at(path);
        let below = real.ancestors().count() - path.ancestors().count();
        real.parent()
            .map(missing)
            .into_iter()
            .flatten()
            .map(|directory| directory.components().skip(below + 1).collect::<PathBuf>())
            .map(|parts| Path::new("/").join(parts))
            .collect()
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

    /// The size of the file in this state, in bytes.
    pub(super) fn size(&self, state: &PathState) -> io::Result<u64> {
        self.saved(state)
            .map_or(Ok(0), |path| Ok(fs::metadata(path)?.len()))
    }

    /// The text of the file in this state; `None` if it is not a file or not text.
    pub(super) fn text(&self, state: &PathState) -> Option<String> {
        fs::read_to_string(self.saved(state)?).ok()
    }

    /// The path of the saved content of a file in this state.
    fn saved(&self, state: &PathState) -> Option<PathBuf> {
        match state {
            PathState::File { content, .. } => Some(self.directory.join(content)),
            PathState::Absent | PathState::Link(_) => None,
        }
    }

    /// Makes a change.
    pub(super) fn make(&self, change: &FileChange) -> io::Result<()> {
        let new: Vec<_> = change
            .new_directories
            .iter()
            .map(|path| self.root.place(path))
            .collect();
        self.with_reserved_space(0, || make_directories(&new))?;
        self.set(&self.root.place(&change.path), &change.after)
    }

    /// How the change is undone; `None` if that is impossible, because another program has changed the file too.
    pub(super) fn undo_method(&self, change: &FileChange) -> io::Result<Option<UndoMethod>> {
        let real = self.root.place(&change.path);
        let about = fs::symlink_metadata(&real);
        if about.is_err() || self.is_at(&change.after, &change.path)? {
            return Ok(Some(UndoMethod::Set));
        }
        if self.is_at(&change.before, &change.path)? {
            return Ok(Some(UndoMethod::Nothing));
        }
        if let Some(before) = self.text(&change.before)
            && let Some(after) = self.text(&change.after)
            && about.is_ok_and(|about| about.is_file())
            && let Ok(now) = fs::read_to_string(real)
        {
            return Ok(without_change(&before, &after, &now).map(UndoMethod::Merge));
        }
        Ok(None)
    }

    /// Undoes a change. Returns `false` if that is impossible, because another program has changed the file too.
    pub(super) fn undo_one(&self, change: &FileChange) -> io::Result<bool> {
        let real = self.root.place(&change.path);
        remove(&hidden(&real)?)?;
        match self.undo_method(change)? {
            Some(UndoMethod::Set) => self.set(&real, &change.before)?,
            Some(UndoMethod::Merge(text)) => {
                let attributes = Attributes::of(&real)?;
                self.replace(&real, text.len(), |new| {
                    write(new, text.as_bytes(), &attributes)
                })?;
            }
            Some(UndoMethod::Nothing) => {}
            None => return Ok(false),
        }
        for directory in change.new_directories.iter().rev() {
            moment();
            match fs::remove_dir(self.root.place(directory)) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => break,
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Whether a part of a change is left: its file, the unfinished file, or an empty directory that was made for it.
    /// The saved contents are removed last: without them, nothing is left.
    pub(super) fn is_left(&self, change: &FileChange) -> bool {
        let real = self.root.place(&change.path);
        self.size(&change.after).is_ok()
            && (is_there(&real)
                || hidden(&real).is_ok_and(|path| is_there(&path))
                || change.new_directories.iter().any(|directory| {
                    fs::read_dir(self.root.place(directory))
                        .is_ok_and(|mut entries| entries.next().is_none())
                }))
    }

    /// Calls `write`, which writes `bytes` bytes. If the disk is full, releases that much of the space that is reserved
    /// for the undo, and writes immediately: other programs would use space that is released earlier.
    pub(super) fn with_reserved_space(
        &self,
        bytes: usize,
        write: impl Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match (write(), &self.room) {
                (Err(error), Some(room)) if error.kind() == ErrorKind::StorageFull => {
                    let room = File::options().write(true).open(room);
                    let left = room.and_then(|room| Ok((room.metadata()?.len(), room)));
                    let Some((left, room)) = left.ok().filter(|(left, _)| *left > 0) else {
                        return Err(error);
                    };
                    room.set_len(left.saturating_sub(bytes as u64 + STEP_BYTES))?;
                }
                (written, _) => return written,
            }
        }
    }

    /// Whether a path has this state. The time of the last write does not count.
    pub(super) fn is_at(&self, state: &PathState, path: &Path) -> io::Result<bool> {
        let real = &self.root.place(path);
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

    /// Gives a path this state, atomically.
    fn set(&self, real: &Path, state: &PathState) -> io::Result<()> {
        match state {
            PathState::Absent => {
                moment();
                remove(real)?;
                sync_directory(real)
            }
            PathState::Link(target) => self.replace(real, 0, |new| files::make_link(target, new)),
            PathState::File {
                content,
                attributes,
            } => {
                let bytes = fs::read(self.directory.join(content))?;
                self.replace(real, bytes.len(), |new| write(new, &bytes, attributes))
            }
        }
    }

    fn replace(
        &self,
        real: &Path,
        bytes: usize,
        make: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        self.with_reserved_space(bytes, || {
            replace_with(real, |new| {
                moment();
                make(new)?;
                moment();
                Ok(())
            })
        })?;
        moment();
        sync_directory(real)
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn write(path: &Path, bytes: &[u8], attributes: &Attributes) -> io::Result<()> {
    let mut file = create_new(path, PRIVATE)?;
    file.write_all(bytes)?;
    attributes.set(&file)?;
    file.sync_all()
}

/// The directories that do not exist, among `directory` and the directories above it; the outermost first.
pub(super) fn missing(directory: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<_> = directory
        .ancestors()
        .take_while(|path| !path.exists())
        .map(Path::to_owned)
        .collect();
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

/// Syncs the directory of a path to the disk, so that the names in the directory survive a power cut.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    match File::open(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        directory => directory?.sync_all(),
    }
}

/// `now` with the lines that differ in `after` replaced by the lines of `before`; `now` unchanged if it no longer has
/// such lines. `None` if other programs have changed these lines, or if `now` has them several times.
fn without_change(before: &str, after: &str, now: &str) -> Option<String> {
    let [old, new, lines] =
        [before, after, now].map(|text| text.split_terminator('\n').collect::<Vec<_>>());
    let start = common(old.iter(), new.iter());
    let ((_, old), (_, new)) = (old.split_at(start), new.split_at(start));
    let end = common(old.iter().rev(), new.iter().rev());
    let ((old, _), (new, _)) = (old.split_at(old.len() - end), new.split_at(new.len() - end));
    match (&*places(new, &lines), &*places(old, &lines), old, new) {
        _ if new.is_empty() => None,
        ([place], ..) => {
            let mut merged = lines
                .iter()
                .take(*place)
                .chain(old)
                .chain(lines.iter().skip(place + new.len()))
                .copied()
                .collect::<Vec<_>>()
                .join("\n");
            if now.ends_with('\n') && !merged.is_empty() {
                merged.push('\n');
            }
            Some(merged)
        }
        // The change is undone already.
        ([], [_], ..) => Some(now.to_owned()),
        ([], _, [], _) if !new.iter().any(|line| has_key_of(line, &lines)) => Some(now.to_owned()),
        ([], [], [old], [new]) => without_flag(old, new, now),
        _ => None,
    }
}

/// The number of equal items at the start of both.
fn common<T: PartialEq>(a: impl Iterator<Item = T>, b: impl Iterator<Item = T>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// The places of a part in these lines.
fn places(part: &[&str], lines: &[&str]) -> Vec<usize> {
    lines
        .windows(part.len().max(1))
        .enumerate()
        .filter(|(_, window)| *window == part)
        .map(|(place, _)| place)
        .collect()
}

/// Whether one of these lines has the key of a line.
fn has_key_of(line: &str, lines: &[&str]) -> bool {
    let key = line.split_inclusive([':', '=']).next().unwrap_or_default();
    lines.iter().any(|other| other.starts_with(key))
}

/// Replaces in `now` the flag that only the line `new` has by the flag that only the line `old` has. Returns `now`
/// unchanged if it has the flag of `old` already. `None` if `now` has neither flag exactly once.
fn without_flag(old: &str, new: &str, now: &str) -> Option<String> {
    let (old, new) = (flags(old), flags(new));
    let only: Vec<_> = old.symmetric_difference(&new).copied().collect();
    let &[one, other] = only.as_slice() else {
        return None;
    };
    let (old, new) = if old.contains(one) {
        (one, other)
    } else {
        (other, one)
    };
    let pieces: Vec<_> = now.split_inclusive(is_end).collect();
    match [new, old].map(|flag| pieces.iter().filter(|piece| is(piece, flag)).count()) {
        // The value of a flag may also be the next word.
        _ if !old.contains('=') => None,
        [1, _] => Some(
            pieces
                .iter()
                .map(|piece| {
                    if is(piece, new) {
                        piece.replace(new, old)
                    } else {
                        (*piece).to_owned()
                    }
                })
                .collect(),
        ),
        // The change is undone already.
        [0, 1] => Some(now.to_owned()),
        _ => None,
    }
}

/// Whether the character ends a flag.
fn is_end(char: char) -> bool {
    char.is_whitespace() || "\"'".contains(char)
}

fn flags(line: &str) -> BTreeSet<&str> {
    line.split(is_end)
        .filter(|word| word.starts_with("--"))
        .collect()
}

/// Whether a piece of a line is this flag.
fn is(piece: &str, flag: &str) -> bool {
    piece.trim_end_matches(is_end) == flag
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Undoes the change of a text in other texts, each with its expected result.
    #[track_caller]
    fn undone(before: &str, after: &str, texts: &[(&str, Option<&str>)]) {
        for (now, expected) in texts {
            let found = without_change(before, after, now);
            assert_eq!(found.as_deref(), *expected, "{now:?}");
        }
    }

    #[test]
    fn a_change_is_undone_beside_the_changes_of_others() {
        // A file without a line break at its end, and a line that others have commented out.
        let texts = [
            ("a: 1\nkey: new\nx: 1\n", Some("a: 1\nx: 1\n")),
            ("a: 2\nx: 1\n", Some("a: 2\nx: 1\n")),
            ("a: 1\n#key: new\nb: 2\n", Some("a: 1\n#key: new\nb: 2\n")),
            ("a: 1\nkey: other\n", None),
            ("key: new\nkey: new\n", None),
        ];
        undone("a: 1", "a: 1\nkey: new\n", &texts);
        let texts = [
            ("b: 2\nkey: new\n", Some("b: 2\nkey: old\n")),
            ("key: old\nb: 2\n", Some("key: old\nb: 2\n")),
            ("key: new\r\n", None),
            ("key: third\n", None),
        ];
        undone("key: old\na: 1\n", "key: new\na: 1\n", &texts);
    }

    #[test]
    fn a_flag_is_undone_in_a_line_that_others_have_changed() {
        let again = "ARGS='--socket=old --y=2'\n";
        let texts = [
            ("ARGS='--socket=new --y=2'\n", Some(again)),
            (again, Some(again)),
            ("ARGS='--y=2'\n", None),
            ("ARGS='--socket=newer'\n", None),
            ("ARGS='--socket=new'\nMORE='--socket=new'\n", None),
        ];
        let [before, after] = ["old", "new"].map(|it| format!("ARGS='--x=1 --socket={it}'\n"));
        undone(&before, &after, &texts);
    }
}
