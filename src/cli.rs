//! The commands: what is typed, what is printed and the exit code.
//!
//! The only place that writes to standard output. What a command does is the library's.

mod check;
mod columns;
mod log;
mod notify;
mod probe;
mod routes;
mod serve;

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use criswitch::config::{Config, DEFAULT_PATH, Problems};

/// Something failed while it ran.
const FAILED: u8 = 1;
/// As sysexits' EX_USAGE: the command line is wrong.
const USAGE: u8 = 64;
/// As sysexits' EX_CONFIG: the configuration is wrong.
const CONFIGURATION: u8 = 78;

const EXAMPLES: &str = "\
Examples:
  criswitch check                        every problem of the configuration, or the table as it will run
  criswitch check --probe                the same, and what each backend says of itself
  criswitch check --json | jq .handlers  the same for programs
  criswitch serve                        serve; SIGTERM ends it once calls in flight are done
  crictl -r unix:///run/criswitch/criswitch.sock pods

Exit codes: 0 fine, 1 failed at run time, 64 wrong usage, 78 wrong configuration.";

/// One CRI socket in front of several container runtimes: each pod runs where its RuntimeClass says.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the CRI on the configuration's socket until SIGTERM or SIGINT.
    Serve(File),
    /// Tell every problem of the configuration, or show the table as it will run.
    Check(Check),
    /// Show what becomes of each RPC of the CRI.
    Routes,
}

#[derive(Args)]
struct File {
    /// The configuration; conf.d/*.toml beside it are read too.
    #[arg(long = "config", value_name = "FILE", default_value = DEFAULT_PATH)]
    path: PathBuf,
}

#[derive(Args)]
struct Check {
    #[command(flatten)]
    file: File,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Also ask each backend for its version, its conditions and its handlers.
    #[arg(long)]
    probe: bool,
}

/// Whether a command that ran to its end found everything well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// It has said what is not.
    NotFine,
}

/// Runs the command that the process was started with.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command.run() {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::NotFine) => ExitCode::from(FAILED),
        Err(error) => failed(&error),
    }
}

impl Command {
    fn run(self) -> anyhow::Result<Verdict> {
        match self {
            Command::Serve(file) => serve::serve(Config::load(&file.path)?),
            Command::Check(check) => check.run(),
            Command::Routes => print(&routes::text()?).map(|()| Verdict::Fine),
        }
    }
}

impl Check {
    fn run(self) -> anyhow::Result<Verdict> {
        let config = Config::load(&self.file.path)?;
        let probes = self.probe.then(|| probe::probe(&config)).transpose()?;
        let text = if self.json {
            check::json(&config, probes.as_deref())
        } else {
            check::text(&config, probes.as_deref())
        };
        print(&text?)?;
        match probes {
            Some(probes) if !probe::all_well(&config.table, &probes) => Ok(Verdict::NotFine),
            _ => Ok(Verdict::Fine),
        }
    }
}

/// Writes to standard output; a reader that has seen enough, such as `head`, is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Help and version are answers, all else is a mistake.
fn usage(error: &clap::Error) -> ExitCode {
    error.print().ok();
    if error.use_stderr() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

/// Problems name their places and stand for themselves; any other error says who tells it.
fn failed(error: &anyhow::Error) -> ExitCode {
    let mut stderr = io::stderr().lock();
    if error.is::<Problems>() {
        writeln!(stderr, "{error}").ok();
        return ExitCode::from(CONFIGURATION);
    }
    writeln!(stderr, "criswitch: {error:#}").ok();
    ExitCode::from(FAILED)
}
