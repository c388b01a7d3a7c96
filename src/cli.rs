//! The commands of the program: their arguments, their output and their exit codes.
//!
//! Only this module and its submodules write to standard output. The library never does.

mod bundle;
mod channel;
mod check;
mod columns;
mod complete;
mod consequences;
mod discover;
mod dry_run;
mod explain;
mod features;
mod forget;
mod health;
mod labels;
mod log;
mod man;
mod manifests;
mod node;
mod notify;
mod output;
mod pods;
mod probe;
mod program;
mod reload;
mod routes;
mod running;
mod serve;
mod status;
mod terminal;
mod trial;
mod version;
mod watch;

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use criswitch_config::address::Address;
use criswitch_config::{Config, DEFAULT_PATH, Problems};
use criswitch_platform::service;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use output::{Encoding, ListOutput, Output};
use running::{NotRunning, Running};
use terminal::Shown;

/// The command failed at run time.
const FAILED: u8 = 1;
/// A dry run found changes.
const WOULD_CHANGE: u8 = 2;
/// The command line is wrong (sysexits' EX_USAGE).
const USAGE: u8 = 64;
/// criswitch is not running or not reachable (sysexits' EX_UNAVAILABLE).
const NOT_RUNNING: u8 = 69;
/// The configuration is wrong (sysexits' EX_CONFIG).
const CONFIGURATION: u8 = 78;

/// The environment variable with the default of `--config`.
const CONFIG_VARIABLE: &str = "CRISWITCH_CONFIG";
/// The environment variable with the default of `--socket`.
const SOCKET_VARIABLE: &str = "CRISWITCH_SOCKET";

/// The largest width of help texts in columns. It also applies if the output is not a terminal.
const WIDTH: usize = 80;

// The manual page indents the lines of `EXAMPLES` and does not wrap them, so a line has at most 70 columns.
const EXAMPLES: &str = "\
Examples:
  criswitch discover        print a configuration for this node
  criswitch check           report every mistake, or show the handlers
  criswitch check --probe   also ask each backend
  criswitch check --node    also check kubelet, crictl and sockets
  criswitch check -o json   print the result as JSON
  criswitch node plan       show how this node would be set up
  criswitch serve           serve until SIGTERM, then finish calls
  criswitch reload          apply a changed configuration
  criswitch try --all       start a pod of each handler
  criswitch status --watch  show the status every 2 seconds
  criswitch pods -o wide --backend old
  criswitch explain -f pod.yaml
  criswitch manifests | kubectl apply -f -
  criswitch man | man -l -
  crictl -r unix:///run/criswitch/criswitch.sock pods

Exit codes: 0 success, 1 failure at run time, 2 something would change
(reload --dry-run, node plan), 64 wrong usage, 69 criswitch is not
running, 78 wrong configuration.";

const SERVE_CODES: &str = "\
Exit codes: 0 ended by SIGTERM or SIGINT, 1 failure at run time,
78 the configuration is wrong.";

const STATUS_CODES: &str = "\
Exit codes: 0 serving, 1 any other verdict, 69 criswitch is not running
or not reachable, 78 the file after --config cannot be read.";

const PODS_CODES: &str = "\
Exit codes: 0 shown, 1 criswitch has no such backend or handler,
69 criswitch is not running or not reachable, 78 the file after --config
cannot be read.";

const EXPLAIN_CODES: &str = "\
Examples:
  criswitch explain gvisor         the handler, its features and pods
  criswitch explain default/web    where the pod is, or why it is not
  criswitch explain -f pod.yaml    which handlers can run the pod

Exit codes: 0 explained; with --file: each pod can run in its handler,
1 with --file: a pod cannot run, or a part of the files is not judged;
or criswitch knows no such handler or pod, or the file cannot be read or
has no pod, 69 criswitch is not running or not reachable, 78 the
configuration is wrong.";

const MANIFESTS_CODES: &str = "\
Exit codes: 0 printed, 1 the file after --existing cannot be read or has
no RuntimeClasses, 78 the configuration is wrong.";

const RELOAD_CODES: &str = "\
Exit codes: 0 applied, 1 criswitch uses a different file, or did not
report the outcome, 69 criswitch is not running or not reachable,
78 rejected: the previous configuration stays in use. With --dry-run:
0 nothing would change, 2 something would change, 78 the reload would be
rejected.";

const FORGET_CODES: &str = "\
Exit codes: 0 forgotten, 1 not forgotten: no such backend, it answers or
is connecting, or you did not confirm, 69 criswitch is not running or
not reachable, 78 the file after --config cannot be read.";

const LABELS_CODES: &str = "\
Exit codes: 0 printed or written, 1 the file cannot be written,
69 criswitch is not running or not reachable, 78 the file after --config
cannot be read.";

const CHECK_CODES: &str = "\
Exit codes: 0 no problem, 1 a backend or the machine has a problem
(--probe, --node), 78 the configuration is wrong.";

/// One CRI socket in front of several container runtimes: each pod runs in the runtime of its RuntimeClass.
#[derive(Parser)]
#[command(version = version::text(), after_help = EXAMPLES, max_term_width = WIDTH)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the CRI on the configuration's socket until SIGTERM or SIGINT.
    #[command(after_help = SERVE_CODES)]
    Serve(File),
    /// Show the status of the daemon, its backends and handlers, and the last reload.
    #[command(after_help = STATUS_CODES)]
    Status(status::StatusArguments),
    /// List pods with their handler and backend.
    #[command(after_help = PODS_CODES)]
    Pods(pods::PodsArguments),
    /// Make the daemon reload its configuration, and show what has changed.
    #[command(after_help = RELOAD_CODES)]
    Reload(reload::ReloadArguments),
    /// Forget a backend whose runtime is gone for good, and its pods.
    #[command(after_help = FORGET_CODES)]
    Forget(forget::ForgetArguments),
    /// Start a pod of a handler, look at its isolation, and remove it.
    Try(trial::TryArguments),
    /// Report every problem of the configuration, or show the routing table.
    #[command(after_help = CHECK_CODES)]
    Check(check::CheckArguments),
    /// Show why a pod is where it is, or which handlers can run a pod.
    #[command(after_help = EXPLAIN_CODES)]
    Explain(explain::ExplainArguments),
    /// Print a RuntimeClass for each handler, for kubectl apply -f -.
    #[command(after_help = MANIFESTS_CODES)]
    Manifests(manifests::ManifestsArguments),
    /// Print the labels that describe this node to the scheduler.
    #[command(after_help = LABELS_CODES)]
    Labels(labels::LabelsArguments),
    /// Print a configuration for the runtimes of this node.
    Discover(discover::DiscoverArguments),
    /// Plan how to set up a node for criswitch, set it up, and take it back.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Show how criswitch routes each RPC of the CRI.
    Routes(ListOutput),
    /// Print the completion script for a shell.
    Completions {
        /// The shell that loads the script.
        shell: Shell,
    },
    /// Print the manual page of criswitch, or write the pages of all commands to a directory.
    Man {
        /// The directory for the pages; criswitch creates it if it is missing.
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Write an archive with the facts for a report of a problem, without secrets.
    Bundle(bundle::BundleArguments),
    /// Print the version, the commit, the version of the CRI, and the target.
    Version(Output),
    #[command(flatten)]
    Service(service::Commands),
}

#[derive(Args)]
struct File {
    /// The configuration file; criswitch also reads conf.d/*.toml beside it.
    #[arg(long = "config", value_name = "FILE", default_value = DEFAULT_PATH, env = CONFIG_VARIABLE, hide_env_values = true)]
    path: PathBuf,
}

/// The arguments that select the daemon to call.
#[derive(Args)]
struct Daemon {
    #[command(flatten)]
    file: File,
    /// The socket of the running daemon, if it differs from `listen` in the configuration.
    #[arg(long, value_name = "PATH", value_parser = socket, env = SOCKET_VARIABLE, hide_env_values = true)]
    socket: Option<Address>,
}

/// The result of a command that ran to its end, and its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
enum Verdict {
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

/// Parses the arguments of the process, runs the command and returns its exit code.
pub(crate) fn run() -> ExitCode {
    match complete::answer(Cli::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return usage(&error),
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    let encoding = command.encoding();
    match command.run() {
        Ok(verdict) => ExitCode::from(verdict as u8),
        Err(error) => failed(&error, encoding),
    }
}

impl Command {
    /// The JSON or YAML encoding that the user has selected; `None` for text output.
    fn encoding(&self) -> Option<Encoding> {
        match self {
            Command::Status(status) => status.output.encoding(),
            Command::Pods(pods) => pods.output.encoding(),
            Command::Check(check) => check.output.encoding(),
            Command::Routes(output) => output.encoding(),
            Command::Reload(reload) => reload.output.encoding(),
            Command::Discover(discover) => discover.output.encoding(),
            Command::Try(trial) => trial.output.encoding(),
            Command::Manifests(manifests) => manifests.output.encoding(),
            Command::Labels(labels) => labels.output.encoding(),
            Command::Explain(explain) => explain.output.encoding(),
            Command::Node(command) => command.encoding(),
            Command::Version(output) => output.encoding(),
            _ => None,
        }
    }

    fn run(self) -> anyhow::Result<Verdict> {
        match self {
            Command::Serve(file) => {
                // The path must be absolute, because `criswitch status` shows it to users in other directories.
                let path = std::path::absolute(&file.path).unwrap_or(file.path);
                serve::serve(&path)
            }
            Command::Status(status) => status.run(),
            Command::Pods(pods) => pods.run(),
            Command::Reload(reload) => reload.run(),
            Command::Forget(forget) => forget.run(),
            Command::Try(trial) => trial.run(),
            Command::Check(check) => check.run(),
            Command::Discover(discover) => discover.run(),
            Command::Explain(explain) => explain.run(),
            Command::Manifests(manifests) => manifests.run(),
            Command::Node(command) => command.run(),
            Command::Labels(labels) => labels.run(),
            Command::Routes(output) => print(routes::shown(&output)?),
            Command::Completions { shell } => print(complete::script(shell)?),
            Command::Man { folder: None } => print(man::page(Cli::command())?),
            Command::Man {
                folder: Some(folder),
            } => man::pages(Cli::command(), &folder).map(|()| Verdict::Fine),
            Command::Bundle(bundle) => bundle.run(),
            Command::Version(output) => print(version::shown(&output)?),
            Command::Service(command) => {
                command.run(serve_as_service)?;
                Ok(Verdict::Fine)
            }
        }
    }
}

impl Daemon {
    /// Returns the socket of `--socket`, else `listen` of the configuration. If the file at the default path is
    /// unreadable, returns the default socket.
    fn socket(&self) -> Result<Address, Problems> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        match Config::listen_of(&self.file.path) {
            Err(_) if self.file.path == Path::new(DEFAULT_PATH) => Ok(Address::default_listen()),
            listen => listen,
        }
    }

    /// Connects to the daemon. If the connection fails, the error also lists the problems of the configuration, because
    /// they may be the cause.
    async fn connect(&self) -> anyhow::Result<Running> {
        let connected = Running::connect(&self.socket()?).await;
        connected.map_err(|error| match Config::load(&self.file.path) {
            Err(problems) if self.socket.is_none() => {
                NotRunning(format!("{error}\n{problems}")).into()
            }
            _ => error,
        })
    }
}

/// Parses an argument that is a socket's path.
fn socket(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| format!("{error}; try {}", error.hint()))
}

/// Runs the work of a command on this thread until it ends. Does not wait for work on files that it has left running.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Writes to standard output. A reader that closes the pipe early, such as `head`, is not a failure.
fn print(text: impl Into<Shown>) -> anyhow::Result<Verdict> {
    is_read(&text.into()).map(|_| Verdict::Fine)
}

/// Writes to standard output. Returns false if the reader has closed the pipe.
fn is_read(text: &Shown) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    // Flush, because a prompt does not end with a newline: the user must see the prompt before typing an answer.
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("the output cannot be written"),
    }
}

/// Prints clap's message and returns the exit code: success for help and version, else [`USAGE`].
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        terminal::complain(&error.to_string());
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
        encoding.item(output::failure(error)).and_then(print).ok();
    }
    // Each problem begins with its file and line, so the prefix `criswitch:` is not needed.
    if error.is::<Problems>() {
        terminal::complain(&format!("{error}\n"));
        return ExitCode::from(CONFIGURATION);
    }
    terminal::complain(&failure(error));
    match error.is::<NotRunning>() {
        true => ExitCode::from(NOT_RUNNING),
        false => ExitCode::from(FAILED),
    }
}

/// Serves until the service manager stops the service. The result of the service is an error if it failed; the error is
/// empty if it is in the log already.
fn serve_as_service(path: &Path) -> Result<(), String> {
    match serve::serve(path) {
        Ok(Verdict::Fine) => Ok(()),
        Ok(_) => Err(String::new()),
        Err(error) => Err(failure(&error)),
    }
}

/// The line on standard error about an error that ended a command.
fn failure(error: &anyhow::Error) -> String {
    format!("criswitch: {error:#}\n")
}

fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.is_dir() {
        true => Ok(path),
        false => Err(
            "no such directory; try the directory where the root of a machine is mounted"
                .to_owned(),
        ),
    }
}
