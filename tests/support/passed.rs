//! Programs that get a socket passed, as systemd does it.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// `program` with `descriptor` passed to it `count` times, as descriptors 3 and up; `LISTEN_FDS` says `told`.
///
/// The shell knows the process' id beforehand, and moves what comes as its standard input.
pub fn passing(program: &str, descriptor: impl Into<OwnedFd>, count: usize, told: &str) -> Command {
    let moves: String = (3..3 + count).map(|fd| format!("{fd}<&0 ")).collect();
    let script =
        format!("export LISTEN_PID=$$ LISTEN_FDS='{told}'; exec \"$0\" \"$@\" {moves} 0</dev/null");
    let mut command = Command::new("sh");
    command.args(["-c", &script, program]);
    command.stdin(Stdio::from(descriptor.into()));
    command
}
