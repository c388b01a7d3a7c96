//! The criswitch binary: runs the command line and returns its exit code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
