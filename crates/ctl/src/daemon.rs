//! criswitchd, the program of the daemon, which is installed in the same directory as this program.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Output};
use std::time::Duration;

use anyhow::anyhow;
use clap::{Arg, ArgAction, Command, ValueHint};
use criswitch_client::exit::CONFIGURATION;
use criswitch_client::program::{daemon_beside, within};
use criswitch_config::options::OPTIONS;
use criswitch_version::BUILD;

/// The name of the program.
pub(super) const NAME: &str = "criswitchd";
/// The time that the program may take to read its files.
const LIMIT: Duration = Duration::from_secs(30);

/// The path of the program.
///
/// # Errors
/// The path of this program is unknown.
fn path() -> io::Result<PathBuf> {
    Ok(daemon_beside(&std::env::current_exe()?))
}

/// The command line of the program, for its manual page and its completions.
pub(super) fn command() -> Command {
    let options = OPTIONS.map(|(name, value, help)| {
        let option = Arg::new(name).long(name).help(help);
        if value.is_empty() {
            return option.action(ArgAction::SetTrue);
        }
        option.value_name(value).value_hint(ValueHint::FilePath)
    });
    Command::new(NAME)
        .about("The daemon of criswitch")
        .disable_help_flag(true)
        .args(options)
}

/// The error of `criswitch serve`.
pub(super) fn serves() -> anyhow::Error {
    match path() {
        Ok(path) => anyhow!(
            "the daemon is a program of its own; start {} in place of `criswitch serve`",
            path.display()
        ),
        Err(error) => error.into(),
    }
}

/// Runs `criswitchd --check`, which reads the saved state and finds the lists that would fail after a start with the
/// configuration at `path`. Returns a sentence for each, or the reason why this is unknown.
///
/// # Errors
/// The daemon rejects the configuration, so it would not start.
pub(super) fn check(path: &Path) -> Result<Vec<String>, String> {
    Ok(
        match run(&["--check".as_ref(), "--config".as_ref(), path.as_os_str()]) {
            Ok(output) if output.status.success() => lines(&output.stderr),
            Ok(output) if output.status.code() == Some(CONFIGURATION.into()) => {
                return Err(format!(
                    "the daemon beside this program rejects this configuration ({}): {}",
                    output.status,
                    lines(&output.stderr).join("; ")
                ));
            }
            Ok(output) => vec![format!(
                "not known whether a restart would make lists fail: criswitchd --check failed ({}): {}",
                output.status,
                lines(&output.stderr).join("; ")
            )],
            Err(error) => vec![format!(
                "not known whether a restart would make lists fail: {error:#}"
            )],
        },
    )
}

/// The difference between the versions of the two programs, as a sentence; `None` if they are the same.
pub(super) fn difference() -> Option<String> {
    let shown = match run(&["--version".as_ref()]) {
        Ok(output) => lines(&output.stdout).concat(),
        Err(error) => return Some(format!("the version of criswitchd is not known: {error:#}")),
    };
    (shown != format!("criswitchd {BUILD}")).then(|| {
        format!("the daemon beside this program has another version: {shown}; install both from one release")
    })
}

fn run(arguments: &[&OsStr]) -> anyhow::Result<Output> {
    let mut daemon = process::Command::new(path()?);
    daemon.args(arguments);
    within(LIMIT, daemon)
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text)
        .lines()
        .map(str::to_owned)
        .collect()
}
