//! The files of a configuration: the main one, then its drop-ins sorted by name.

use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fnv::FnvHasher;

use super::disk;
use super::lines::Lines;
use super::problem::{Place, Problems};

/// A file that was read, and the position of its first character.
pub(super) struct ConfigFile {
    pub(super) start: Place,
    pub(super) text: String,
    lines: Lines,
}

impl ConfigFile {
    pub(super) fn place(&self, offset: usize) -> Place {
        self.start.at(self.lines.place(&self.text, offset))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.start.path.to_path_buf()
    }
}

/// Reads `main` and `conf.d/*.toml` beside it, and records a problem for each unreadable file.
pub(super) fn read(main: &Path, problems: &mut Problems) -> Vec<ConfigFile> {
    let folder = main.with_file_name("conf.d");
    let drop_ins = disk::drop_ins(&folder).unwrap_or_else(|error| {
        unreadable(&Place::start(1, &folder), &error, problems);
        Vec::new()
    });
    [main.to_path_buf()]
        .into_iter()
        .chain(drop_ins)
        .enumerate()
        .filter_map(|(index, path)| file(index, &path, problems))
        .collect()
}

fn file(index: usize, path: &Path, problems: &mut Problems) -> Option<ConfigFile> {
    let start = Place::start(index, path);
    match disk::bytes(path) {
        Ok(bytes) => decode_file(start, bytes, problems),
        // The drop-in was removed after the directory was listed, which is not a problem.
        Err(error) if index > 0 && error.kind() == ErrorKind::NotFound && !disk::is_link(path) => {
            None
        }
        Err(error) => {
            unreadable(&start, &error, problems);
            None
        }
    }
}

/// Decodes the bytes of a file, and records a problem if they are not UTF-8.
pub(super) fn decode_file(
    start: Place,
    bytes: Vec<u8>,
    problems: &mut Problems,
) -> Option<ConfigFile> {
    match String::from_utf8(bytes) {
        Ok(text) => Some(ConfigFile {
            lines: Lines::of(&text),
            start,
            text,
        }),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let valid = String::from_utf8_lossy(error.as_bytes().get(..valid).unwrap_or_default());
            let place = start.at(Lines::of(&valid).place(&valid, valid.len()));
            problems.report(&place, "not UTF-8", "saving the file as UTF-8");
            None
        }
    }
}

/// 16 hex digits that change with any name or byte of the files, and are equal on all nodes with equal files.
pub(super) fn hash(files: &[ConfigFile]) -> String {
    let mut hash = FnvHasher::default();
    for file in files {
        let name = file.start.path.file_name().unwrap_or_default();
        for bytes in [name.as_encoded_bytes(), file.text.as_bytes()] {
            // The length marks where the name or text ends.
            hash.write(&(bytes.len() as u64).to_be_bytes());
            hash.write(bytes);
        }
    }
    format!("{:016x}", hash.finish())
}

fn unreadable(place: &Place, error: &io::Error, problems: &mut Problems) {
    let path = place.path.display();
    let discover = format!("criswitch discover --write {path}, or a different path after --config");
    let hint = match error.kind() {
        ErrorKind::NotFound if disk::is_link(&place.path) => {
            "removing the symbolic link, or creating its target"
        }
        ErrorKind::NotFound => &discover,
        ErrorKind::FileTooLarge => "a smaller file in its place",
        ErrorKind::QuotaExceeded => "fewer files, with more rows in each",
        ErrorKind::PermissionDenied => "running the command as a user that may read the file",
        _ => "a readable file in its place",
    };
    problems.report(place, format_args!("cannot be read: {error}"), hint);
}
