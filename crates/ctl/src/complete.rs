//! `criswitch completions`, and the completions for the shells that load its scripts. criswitch also completes the
//! options of criswitchd.
//!
//! The script calls criswitch with [`VARIABLE`] for each completion, so that names come from the configuration.

use std::env;
use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, CompletionCandidate, Shell};
use criswitch_config::{CONFIG_VARIABLE, Config, DEFAULT_PATH, Table};

use super::daemon;

/// The environment variable with which a script asks for completions.
const VARIABLE: &str = "CRISWITCH_COMPLETE";
const PROGRAM: &str = "criswitch";

/// The completion script of a shell, for criswitch or for the daemon.
pub(super) fn script(shell: Shell, is_for_daemon: bool) -> anyhow::Result<String> {
    let mut script = Vec::new();
    let name = if is_for_daemon { daemon::NAME } else { PROGRAM };
    Shells::builtins()
        .completer(&shell.to_string())
        .context("unknown shell")?
        .write_registration(VARIABLE, name, name, PROGRAM, &mut script)?;
    Ok(String::from_utf8(script)?)
}

/// Prints completions and returns true if a completion script started this process. Otherwise returns false.
///
/// # Errors
/// The value of [`VARIABLE`] is not the name of a known shell.
pub(super) fn answer(command: fn() -> Command) -> Result<bool, clap::Error> {
    // The words of the command line follow `--`.
    let is_for_daemon = env::args_os()
        .skip_while(|word| word != "--")
        .nth(1)
        .is_some_and(|program| Path::new(&program).file_stem() == Some(daemon::NAME.as_ref()));
    let command = if is_for_daemon {
        daemon::command
    } else {
        command
    };
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(env::args_os(), None)
}

pub(super) fn handlers() -> Vec<CompletionCandidate> {
    configured_names(|table| table.handlers.into_iter().map(|row| row.name).collect())
}

pub(super) fn backends() -> Vec<CompletionCandidate> {
    configured_names(|table| table.backends.into_iter().map(|row| row.name).collect())
}

/// The names that `of` finds in the configuration; none if the configuration is not valid. `--config` in the command
/// line that is being completed selects the file, else the environment variable.
fn configured_names(of: fn(Table) -> Vec<String>) -> Vec<CompletionCandidate> {
    let words: Vec<_> = env::args_os().collect();
    let next = words.windows(2).find_map(|pair| match pair {
        [option, value] if option == "--config" => value.to_str(),
        _ => None,
    });
    let joined = words
        .iter()
        .find_map(|word| word.to_str()?.strip_prefix("--config="));
    let variable = env::var(CONFIG_VARIABLE).ok();
    let named = next.or(joined).or(variable.as_deref());
    Config::load(Path::new(named.unwrap_or(DEFAULT_PATH)))
        .map(|config| of(config.table))
        .unwrap_or_default()
        .into_iter()
        .map(CompletionCandidate::new)
        .collect()
}
