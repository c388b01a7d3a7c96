//! The exit codes of both programs.

use std::{fmt, iter};

/// The program failed at run time.
pub const FAILED: u8 = 1;
/// A dry run found changes.
pub const WOULD_CHANGE: u8 = 2;
/// The command line is wrong (sysexits' EX_USAGE).
pub const USAGE: u8 = 64;
/// criswitch is not running or not reachable (sysexits' EX_UNAVAILABLE).
pub const NOT_RUNNING: u8 = 69;
/// The configuration is wrong (sysexits' EX_CONFIG).
pub const CONFIGURATION: u8 = 78;

/// The exit codes of a program or command, each with its meaning.
pub type ExitCodes = [(u8, &'static str)];

/// The end of a `--help` text: each exit code begins a line.
pub fn list<T: fmt::Display>(codes: &[(u8, T)]) -> String {
    let lines = codes
        .iter()
        .map(|(code, meaning)| format!("\n  {code:<2}  {meaning}"));
    iter::once("Exit codes:".to_owned()).chain(lines).collect()
}
