//! Starts and ends of daemons. Windows has no signals, and its default directories of the state do not depend on
//! `listen`.

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io::PipeWriter;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command};

    /// Sets `JOURNAL_STREAM` as systemd does if `output` is the journal. `off` is added to the inode.
    pub(crate) fn with_journal(daemon: &mut Command, output: &PipeWriter, off: u64) {
        let output = File::from(OwnedFd::from(output.try_clone().unwrap()));
        let stream = output.metadata().unwrap();
        let value = format!("{}:{}", stream.dev(), stream.ino() + off);
        daemon.env("JOURNAL_STREAM", value);
    }

    /// Changes nothing: each daemon saves its state beside its socket.
    pub(crate) fn with_own_state(_: &Command) {}

    /// Ends a daemon with a signal, and returns its exit code.
    pub(crate) fn end(mut daemon: Child, signal: &str) -> Option<i32> {
        let pid = daemon.id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(kill.unwrap().success());
        daemon.wait().unwrap().code()
    }

    /// The output of `criswitch status` without the file that [`with_own_state`] writes.
    pub(crate) fn without_own_state(shown: &str) -> String {
        shown.to_owned()
    }
}

#[cfg(windows)]
mod windows {
    use std::io::PipeWriter;
    use std::path::Path;
    use std::process::{Child, Command};

    /// Changes nothing: Windows has no journal.
    pub(crate) fn with_journal(_: &mut Command, _: &PipeWriter, _: u64) {}

    /// The file in `conf.d` with the directories of the state.
    const FILE: &str = "zz-state.toml";

    /// Sets the directories of the state in a file beside the configuration of a daemon.
    pub(crate) fn with_own_state(daemon: &Command) {
        let mut config = daemon.get_args().skip_while(|text| *text != "--config");
        let config = Path::new(config.nth(1).unwrap());
        let config = daemon
            .get_current_dir()
            .unwrap_or(Path::new(""))
            .join(config);
        let main = std::fs::read_to_string(&config).unwrap_or_default();
        let key = |key: &str| (!main.contains(key)).then(|| format!("{key} = "));
        let directory = config.with_file_name("conf.d");
        std::fs::create_dir_all(&directory).unwrap();
        let state = config.with_file_name("state");
        let keys = ["runtime_dir", "state_dir"].into_iter().filter_map(key);
        let lines = keys.map(|key| format!("{key}{state:?}\n"));
        std::fs::write(directory.join(FILE), lines.collect::<String>()).unwrap();
    }

    /// Kills a daemon. This counts as success.
    pub(crate) fn end(mut daemon: Child, _: &str) -> Option<i32> {
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        Some(0)
    }

    /// The output of `criswitch status` without the file that [`with_own_state`] writes.
    pub(crate) fn without_own_state(shown: &str) -> String {
        let lines = shown.lines().filter(|line| !line.ends_with(FILE));
        let line = |line: &str| line.replace(", 2 files", ", 1 file") + "\n";
        lines.map(line).collect()
    }
}
