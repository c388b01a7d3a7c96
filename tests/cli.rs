//! The commands as a user types them: their output and their exit status.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "support/config_files.rs"]
mod config_files;
#[path = "support/support.rs"]
mod support;

#[path = "cli/accept.rs"]
mod accept;
#[path = "cli/away.rs"]
mod away;
#[path = "cli/check.rs"]
mod check;
#[path = "cli/discover.rs"]
mod discover;
#[path = "cli/discover_places.rs"]
mod discover_places;
#[path = "cli/discover_write.rs"]
mod discover_write;
#[path = "cli/documented.rs"]
mod documented;
#[path = "cli/forget.rs"]
mod forget;
#[path = "cli/hung_files.rs"]
mod hung_files;
#[path = "cli/log.rs"]
mod log;
#[path = "cli/machine.rs"]
mod machine;
#[path = "cli/man.rs"]
mod man;
#[path = "cli/manifests.rs"]
mod manifests;
#[path = "cli/nobody.rs"]
mod nobody;
#[path = "cli/node.rs"]
mod node;
#[path = "cli/node_rancher.rs"]
mod node_rancher;
#[path = "cli/notify.rs"]
mod notify;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/passed.rs"]
mod passed;
#[path = "cli/passed_metrics.rs"]
mod passed_metrics;
#[path = "cli/printed.rs"]
mod printed;
#[path = "cli/probe.rs"]
mod probe;
#[path = "cli/reload.rs"]
mod reload;
#[path = "cli/reload_listen.rs"]
mod reload_listen;
#[path = "cli/reload_odd.rs"]
mod reload_odd;
#[path = "cli/reload_watch.rs"]
mod reload_watch;
#[path = "cli/runtimes.rs"]
mod runtimes;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/serve.rs"]
mod serve;
#[path = "cli/shell.rs"]
mod shell;
#[path = "cli/status.rs"]
mod status;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/told.rs"]
mod told;
#[path = "cli/trust.rs"]
mod trust;
#[path = "cli/unexpected_users.rs"]
mod unexpected_users;
#[path = "cli/unread_log.rs"]
mod unread_log;
#[path = "cli/usage.rs"]
mod usage;
#[path = "cli/who_may_connect.rs"]
mod who_may_connect;

use std::path::Path;
use std::process::Command;

use config_files::ConfigFiles;

/// The exit code and the output of a command that has ended.
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

/// A command that runs the criswitch binary with these arguments.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_criswitch"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Outcome {
    let output = command(arguments).output().unwrap();
    Outcome {
        code: output.status.code().expect("it exits"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command on another thread, so that the tasks of the test, such as a simulated runtime, keep running.
async fn run_beside(arguments: &[&str]) -> Outcome {
    let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn main_file(text: &str) -> ConfigFiles {
    ConfigFiles::of(&[("criswitch.toml", text.as_bytes())])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
