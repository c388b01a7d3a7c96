//! A watched configuration in a directory of its own, and another one that tells when silence has lasted.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use criswitch::config::watch::Watch;
use tempfile::TempDir;
use tokio::time::timeout;

/// How long a telling may take on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(30);
/// Short, as every silence takes two of it.
pub(crate) const QUIET: Duration = Duration::from_millis(20);
/// Longer than any test takes.
const HOLD: Duration = Duration::from_secs(120);

/// Sets up a main file and a drop-in.
pub(crate) const PLAIN: &str =
    "mkdir -p etc/conf.d; echo one > etc/criswitch.toml; echo a > etc/conf.d/10-a.toml";

/// The directory; the configuration is `etc/criswitch.toml` in it.
pub(crate) struct Site {
    folder: TempDir,
    pub(crate) watch: Watch,
    witness: Watch,
    silences: u32,
}

impl Site {
    /// What the shell makes of `script` before anything is watched.
    pub(crate) fn of(script: &str) -> Site {
        Site::holding(script, HOLD)
    }

    /// The same, with changes held up for at most `hold`.
    pub(crate) fn holding(script: &str, hold: Duration) -> Site {
        let folder = tempfile::tempdir().unwrap();
        shell(&folder, script);
        shell(&folder, "mkdir witness; echo 0 > witness/criswitch.toml");
        let watch = |path: &str, hold| {
            Watch::with_times(&folder.path().join(path), QUIET, hold).expect("inotify is there")
        };
        Site {
            watch: watch("etc/criswitch.toml", hold),
            witness: watch("witness/criswitch.toml", HOLD),
            folder,
            silences: 0,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs real commands, in the directory.
    pub(crate) fn run(&self, script: &str) {
        shell(&self.folder, script);
    }

    pub(crate) async fn tells(&mut self) {
        let told = timeout(BOUND, self.watch.changed()).await;
        told.expect("the change is told");
    }

    pub(crate) async fn tells_once(&mut self) {
        self.tells().await;
        self.is_silent().await;
    }

    /// What happens later elsewhere, and takes as long, is told first.
    pub(crate) async fn is_silent(&mut self) {
        self.silences += 1;
        let main = self.path("witness/criswitch.toml");
        std::fs::write(main, self.silences.to_string()).unwrap();
        let silence = async {
            tokio::select! {
                biased;
                () = self.watch.changed() => panic!("a change is told"),
                () = self.witness.changed() => {}
            }
        };
        timeout(BOUND, silence).await.expect("the witness tells");
    }

    /// Runs `script`, which is told, once.
    pub(crate) async fn tells_of(&mut self, script: &str) {
        self.run(script);
        self.tells_once().await;
    }

    /// Runs `script`, which is not told; that a change after it is shows that the watch was awake.
    pub(crate) async fn keeps_quiet_about(&mut self, script: &str) {
        self.run(script);
        self.is_silent().await;
        self.tells_of("echo another >> etc/criswitch.toml").await;
    }
}

fn shell(folder: &TempDir, script: &str) {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder);
    assert!(command.status().unwrap().success(), "{script}");
}
