//! The exit codes of the commands.

/// The command failed at run time.
pub const FAILED: u8 = 1;
/// A dry run found changes.
pub const WOULD_CHANGE: u8 = 2;
/// The command line is wrong (sysexits' EX_USAGE).
pub const USAGE: u8 = 64;
/// criswitch is not running or not reachable (sysexits' EX_UNAVAILABLE).
pub const NOT_RUNNING: u8 = 69;
/// The configuration is wrong (sysexits' EX_CONFIG).
pub const CONFIGURATION: u8 = 78;

/// The result of a command that ran to its end, and its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Verdict {
    /// Everything is as the user wants it.
    Fine = 0,
    /// The command printed the problems.
    NotFine = FAILED,
    /// A reload or a plan would change something.
    WouldChange = WOULD_CHANGE,
    /// A runtime other than criswitch serves on the socket.
    NotRunning = NOT_RUNNING,
    /// The command printed every problem of the configuration.
    WrongConfiguration = CONFIGURATION,
}

/// The line on standard error about an error that ended a command.
pub fn failure(error: &anyhow::Error) -> String {
    format!("criswitch: {error:#}\n")
}
