//! The commands as a user types them: their output and their exit status.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]
#![cfg_attr(
    windows,
    allow(dead_code, unused_imports, reason = "some tests are for Unix only")
)]

#[path = "cli/backend_unreachable.rs"]
mod backend_unreachable;
#[cfg(unix)] // The journal exists on Linux only.
#[path = "cli/bundle.rs"]
mod bundle;
#[cfg(unix)] // Windows has no cgroups.
#[path = "cli/cgroups.rs"]
mod cgroups;
#[path = "cli/check.rs"]
mod check;
#[cfg(unix)] // Windows has no NRI, and no process serves a pipe by its path.
#[path = "cli/collisions.rs"]
mod collisions;
#[cfg(unix)] // The tests have a directory of sockets, but pipes are in no directory.
#[path = "cli/consequences.rs"]
mod consequences;
#[path = "cli/control_characters.rs"]
mod control_characters;
#[cfg(unix)] // The tests have a directory of sockets, but pipes are in no directory.
#[path = "cli/discover.rs"]
mod discover;
#[cfg(unix)] // The tests have a directory of sockets, but pipes are in no directory.
#[path = "cli/discover_places.rs"]
mod discover_places;
#[cfg(unix)] // The tests have a directory of sockets, but pipes are in no directory.
#[path = "cli/discover_write.rs"]
mod discover_write;
#[path = "cli/documented.rs"]
mod documented;
#[path = "cli/everyday.rs"]
mod everyday;
#[path = "cli/explain.rs"]
mod explain;
#[path = "cli/explain_files.rs"]
mod explain_files;
#[path = "cli/explain_manifests.rs"]
mod explain_manifests;
#[path = "cli/explain_objects.rs"]
mod explain_objects;
#[path = "cli/explain_running.rs"]
mod explain_running;
#[path = "cli/explain_virtual_machines.rs"]
mod explain_virtual_machines;
#[cfg(unix)] // node-feature-discovery labels Linux nodes.
#[path = "cli/facts.rs"]
mod facts;
#[path = "cli/forget.rs"]
mod forget;
#[cfg(unix)] // FUSE exists on Linux only.
#[path = "cli/hanging_file_system.rs"]
mod hanging_file_system;
#[cfg(unix)] // The plug-in is a shell script.
#[path = "cli/kubectl.rs"]
mod kubectl;
#[cfg(unix)] // node-feature-discovery labels Linux nodes.
#[path = "cli/labels.rs"]
mod labels;
#[path = "cli/log.rs"]
mod log;
#[path = "cli/logged_daemon.rs"]
mod logged_daemon;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/machine.rs"]
mod machine;
#[cfg(unix)] // Windows has no manual pages.
#[path = "cli/man.rs"]
mod man;
#[path = "cli/manifests.rs"]
mod manifests;
#[path = "cli/manifests_policy.rs"]
mod manifests_policy;
#[path = "cli/no_daemon.rs"]
mod no_daemon;
#[cfg(unix)] // A shell sets the limit of open files.
#[path = "cli/no_descriptors.rs"]
mod no_descriptors;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/node.rs"]
mod node;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_apply.rs"]
mod node_apply;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_edits.rs"]
mod node_edits;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_fleet.rs"]
mod node_fleet;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_follow.rs"]
mod node_follow;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/node_kubelet_files.rs"]
mod node_kubelet_files;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/node_layouts.rs"]
mod node_layouts;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_plan.rs"]
mod node_plan;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_plan_layouts.rs"]
mod node_plan_layouts;
#[cfg(unix)] // node-problem-detector runs the script on Linux.
#[path = "cli/node_problem_detector.rs"]
mod node_problem_detector;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/node_rancher.rs"]
mod node_rancher;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_run.rs"]
mod node_run;
#[cfg(unix)] // `criswitch node` is for Linux nodes.
#[path = "cli/node_sockets.rs"]
mod node_sockets;
#[cfg(unix)] // `check --node` is for Linux nodes.
#[path = "cli/node_units.rs"]
mod node_units;
#[cfg(unix)] // systemd runs on Linux only.
#[path = "cli/notify.rs"]
mod notify;
#[path = "cli/output.rs"]
mod output;
#[cfg(unix)] // Windows has no socket activation.
#[path = "cli/passed.rs"]
mod passed;
#[cfg(unix)] // Windows has no socket activation.
#[path = "cli/passed_metrics.rs"]
mod passed_metrics;
#[path = "cli/probe.rs"]
mod probe;
#[path = "cli/processes.rs"]
mod processes;
#[path = "cli/reload.rs"]
mod reload;
#[path = "cli/reload_dry_run.rs"]
mod reload_dry_run;
#[path = "cli/reload_listen.rs"]
mod reload_listen;
#[cfg(unix)] // The tests need symbolic links and file modes of Unix.
#[path = "cli/reload_unusable_files.rs"]
mod reload_unusable_files;
#[cfg(unix)] // The test fills a pipe with non-blocking writes of Unix.
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
#[cfg(unix)] // script(1), which makes the terminal, is a Unix program.
#[path = "cli/terminal.rs"]
mod terminal;
#[cfg(unix)] // `criswitch try` is tested on Linux only.
#[path = "cli/trial.rs"]
mod trial;
#[cfg(unix)] // `criswitch try` is tested on Linux only.
#[path = "cli/trial_images.rs"]
mod trial_images;
#[cfg(unix)] // Windows has no cgroups.
#[path = "cli/trial_measure.rs"]
mod trial_measure;
#[cfg(unix)] // Windows has no file modes.
#[path = "cli/trust.rs"]
mod trust;
#[cfg(unix)] // Windows has no numeric user ids.
#[path = "cli/unexpected_users.rs"]
mod unexpected_users;
#[cfg(unix)] // Windows has no signals.
#[path = "cli/unread_log.rs"]
mod unread_log;
#[path = "cli/usage.rs"]
mod usage;
#[cfg(unix)] // Windows has no numeric user ids.
#[path = "cli/who_may_connect.rs"]
mod who_may_connect;
#[cfg(windows)]
#[path = "cli/windows.rs"]
mod windows;

use std::path::Path;
use std::process::Command;

use criswitch_rig as support;
use support::{ConfigFiles, portable};

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

/// The daemon with this configuration.
fn daemon(config: &str) -> Command {
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_criswitchd"));
    daemon.args(["--config", config]);
    daemon
}

/// Runs the binary. On Windows, the addresses of pipes in the output become Unix socket paths, except in JSON.
fn run(arguments: &[&str]) -> Outcome {
    // The replacement does not apply to JSON, because a Windows path in a JSON string has escapes.
    let is_json = arguments.iter().any(|text| text.ends_with("json"));
    ended(&mut command(arguments), is_json)
}

/// Runs a command until it ends. The addresses in the output are replaced as in [`run`], except on the standard output
/// if that is JSON.
fn ended(command: &mut Command, is_json: bool) -> Outcome {
    let output = command.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    Outcome {
        code: output.status.code().expect("it exits"),
        stdout: if is_json { stdout } else { portable(&stdout) },
        stderr: portable(&stderr),
    }
}

/// Runs a command on another thread, so that the tasks of the test, such as a simulated runtime, keep running.
async fn run_beside(arguments: &[&str]) -> Outcome {
    let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Like [`run_beside`], for any program.
async fn beside(mut command: Command) -> Outcome {
    let run = move || ended(&mut command, false);
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn main_file(text: &str) -> ConfigFiles {
    ConfigFiles::of(&[("criswitch.toml", text.as_bytes())])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
