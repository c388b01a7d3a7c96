//! criswitchd: the daemon. It serves the CRI until SIGTERM or SIGINT. The commands are in the program criswitch.

mod serve;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use criswitch_config::exit::{self, CONFIGURATION, FAILED, USAGE};
use criswitch_config::options::{DAEMON_CODES, OPTIONS};
use criswitch_config::{CONFIG_VARIABLE, DEFAULT_PATH};
use criswitch_platform::service;
use criswitch_version::BUILD;
use lexopt::Arg::{Long, Short};

use serve::NotServed;

/// The work that the arguments ask for.
enum Wish {
    Serve,
    /// Serve as a service of Windows.
    Service,
    Check,
    Version,
    Help,
}

fn main() -> ExitCode {
    let (wish, path) = match wish() {
        Ok(wish) => wish,
        Err(error) => {
            return said(
                &format!("criswitchd: {error}; try criswitchd --help"),
                USAGE,
            );
        }
    };
    let ended = match wish {
        Wish::Serve => serve::serve(&path),
        Wish::Service => service::run(path, serve::serve_as_service)
            .map_err(|error| NotServed::Start(error.into())),
        Wish::Check => serve::check::check(&path)
            .map_err(NotServed::Configuration)
            .and_then(print),
        Wish::Version => print(format!("criswitchd {BUILD}\n")),
        Wish::Help => print(help()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(NotServed::Configuration(problems)) => said(&problems.to_string(), CONFIGURATION),
        Err(NotServed::Start(error)) => said(&format!("criswitchd: {error:#}"), FAILED),
        Err(NotServed::Logged) => ExitCode::from(FAILED),
    }
}

/// Reads the arguments: the wish, and the path of the configuration. The path is absolute, because `criswitch status`
/// shows it to users in other directories.
fn wish() -> Result<(Wish, PathBuf), lexopt::Error> {
    let mut arguments = lexopt::Parser::from_env();
    let mut path = std::env::var_os(CONFIG_VARIABLE)
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let mut wish = Wish::Serve;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("config") => path = arguments.value()?,
            Long("check") => wish = Wish::Check,
            Long("service") if service::HELP.is_some() => wish = Wish::Service,
            Long("version") | Short('V') => return Ok((Wish::Version, path.into())),
            Long("help") | Short('h') => return Ok((Wish::Help, path.into())),
            other => return Err(other.unexpected()),
        }
    }
    Ok((wish, std::path::absolute(&path).unwrap_or(path.into())))
}

fn help() -> String {
    let options = OPTIONS.map(|(name, value, help)| option(name, value, help));
    let service = service::HELP.map(|help| option("service", "", help));
    format!(
        "Serve the CRI on the configuration's socket until SIGTERM or SIGINT, then\n\
         finish the calls in flight. The program criswitch has the commands.\n\n\
         Usage: criswitchd [OPTIONS]\n\nOptions:\n{}{}\n\
         Default of --config: {CONFIG_VARIABLE} in the environment, else\n{DEFAULT_PATH}.\n\n\
         {}\n",
        options.concat(),
        service.unwrap_or_default(),
        exit::list(&DAEMON_CODES)
    )
}

fn option(name: &str, value: &str, help: &str) -> String {
    let name = format!("--{name} {value}");
    format!("  {name:<15}{help}\n")
}

fn print(text: String) -> Result<(), NotServed> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| NotServed::Start(error.into()))
}

/// Prints a line to standard error, and returns the exit code.
fn said(line: &str, code: u8) -> ExitCode {
    // An error is ignored, because the exit code shows the failure too.
    writeln!(io::stderr(), "{line}").ok();
    ExitCode::from(code)
}
