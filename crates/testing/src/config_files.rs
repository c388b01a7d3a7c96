//! The files of a configuration, in a temporary directory.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{native, portable};

/// The files of a configuration. Dropping this value removes them.
pub struct ConfigFiles {
    folder: TempDir,
}

impl ConfigFiles {
    /// Writes each text to its path below the directory, with the addresses of this system. The main file is
    /// `criswitch.toml`.
    pub fn of(files: &[(&str, &[u8])]) -> ConfigFiles {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match std::str::from_utf8(text) {
                Ok(text) => std::fs::write(path, native(text)).unwrap(),
                Err(_) => std::fs::write(path, text).unwrap(),
            }
        }
        ConfigFiles { folder }
    }

    /// The path of the main file.
    pub fn main(&self) -> PathBuf {
        self.folder.path().join("criswitch.toml")
    }

    /// `text` with the addresses of Unix, and without the directory's name, which changes from run to run.
    pub fn stable(&self, text: &str) -> String {
        let directory = self.folder.path().join("").display().to_string();
        portable(text).replace(&directory, "")
    }
}
