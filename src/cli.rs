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

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::{ArgValueCandidates, Shell};
use criswitch::config::address::Address;
use criswitch::config::{Config, DEFAULT_PATH, Problems, keys};
use criswitch::platform::service;
use manifests::Objects;
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
    Status(StatusArguments),
    /// List pods with their handler and backend.
    #[command(after_help = PODS_CODES)]
    Pods(PodsArguments),
    /// Make the daemon reload its configuration, and show what has changed.
    #[command(after_help = RELOAD_CODES)]
    Reload(ReloadArguments),
    /// Forget a backend whose runtime is gone for good, and its pods.
    #[command(after_help = FORGET_CODES)]
    Forget(ForgetArguments),
    /// Start a pod of a handler, look at its isolation, and remove it.
    Try(trial::TryArguments),
    /// Report every problem of the configuration, or show the routing table.
    #[command(after_help = CHECK_CODES)]
    Check(CheckArguments),
    /// Show why a pod is where it is, or which handlers can run a pod.
    #[command(after_help = EXPLAIN_CODES)]
    Explain(explain::ExplainArguments),
    /// Print a RuntimeClass for each handler, for kubectl apply -f -.
    #[command(after_help = MANIFESTS_CODES)]
    Manifests(ManifestsArguments),
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
    #[arg(long, value_name = "PATH", value_parser = socket, env = "CRISWITCH_SOCKET", hide_env_values = true)]
    socket: Option<Address>,
}

#[derive(Args)]
struct CheckArguments {
    #[command(flatten)]
    file: File,
    #[command(flatten)]
    output: ListOutput,
    /// Print the JSON Schema of the configuration, for editors, and check nothing.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Also ask each backend for its version, conditions and handlers.
    #[arg(long)]
    probe: bool,
    /// Also check this machine: the settings of the kubelet and crictl, and the sockets; with --probe also cgroup
    /// drivers.
    #[arg(long)]
    node: bool,
    /// Check the machine whose root is this directory, for example a mounted image. --config is a path of this machine, not
    /// below DIR.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node", value_parser = directory)]
    root: PathBuf,
}

#[derive(Args)]
struct StatusArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: ListOutput,
    /// Show the status every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

#[derive(Args)]
struct PodsArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: ListOutput,
    /// Print only the ids, one per line.
    #[arg(long, short, conflicts_with_all = ["output", "json"])]
    quiet: bool,
    /// Show the pods every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
    /// Show only pods of this handler.
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::handlers))]
    handler: Option<String>,
    /// Show only pods of this backend.
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::backends))]
    backend: Option<String>,
    /// Show only pods of this Kubernetes namespace.
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
}

#[derive(Args)]
struct ReloadArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: Output,
    /// Show what a reload would change and whether that can be undone, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
struct ForgetArguments {
    #[command(flatten)]
    daemon: Daemon,
    /// The name of the backend in `criswitch status`.
    #[arg(add = ArgValueCandidates::new(complete::backends))]
    backend: String,
    /// Forget the backend without showing its pods first, and without a confirmation.
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct ManifestsArguments {
    #[command(flatten)]
    file: File,
    #[command(flatten)]
    output: Output,
    /// Print admission policies instead: the API server then rejects a pod that the runtime of its RuntimeClass cannot
    /// run.
    #[arg(long)]
    policy: bool,
    /// Warn of RuntimeClasses that the cluster has with a different handler. FILE has the output of kubectl get
    /// runtimeclasses -o yaml; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    existing: Option<PathBuf>,
    /// The same, and ask the cluster with kubectl, or with this program.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "kubectl")]
    #[arg(conflicts_with_all = ["policy", "existing"])]
    kubectl: Option<PathBuf>,
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

impl CheckArguments {
    fn run(self) -> anyhow::Result<Verdict> {
        if self.schema {
            return print(format!("{:#}\n", keys::schema()));
        }
        let config = match Config::load(&self.file.path) {
            Err(problems) if self.output.encoding().is_none() => {
                terminal::complain(&check::problems_text(&problems));
                return Ok(Verdict::WrongConfiguration);
            }
            Err(problems) => return Err(problems.into()),
            Ok(config) => config,
        };
        let probes = self.probe.then(|| probe::probe(&config)).transpose()?;
        let probes = probes.as_deref();
        let node = self.node.then(|| node::look(&config, probes, &self.root));
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(check::json(&config, probes, node.as_ref()))?,
            None if self.output.is_names() => {
                let problems = check::problems(&config, probes, node.as_ref());
                let lines = problems
                    .iter()
                    .filter_map(|problem| problem["what"].as_str());
                terminal::complain(&output::names(lines));
                check::names(&config).into()
            }
            None => check::text(&config, probes, node.as_ref(), self.output.is_wide())?.into(),
        })?;
        match check::faults(&config, probes, node.as_ref()) {
            0 => Ok(Verdict::Fine),
            _ => Ok(Verdict::NotFine),
        }
    }
}

impl ManifestsArguments {
    fn run(self) -> anyhow::Result<Verdict> {
        let config = Config::load(&self.file.path)?;
        let objects = match self.policy {
            true => Objects::Policies,
            false => Objects::RuntimeClasses,
        };
        // If the classes of the cluster are unknown, `kubectl apply` must not read objects either.
        let clashes = match (&self.existing, &self.kubectl) {
            (Some(file), _) => manifests::clashes_in(&config, file)?,
            (None, Some(kubectl)) => manifests::clashes_at(&config, kubectl)?,
            (None, None) => String::new(),
        };
        print(match self.output.encoding() {
            Some(Encoding::Json) => objects.json(&config),
            _ => objects.yaml(&config)?,
        })?;
        // `kubectl apply -f -` reads standard output, so warnings go to standard error.
        terminal::complain(&(clashes + &objects.omitted(&config)));
        Ok(Verdict::Fine)
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
