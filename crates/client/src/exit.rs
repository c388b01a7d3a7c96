//! The exit codes of the commands.

pub use criswitch_config::exit::{CONFIGURATION, FAILED, NOT_RUNNING, USAGE, WOULD_CHANGE};

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
    /// The command line of a command that ran on the node is wrong.
    WrongCommandLine = USAGE,
    /// A runtime other than criswitch serves on the socket.
    NotRunning = NOT_RUNNING,
    /// The command printed every problem of the configuration.
    WrongConfiguration = CONFIGURATION,
}

impl Verdict {
    /// The verdict of a command that only checks: `Fine` or `NotFine`.
    pub fn of(is_fine: bool) -> Verdict {
        if is_fine {
            Verdict::Fine
        } else {
            Verdict::NotFine
        }
    }
}

/// The line on standard error about an error that ended a command.
pub fn failure(error: &anyhow::Error) -> String {
    format!("criswitch: {error:#}\n")
}
