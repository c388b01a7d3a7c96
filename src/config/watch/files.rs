//! What of the configuration would be read, as one number: its files' names and bytes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use crate::config::disk;

/// The same as long as `main` and its drop-ins are the same, or cannot be read for the same reason.
pub(super) fn fingerprint(main: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let drop_ins = disk::drop_ins(&main.with_file_name("conf.d"));
    let failed = drop_ins.as_ref().err().map(std::io::Error::kind);
    failed.hash(&mut hasher);
    let drop_ins = drop_ins.unwrap_or_default();
    for path in [main.to_owned()].iter().chain(&drop_ins) {
        path.hash(&mut hasher);
        let bytes = disk::bytes(path).map_err(|error| error.kind());
        bytes.hash(&mut hasher);
    }
    hasher.finish()
}
