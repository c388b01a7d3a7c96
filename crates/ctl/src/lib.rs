//! The commands of the program: their arguments, their output and their exit codes.
//!
//! Commands print through [`terminal`]. The library of the daemon never writes to standard output.

mod bundle;
mod check;
mod complete;
mod consequences;
mod daemon;
mod discover;
mod dry_run;
mod exit_codes;
mod explain;
mod features;
mod forget;
mod health;
mod labels;
mod man;
mod manifests;
mod pods;
mod reload;
mod routes;
mod status;
mod trial;
mod version;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use criswitch_client::exit::{CONFIGURATION, FAILED, NOT_RUNNING, USAGE, Verdict, failure};
use criswitch_client::output::{Encoding, ListOutput, Output};
use criswitch_client::running::NotRunning;
use criswitch_client::terminal::{self, print};
use criswitch_config::Problems;
use criswitch_node::NodeCommand;

/// The largest width of help texts in columns. It also applies if the output is not a terminal.
const WIDTH: usize = 80;

// The manual page indents the lines of `EXAMPLES` and does not wrap them, so a line has at most 70 columns.
const EXAMPLES: &str = include_str!("help/criswitch.txt").trim_ascii_end();

const EXPLAIN_EXAMPLES: &str = include_str!("help/explain.txt").trim_ascii_end();

/// One CRI socket in front of several container runtimes: each pod runs in the runtime of its RuntimeClass.
#[derive(Parser)]
#[command(name = "criswitch", version = version::text(), after_help = EXAMPLES, max_term_width = WIDTH, disable_version_flag = true)]
struct Cli {
    /// Print the version.
    #[arg(long = "version", short = 'V', short_alias = 'v', action = ArgAction::Version)]
    _version: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print how to start the daemon, criswitchd.
    #[command(hide = true)]
    Serve {
        /// Any arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
    /// Show the status of the daemon, its backends and handlers, and the last reload.
    Status(status::StatusArguments),
    /// List pods with their handler and backend.
    Pods(pods::PodsArguments),
    /// Make the daemon reload its configuration, and show what has changed.
    Reload(reload::ReloadArguments),
    /// Forget a backend whose runtime is gone for good, and its pods.
    Forget(forget::ForgetArguments),
    /// Start a test pod of a handler, check its isolation, and remove it.
    Try(trial::TryArguments),
    /// Check the configuration, and show its routing table; with options, also check backends and this node.
    Check(check::CheckArguments),
    /// Explain a handler, why a pod runs on its backend, or which handlers can run a pod.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(explain::ExplainArguments),
    /// Print a RuntimeClass for each handler, for kubectl apply -f -.
    Manifests(manifests::ManifestsArguments),
    /// Print the labels that describe this node to the scheduler.
    Labels(labels::LabelsArguments),
    /// Print a configuration for the runtimes of this node.
    Discover(discover::DiscoverArguments),
    /// Plan, apply and undo the setup of a node for criswitch.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show how criswitch routes each RPC of the CRI.
    Routes(ListOutput),
    /// Print the completion script for a shell.
    Completions {
        /// The shell that loads the script.
        shell: Shell,
        /// Print the script for criswitchd.
        #[arg(long)]
        daemon: bool,
    },
    /// Print the manual page of criswitch, or write the pages of all commands to a directory.
    Man {
        /// The directory for the pages; criswitch creates it if it is missing.
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Write an archive for a problem report, without secrets.
    Bundle(bundle::BundleArguments),
    /// Print the version, the commit, the version of the CRI, and the target.
    Version(Output),
}

/// Parses the arguments of the process, runs the command and returns its exit code.
pub fn run() -> ExitCode {
    match complete::answer(Cli::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return usage(&error),
    }
    let parsed = exit_codes::add_to_help(Cli::command())
        .try_get_matches()
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, Encoding::of(&matches))));
    let (cli, encoding) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error),
    };
    match cli.command.run() {
        Ok(verdict) => ExitCode::from(verdict as u8),
        Err(error) => failed(&error, encoding),
    }
}

impl Command {
    fn run(self) -> anyhow::Result<Verdict> {
        match self {
            Command::Serve { .. } => Err(daemon::serves()),
            Command::Status(status) => status.run(),
            Command::Pods(pods) => pods.run(),
            Command::Reload(reload) => reload.run(),
            Command::Forget(forget) => forget.run(),
            Command::Try(trial) => trial.run(),
            Command::Check(check) => check.run(),
            Command::Discover(discover) => discover.run(),
            Command::Explain(explain) => explain.run(),
            Command::Manifests(manifests) => manifests.run(),
            Command::Node(command) => command.run(discover::configuration),
            Command::Labels(labels) => labels.run(),
            Command::Routes(output) => print(routes::shown(&output)?),
            Command::Completions { shell, daemon } => print(complete::script(shell, daemon)?),
            Command::Man { folder } => man::run(Cli::command(), folder.as_deref()),
            Command::Bundle(bundle) => bundle.run(),
            Command::Version(output) => print(version::shown(&output)?),
        }
    }
}

/// Prints clap's message and returns the exit code: success for help and version, else [`USAGE`].
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        terminal::print_stderr(&error.to_string());
        return ExitCode::from(USAGE);
    }
    match print(error.to_string()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failed(&error, None),
    }
}

/// Prints the error that ended a command to standard error. With `-o json` or `-o yaml`, also prints an object with the
/// error to standard output. Returns the exit code: [`CONFIGURATION`], [`NOT_RUNNING`], else [`FAILED`].
fn failed(error: &anyhow::Error, encoding: Option<Encoding>) -> ExitCode {
    if let Some(encoding) = encoding {
        encoding
            .item(criswitch_client::output::failure(error))
            .and_then(print)
            .ok();
    }
    // Each problem begins with its file and line, so the prefix `criswitch:` is not needed.
    if error.is::<Problems>() {
        terminal::print_stderr(&format!("{error}\n"));
        return ExitCode::from(CONFIGURATION);
    }
    terminal::print_stderr(&failure(error));
    if error.is::<NotRunning>() {
        ExitCode::from(NOT_RUNNING)
    } else {
        ExitCode::from(FAILED)
    }
}
