//! Finds files and directories of criswitch that users other than root can write, and should not. Also finds the id of
//! a user by name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use criswitch_platform::trust;
use criswitch_platform::users::{self, UserId};

use super::Config;
use super::value::{self, InvalidValue};

/// Returns a sentence for each file or directory that users besides root and criswitch's own user may write. Checks the
/// files of the configuration, the directories of the configuration, socket and state, and all directories above. Reads
/// the disk.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let main = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
    let listen = config.listen.path();
    let directories = [
        (main.parent(), "the configuration"),
        (Some(&*main.with_file_name("conf.d")), "the configuration"),
        (listen.parent(), "the socket"),
        (config.runtime_dir.as_deref(), "the state"),
        (config.state_dir.as_deref(), "the state"),
    ];
    let files = config
        .files
        .iter()
        .map(|file| (Some(&**file), "the configuration"));
    let mut seen = BTreeSet::new();
    files
        .chain(directories)
        .filter_map(|(path, what)| Some((path?, what)))
        .flat_map(|(path, what)| {
            let above = directories_above(path).into_iter();
            trust::note(path, what)
                .into_iter()
                .chain(above.filter_map(move |path| trust::note_above(&path, what)))
        })
        .filter(|note| seen.insert(note.clone()))
        .collect()
}

/// The user that serves a backend's socket, from an id or a name.
pub(super) fn user(text: &str) -> Result<UserId, InvalidValue> {
    match users::named(text) {
        Some(found) => found.map_err(|(what, hint)| value::invalid_value(what, hint)),
        None => value::user(text),
    }
}

/// The directories above `path`, after all symbolic links are resolved; none if `path` does not exist yet.
fn directories_above(path: &Path) -> Vec<PathBuf> {
    let real = path.canonicalize().unwrap_or_default();
    real.ancestors()
        .skip(1)
        .map(Path::to_owned)
        .filter(|path| path.is_absolute())
        .collect()
}
