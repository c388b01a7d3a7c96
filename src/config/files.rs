//! The files of a configuration: the main one, then its drop-ins in the order of their names.

use std::fs;
use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fnv::FnvHasher;

use super::problem::{Place, Problems};

/// A file that could be read, and the place where it starts.
pub(super) struct File {
    pub(super) start: Place,
    pub(super) text: String,
}

impl File {
    pub(super) fn path(&self) -> PathBuf {
        self.start.path().to_path_buf()
    }
}

/// What can be read of `main` and `conf.d/*.toml` beside it, and a problem for each that cannot.
pub(super) fn read(main: &Path, problems: &mut Problems) -> Vec<File> {
    let folder = main.with_file_name("conf.d");
    let drop_ins = drop_ins(&folder).unwrap_or_else(|error| {
        unreadable(&Place::start(1, &folder), &error, problems);
        Vec::new()
    });
    let paths = [main.to_path_buf()].into_iter().chain(drop_ins);
    let starts = paths
        .enumerate()
        .map(|(index, path)| (Place::start(index, &path), path));
    starts
        .filter_map(|(start, path)| file(start, &path, problems))
        .collect()
}

fn file(start: Place, path: &Path, problems: &mut Problems) -> Option<File> {
    let bytes = fs::read(path)
        .map_err(|error| unreadable(&start, &error, problems))
        .ok()?;
    text(start, bytes, problems)
}

/// What the bytes of a file say, and a problem if they are no text.
pub(super) fn text(start: Place, bytes: Vec<u8>, problems: &mut Problems) -> Option<File> {
    match String::from_utf8(bytes) {
        Ok(text) => Some(File { start, text }),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let valid = String::from_utf8_lossy(error.as_bytes().get(..valid).unwrap_or_default());
            let place = start.after(&valid);
            problems.tell(&place, "not UTF-8", "saving the file as UTF-8");
            None
        }
    }
}

/// What changes with any name or byte of the files, and is the same on every node that has the same: 16 hex digits.
pub(super) fn hash(files: &[File]) -> String {
    let mut hash = FnvHasher::default();
    for file in files {
        let name = file.start.path().file_name().unwrap_or_default();
        for bytes in [name.as_encoded_bytes(), file.text.as_bytes()] {
            // Where one ends counts too.
            hash.write(&(bytes.len() as u64).to_be_bytes());
            hash.write(bytes);
        }
    }
    format!("{:016x}", hash.finish())
}

/// As the shell's `*.toml`: what begins with a dot is an editor's, not ours.
fn drop_ins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml") && !hidden(path));
    paths.sort();
    Ok(paths)
}

fn hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

fn unreadable(place: &Place, error: &io::Error, problems: &mut Problems) {
    let hint = match error.kind() {
        ErrorKind::NotFound => "creating it, or another path after --config",
        ErrorKind::PermissionDenied => "a user who may read it",
        _ => "a readable file in its place",
    };
    problems.tell(place, format_args!("cannot be read: {error}"), hint);
}
