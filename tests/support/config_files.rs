//! The files of a configuration, in a temporary directory.

use std::path::PathBuf;

use tempfile::TempDir;

/// The files of a configuration. Dropping this value removes them.
pub(crate) struct ConfigFiles {
    folder: TempDir,
}

impl ConfigFiles {
    /// Writes each text to its path below the directory. The main file is `criswitch.toml`.
    pub(crate) fn of(files: &[(&str, &[u8])]) -> ConfigFiles {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        ConfigFiles { folder }
    }

    /// The path of the main file.
    pub(crate) fn main(&self) -> PathBuf {
        self.folder.path().join("criswitch.toml")
    }

    /// `text` without the directory's name, which changes from run to run.
    pub(crate) fn stable(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}
