//! Passes sockets to programs, as systemd does.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// A command for `program` that passes `descriptor` `count` times, as descriptors 3 and up. `shown` is the value of
/// `LISTEN_FDS`.
///
/// A shell copies its standard input to the descriptors and then becomes `program`, so `LISTEN_PID` is right.
pub fn passing(
    program: &str,
    descriptor: impl Into<OwnedFd>,
    count: usize,
    shown: &str,
) -> Command {
    let moves: String = (3..3 + count).map(|fd| format!("{fd}<&0 ")).collect();
    let mut command = moving(program, &moves, shown);
    command.stdin(Stdio::from(descriptor.into()));
    command
}

/// A command for `program` that passes two descriptors under these names. The standard output of `program` is
/// discarded.
pub fn passing_both(program: &str, both: [OwnedFd; 2], names: &str) -> Command {
    let [third, fourth] = both;
    let mut command = moving(program, "3<&0 4<&1 1>/dev/null ", "2");
    command.env("LISTEN_FDNAMES", names);
    command
        .stdin(Stdio::from(third))
        .stdout(Stdio::from(fourth));
    command
}

fn moving(program: &str, moves: &str, shown: &str) -> Command {
    let script = format!(
        "export LISTEN_PID=$$ LISTEN_FDS='{shown}'; exec \"$0\" \"$@\" {moves} 0</dev/null"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, program]);
    command
}
