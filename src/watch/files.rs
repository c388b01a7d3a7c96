//! What of the configuration would be read, as one number: its files' names and bytes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Where a file is cut off, in bytes; what is larger is no configuration.
const MOST_BYTES: u64 = 16 << 20;

/// The same as long as `main` and its drop-ins are the same, or cannot be read for the same reason.
pub(super) fn fingerprint(main: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let drop_ins = drop_ins(&main.with_file_name("conf.d"));
    drop_ins.as_ref().err().hash(&mut hasher);
    let drop_ins = drop_ins.unwrap_or_default();
    for path in [main.to_owned()].iter().chain(&drop_ins) {
        path.hash(&mut hasher);
        bytes(path).map_err(|error| error.kind()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The drop-ins in `folder`, in the order of their names; none if there is no such directory.
pub(super) fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, ErrorKind> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| error.kind())?,
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let names = names.filter(|name| is_drop_in(name));
    let mut paths: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
    paths.sort();
    Ok(paths)
}

/// As the shell's `*.toml`.
pub(super) fn is_drop_in(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.ends_with(b".toml") && !name.starts_with(b".")
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    // To open a pipe would wait for who writes to it.
    if !fs::metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
