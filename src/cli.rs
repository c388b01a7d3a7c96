//! The commands: what is typed, what is printed and the exit code.
//!
//! The only place that writes to standard output. What a command does is the library's.

mod channel;
mod check;
mod columns;
mod discover;
mod features;
mod forget;
mod health;
mod log;
mod manifests;
mod node;
mod notify;
mod pods;
mod probe;
mod reload;
mod routes;
mod running;
mod serve;
mod shell;
mod status;
mod terminal;

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use criswitch::config::address::Address;
use criswitch::config::{Config, DEFAULT_LISTEN, DEFAULT_PATH, Problems};
use running::Running;
use terminal::Shown;

/// Something failed while it ran.
const FAILED: u8 = 1;
/// As sysexits' EX_USAGE: the command line is wrong.
const USAGE: u8 = 64;
/// As sysexits' EX_UNAVAILABLE: criswitch does not run, or cannot be asked.
const NOT_RUNNING: u8 = 69;
/// As sysexits' EX_CONFIG: the configuration is wrong.
const CONFIGURATION: u8 = 78;

/// Of help, also where a terminal has more or there is none.
const WIDTH: usize = 80;

// At most 70 columns: the manual shows these lines as they are, indented.
const EXAMPLES: &str = "\
Examples:
  criswitch discover        print a configuration for this node
  criswitch check           report every mistake, or show the table
  criswitch check --probe   also ask each backend
  criswitch check --node    also check kubelet, crictl and sockets
  criswitch check --json    the same as JSON
  criswitch serve           serve until SIGTERM, then finish calls
  criswitch reload          apply a changed configuration
  criswitch status --watch  show the status every 2 seconds
  criswitch pods --backend old
  criswitch manifests | kubectl apply -f -
  criswitch man | man -l -
  crictl -r unix:///run/criswitch/criswitch.sock pods

Exit codes: 0 success, 1 failure at run time, 64 wrong usage,
78 wrong configuration.";

const STATUS_CODES: &str = "\
Exit codes: 0 serving, 1 degraded or lists failing, 69 criswitch is not
running or not reachable, 78 the file after --config cannot be read.";

const PODS_CODES: &str = "\
Exit codes: 0 shown, 1 criswitch is not reachable or has no such backend
or handler, 78 the file after --config cannot be read.";

const MANIFESTS_CODES: &str = "\
Exit codes: 0 printed, 78 the configuration is wrong.";

const RELOAD_CODES: &str = "\
Exit codes: 0 applied, 1 criswitch is not reachable or did not report the
outcome, 78 rejected: the previous configuration stays in use.";

const FORGET_CODES: &str = "\
Exit codes: 0 forgotten, 1 not forgotten: no such backend, it answers, or
you did not confirm, 78 the file after --config cannot be read.";

const CHECK_CODES: &str = "\
Exit codes: 0 no problem, 78 the configuration is wrong; with --probe or
--node 1 if a backend or the machine has a problem.";

/// One CRI socket in front of several container runtimes: each pod runs where its RuntimeClass says.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = WIDTH)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the CRI on the configuration's socket until SIGTERM or SIGINT.
    Serve(File),
    /// Show the status of the daemon, its backends and handlers, and the last reload.
    #[command(after_help = STATUS_CODES)]
    Status(Status),
    /// List pods with their handler and backend.
    #[command(after_help = PODS_CODES)]
    Pods(Pods),
    /// Make the daemon reload its configuration, and show what has changed.
    #[command(after_help = RELOAD_CODES)]
    Reload(Reload),
    /// Forget a backend whose runtime is gone for good, and its pods.
    #[command(after_help = FORGET_CODES)]
    Forget(Forget),
    /// Report every problem of the configuration, or show the routing table.
    #[command(after_help = CHECK_CODES)]
    Check(Check),
    /// Print a RuntimeClass for each handler, for kubectl apply -f -.
    #[command(after_help = MANIFESTS_CODES)]
    Manifests(Manifests),
    /// Print a configuration for the runtimes of this node.
    Discover(discover::Discover),
    /// Show how criswitch routes each RPC of the CRI.
    Routes,
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
}

#[derive(Args)]
struct File {
    /// The configuration file; criswitch also reads conf.d/*.toml beside it.
    #[arg(long = "config", value_name = "FILE", default_value = DEFAULT_PATH)]
    path: PathBuf,
}

/// Which daemon is asked.
#[derive(Args)]
struct Daemon {
    #[command(flatten)]
    file: File,
    /// The socket of the running daemon, if it differs from `listen` in the configuration.
    #[arg(long, value_name = "PATH", value_parser = socket)]
    socket: Option<Address>,
}

#[derive(Args)]
struct Check {
    #[command(flatten)]
    file: File,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Also ask each backend for its version, conditions and handlers.
    #[arg(long)]
    probe: bool,
    /// Also check this machine: the settings of the kubelet and crictl, and the sockets; with --probe also cgroup
    /// drivers.
    #[arg(long)]
    node: bool,
    /// Check the machine whose root is this directory, for example a mounted image. --config is not relative to it.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node", value_parser = directory)]
    root: PathBuf,
}

#[derive(Args)]
struct Status {
    #[command(flatten)]
    daemon: Daemon,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Show the status every 2 seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
}

#[derive(Args)]
struct Pods {
    #[command(flatten)]
    daemon: Daemon,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Only pods of this handler.
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    /// Only pods of this backend.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Only pods of this Kubernetes namespace.
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
}

#[derive(Args)]
struct Reload {
    #[command(flatten)]
    daemon: Daemon,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Forget {
    #[command(flatten)]
    daemon: Daemon,
    /// The name of the backend in `criswitch status`.
    backend: String,
    /// Forget the backend without a confirmation.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct Manifests {
    #[command(flatten)]
    file: File,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// Whether a command that ran to its end found everything well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// It has said what is not.
    NotFine,
    /// It has said why criswitch cannot be asked.
    NotRunning,
    /// It has told every problem of the configuration.
    WrongConfiguration,
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
        Ok(Verdict::NotRunning) => ExitCode::from(NOT_RUNNING),
        Ok(Verdict::WrongConfiguration) => ExitCode::from(CONFIGURATION),
        Err(error) => failed(&error),
    }
}

impl Command {
    fn run(self) -> anyhow::Result<Verdict> {
        match self {
            Command::Serve(file) => {
                // Status tells it to those who stand elsewhere.
                let path = std::path::absolute(&file.path).unwrap_or(file.path);
                serve::serve(&path)
            }
            Command::Status(status) => status.run(),
            Command::Pods(pods) => pods.run(),
            Command::Reload(reload) => reload.run(),
            Command::Forget(forget) => forget.run(),
            Command::Check(check) => check.run(),
            Command::Discover(discover) => discover.run(),
            Command::Manifests(manifests) => manifests.run(),
            Command::Routes => print(routes::text()?),
            Command::Completions { shell } => print(shell::completions(shell, Cli::command())?),
            Command::Man { folder: None } => print(shell::page(Cli::command())?),
            Command::Man {
                folder: Some(folder),
            } => shell::pages(Cli::command(), &folder).map(|()| Verdict::Fine),
        }
    }
}

impl Daemon {
    /// Where it serves. Only a file that nobody asked for may be missing.
    fn socket(&self) -> Result<Address, Problems> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        match Config::listen_of(&self.file.path) {
            Err(_) if self.file.path == Path::new(DEFAULT_PATH) => {
                Ok(Address::Unix(DEFAULT_LISTEN.into()))
            }
            listen => listen,
        }
    }

    /// Connects to it; where nobody is, the file may tell why, or that it says another socket.
    async fn connect(&self) -> anyhow::Result<Running> {
        let connected = Running::connect(&self.socket()?).await;
        connected.map_err(|error| match Config::load(&self.file.path) {
            Err(problems) if self.socket.is_none() => anyhow::anyhow!("{error}\n{problems}"),
            _ => error,
        })
    }
}

impl Check {
    fn run(self) -> anyhow::Result<Verdict> {
        let config = match Config::load(&self.file.path) {
            Err(problems) if self.json => {
                print(check::problems_json(&problems)?)?;
                return Err(problems.into());
            }
            Err(problems) => {
                terminal::complain(&check::problems_text(&problems));
                return Ok(Verdict::WrongConfiguration);
            }
            Ok(config) => config,
        };
        let probes = self.probe.then(|| probe::probe(&config)).transpose()?;
        let probes = probes.as_deref();
        let node = self.node.then(|| node::look(&config, probes, &self.root));
        let text = if self.json {
            check::json(&config, probes, node.as_ref())
        } else {
            check::text(&config, probes, node.as_ref())
        };
        print(text?)?;
        match check::is_fine(&config, probes, node.as_ref()) {
            true => Ok(Verdict::Fine),
            false => Ok(Verdict::NotFine),
        }
    }
}

impl Manifests {
    fn run(self) -> anyhow::Result<Verdict> {
        let table = Config::load(&self.file.path)?.table;
        let text = if self.json {
            manifests::json(&table)
        } else {
            manifests::yaml(&table)
        };
        print(text?)?;
        // Whoever reads the manifests does not read this.
        terminal::complain(&manifests::left_out(&table));
        Ok(Verdict::Fine)
    }
}

/// An argument that is a socket's path.
fn socket(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| format!("{error}; try {}", error.hint()))
}

/// Writes to standard output; a reader that has seen enough, such as `head`, is no failure.
fn print(text: impl Into<Shown>) -> anyhow::Result<Verdict> {
    is_read(&text.into()).map(|_| Verdict::Fine)
}

/// Writes to standard output; false if nobody reads there any more.
fn is_read(text: &Shown) -> anyhow::Result<bool> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Help and version are answers, all else is a mistake.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        terminal::complain(&error.to_string());
        return ExitCode::from(USAGE);
    }
    error.print().ok();
    ExitCode::SUCCESS
}

/// Problems name their places and stand for themselves; any other error says who tells it.
fn failed(error: &anyhow::Error) -> ExitCode {
    if error.is::<Problems>() {
        terminal::complain(&format!("{error}\n"));
        return ExitCode::from(CONFIGURATION);
    }
    terminal::complain(&failure(error));
    ExitCode::from(FAILED)
}

/// The line of an error that ends a command.
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
