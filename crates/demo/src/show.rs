//! The output of the demo, at most 80 columns wide.

use criswitch_advice::verdict::NodeVerdict;
use criswitch_cri::codec::cri;
use criswitch_rig::{IMAGE, Rig};
use tonic::Status;

use super::Ran;

const COLUMNS: usize = 80;

pub(super) fn opening(rig: &Rig, table: &str) {
    println!("criswitch: one CRI socket in front of several container runtimes");
    heading("criswitch, and three simulated runtimes behind it");
    println!("  DIR is {}", rig.directory().display());
    println!("  criswitch listens on DIR/criswitch.sock, with this configuration:");
    println!();
    for line in table.lines() {
        println!("{}", format!("    {line}").trim_end());
    }
}

pub(super) fn who_ran_what(ran: &[Ran]) {
    heading("A pod and a container on each handler, and the runtime of each");
    line(["ASKED FOR", "POD", "CONTAINER", "RUN BY", "AS"]);
    for one in ran {
        line([
            match one.row.asked {
                "" => "(nothing)",
                handler => handler,
            },
            short_id(&one.pod),
            short_id(&one.container),
            one.row.runtime,
            one.row.known_as,
        ]);
    }
}

pub(super) fn lists(pods: &[cri::PodSandbox], containers: &[cri::Container]) {
    heading("The pods, in one list through criswitch");
    self::pods(pods);
    heading("The containers, in one list through criswitch");
    line(["CONTAINER", "NAME", "STATE", "POD", ""]);
    for container in containers {
        line([
            short_id(&container.id),
            container.metadata.as_ref().map_or("", |m| &m.name),
            container
                .state()
                .as_str_name()
                .trim_start_matches("CONTAINER_"),
            short_id(&container.pod_sandbox_id),
            "",
        ]);
    }
}

pub(super) fn rejection(rejection: &Status) {
    heading("A pod that asks for \"firecracker\", which has no backend: rejected");
    paragraph(&format!("{:?}: {}", rejection.code(), rejection.message()));
}

pub(super) fn stopped(verdict: &NodeVerdict, pods: &[cri::PodSandbox]) {
    heading("The runtime kata is killed: the list stays complete");
    self::pods(pods);
    heading("What criswitch status says");
    status(verdict);
}

pub(super) fn meanwhile(pod: &str, why: &Status) {
    heading("Other runtimes start pods; a pod of kata fails at once");
    line(["gvisor", short_id(pod), "started", "", ""]);
    paragraph(&format!("kata: {:?}: {}", why.code(), why.message()));
}

pub(super) fn healed(verdict: &NodeVerdict) {
    heading("kata is started again");
    status(verdict);
}

pub(super) fn status(verdict: &NodeVerdict) {
    paragraph(&format!(
        "{}: {}",
        verdict.level.as_ref(),
        verdict.reasons.join("; ")
    ));
}

pub(super) fn commands(rig: &Rig) {
    heading("Now you: in another terminal");
    println!("  D={}", rig.directory().display());
    println!("  S=unix://$D/criswitch.sock");
    println!();
    if let Ok(demo) = std::env::current_exe() {
        println!("  {} status $D", demo.display());
        println!();
    }
    for command in [
        "info",
        "pods",
        "ps",
        "runp --runtime gvisor $D/pod.json",
        "create POD $D/container.json $D/pod.json",
        "start CONTAINER",
        "exec -s CONTAINER uname -a",
        "inspect CONTAINER",
        "stopp POD",
        "rmp POD",
        "images",
        &format!("inspecti {IMAGE}"),
    ] {
        println!("  crictl --runtime-endpoint $S {command}");
    }
    println!();
    for command in ["status", "pods --handler runc", "try --all", "reload"] {
        println!("  cargo run -q -- {command} --config $D/criswitch.toml");
    }
    println!();
    println!("  A simulated runtime runs nothing: exec only prints the command.");
    println!("  Ctrl-C ends the demo and removes DIR.");
}

pub(super) fn pods(pods: &[cri::PodSandbox]) {
    line(["POD", "NAME", "STATE", "HANDLER", ""]);
    for pod in pods {
        line([
            short_id(&pod.id),
            pod.metadata.as_ref().map_or("", |m| &m.name),
            pod.state().as_str_name().trim_start_matches("SANDBOX_"),
            &pod.runtime_handler,
            "",
        ]);
    }
}

fn heading(text: &str) {
    println!("\n{text}");
    println!("{}", "-".repeat(text.len()));
}

fn line(cells: [&str; 5]) {
    let [a, b, c, d, e] = cells;
    let line = format!("  {a:<15}{b:<15}{c:<15}{d:<15}{e}");
    println!("{}", line.trim_end());
}

fn paragraph(text: &str) {
    for line in wrapped(text, COLUMNS - 2) {
        println!("  {line}");
    }
}

/// The first 13 characters of an id. crictl shows the same number.
fn short_id(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}

fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
