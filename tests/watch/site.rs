//! A watched configuration in a temporary directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use criswitch_config::watch::{Fingerprint, PERIOD, Watch};
use tempfile::TempDir;
use tokio::time::timeout;

/// The longest wait for a report, on the paused clock.
const BOUND: Duration = Duration::from_secs(30);

/// Sets up a main file and a drop-in.
pub(crate) const PLAIN: &str =
    "mkdir -p etc/conf.d; echo one > etc/criswitch.toml; echo a > etc/conf.d/10-a.toml";

/// A temporary directory with the configuration `etc/criswitch.toml`, and the watch over the configuration.
pub(crate) struct Site {
    folder: TempDir,
    watch: Watch,
    loaded: Fingerprint,
}

impl Site {
    /// Runs `script` in a new directory, and loads the files. Needs a paused clock.
    pub(crate) fn of(script: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        shell(&folder, script);
        Site {
            loaded: Fingerprint::of(&folder.path().join("etc/criswitch.toml")),
            folder,
            watch: Watch::default(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs shell commands in the directory. First waits until the file system's clock has advanced, so that the
    /// commands' writes get a later time than earlier writes.
    pub(crate) fn run(&self, script: &str) {
        let time = || {
            fs::write(self.path("clock"), "").unwrap();
            let clock = fs::metadata(self.path("clock")).unwrap();
            (clock.mtime(), clock.mtime_nsec())
        };
        let before = time();
        while time() == before {}
        shell(&self.folder, script);
    }

    /// Waits for the report of a change, then loads the files.
    pub(crate) async fn reports(&mut self) {
        self.reports_within(BOUND).await;
        self.loaded = Fingerprint::of(&self.path("etc/criswitch.toml"));
    }

    async fn reports_within(&self, bound: Duration) {
        let main = self.path("etc/criswitch.toml");
        let changed = timeout(bound, self.watch.changed(&main, self.loaded));
        changed.await.expect("the change is reported");
    }

    /// Asserts that three looks at the files report no change.
    pub(crate) async fn is_silent(&self) {
        let main = self.path("etc/criswitch.toml");
        let changed = self.watch.changed(&main, self.loaded);
        let changed = timeout(PERIOD * 7 / 2, changed).await;
        changed.expect_err("no change is reported");
    }

    /// Runs `script`, whose changes must be reported once.
    pub(crate) async fn reports_once(&mut self, script: &str) {
        self.run(script);
        self.reports().await;
        self.is_silent().await;
    }

    /// Runs `script`, whose changes must not be reported.
    pub(crate) async fn ignores(&self, script: &str) {
        self.run(script);
        self.is_silent().await;
    }
}

fn shell(folder: &TempDir, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder);
    assert!(command.status().unwrap().success(), "{script}");
}
