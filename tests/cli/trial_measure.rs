//! `criswitch try --measure`: the figures, the comparison, and the row that `--write` changes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::cgroups::{MIB, ONLY_V2, Tree};
use crate::reload::Node;
use crate::support::Sim;
use crate::trial::{KATA, assert_nothing_is_left, node, shows, try_on};
use crate::trial_images::{end, interrupt};
use crate::{Outcome, run, run_beside, text};

/// The overhead that a measurement with the files of [`machine`] must give.
const ROW: &str = "overhead = { memory = \"7Mi\" }";

/// The ids that a runtime gives to pods and containers, in the order of their creation, and whether each is a pod. The
/// first two are of the try. Each run adds an empty pod, and a pod with a container.
fn ids(name: char, runs: usize) -> Vec<(String, bool)> {
    let kinds = [true, false]
        .into_iter()
        .chain([true, true, false].into_iter().cycle().take(3 * runs))
        .enumerate();
    kinds
        .map(|(number, is_pod)| (format!("{name}{number:063}"), is_pod))
        .collect()
}

/// A machine with the cgroups and the shim of the pods that each runtime will create. A pod's cgroup uses 1 MiB, a
/// container's cgroup uses 2.5 MiB, and one shim for all pods of the runtime uses 3 MiB.
fn machine(sims: &[(&Sim, char)], runs: usize) -> Tree {
    let tree = Tree::with(ONLY_V2);
    for (number, (sim, name)) in (10..).zip(sims) {
        let ids = ids(*name, runs);
        let names = ids.iter().map(|(id, _)| &**id);
        (*sim).clone().next_ids(names.clone());
        for (id, is_pod) in &ids {
            let memory = if *is_pod { MIB } else { 5 * MIB / 2 };
            let cpu = Duration::from_millis(7);
            tree.add_v2(&format!("/system.slice/{id}"), MIB + memory, MIB, cpu);
        }
        let command: Vec<&str> = ["/bin/shim"].into_iter().chain(names).collect();
        tree.add_process(number, 1, &command, "0::/\n", 3 << 10);
    }
    tree
}

/// The node with a machine for one handler.
async fn kata(runs: usize) -> (Node, Tree) {
    let node = node().await;
    let machine = machine(&[(&node.new, 'c')], runs);
    (node, machine)
}

/// The arguments that measure without waiting.
fn arguments<'a>(machine: &'a Tree, more: &[&'a str]) -> Vec<&'a str> {
    let root = text(machine.root());
    let own = ["--measure", "--idle", "1ms", "--root", root];
    own.into_iter().chain(more.iter().copied()).collect()
}

async fn measure(node: &Node, machine: &Tree, more: &[&str]) -> Outcome {
    try_on(node, &arguments(machine, more)).await
}

async fn json_of(node: &Node, machine: &Tree, more: &[&str]) -> (i32, Json) {
    let outcome = measure(node, machine, &[more, &["-o", "json"]].concat()).await;
    let json = serde_json::from_str(&outcome.stdout);
    (outcome.code, json.expect(&outcome.stdout))
}

/// The cells of each line of a table.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines();
    let cells = lines.map(|line| line.split("  ").filter(|cell| !cell.is_empty()));
    cells.map(|cells| cells.map(str::trim).collect()).collect()
}

#[tokio::test]
async fn measure_shows_each_run_and_the_figures_of_both_pods() {
    let (node, machine) = kata(2).await;
    let outcome = measure(&node, &machine, &["kata", "--runs", "2"]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    let (steps, table) = outcome.stdout.split_once("\n\n").unwrap();
    for run in ["run 1 of 2", "run 2 of 2"] {
        let line = steps.lines().find(|line| line.contains(run)).unwrap();
        assert!(line.contains("empty pod 4.0 MiB, "), "{line}");
        assert!(line.contains("; with a container 6.5 MiB, "), "{line}");
    }
    assert!(steps.contains(&format!("  {:18}{ROW}\n", "row")), "{steps}");
    assert!(
        steps.contains("  note              Kubernetes adds the overhead"),
        "{steps}"
    );
    let rows = cells(table);
    assert_eq!(
        rows[0].join("|"),
        "HANDLER|POD|MEMORY (MiB)|OUTSIDE (MiB)|START CPU (ms)|IDLE CPU (m)|START (ms)|STOP (ms)|OVERHEAD"
    );
    let expected = [
        "kata",
        "empty",
        "4.0 (4.0-4.0)",
        "3.0 (3.0-3.0)",
        "57 (57-57)",
        "0.0 (0.0-0.0)",
    ];
    assert_eq!(rows[1][..6], expected);
    let expected = [
        "kata",
        "1 container",
        "6.5 (6.5-6.5)",
        "3.0 (3.0-3.0)",
        "64 (64-64)",
        "0.0 (0.0-0.0)",
    ];
    assert_eq!(rows[2][..6], expected);
    assert_eq!((rows[1][8], rows[2][8]), ("-", "{ memory = \"7Mi\" }"));
    assert_eq!(node.new.calls("RunPodSandbox").len(), 5);
    assert_eq!(node.new.calls("CreateContainer").len(), 3);
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn measure_as_json_has_the_value_of_each_run() {
    let (node, machine) = kata(3).await;
    let (code, json) = json_of(&node, &machine, &["kata", "--runs", "3"]).await;
    assert_eq!(code, 0, "{json}");
    let cost = &json["tries"][0]["cost"];
    assert_eq!((&cost["runs"], &cost["row"]), (&json!(3), &json!(ROW)));
    assert_eq!(cost["overhead"], json!({ "memory": "7Mi" }));
    let same = |value: f64| json!({ "median": value, "min": value, "max": value, "values": vec![value; 3] });
    let mib = |mib: f64| same(mib * MIB as f64);
    let container = &cost["container"];
    assert_eq!(container["memoryBytes"], mib(6.5));
    assert_eq!(container["cgroupMemoryBytes"], mib(3.5));
    assert_eq!(container["outsideMemoryBytes"], mib(3.0));
    assert_eq!(container["outsideProcesses"], json!(["shim"]));
    assert_eq!(container["startCpuMilliseconds"], same(64.0));
    assert_eq!(container["idleCpuMillicores"], same(0.0));
    assert_eq!(cost["empty"]["memoryBytes"], mib(4.0));
    for (pod, figure) in [
        ("empty", "startMilliseconds"),
        ("empty", "stopMilliseconds"),
        ("container", "startMilliseconds"),
        ("container", "stopMilliseconds"),
    ] {
        let figure = &cost[pod][figure];
        let [least, median, most] =
            ["min", "median", "max"].map(|name| figure[name].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= most, "{figure}");
        assert_eq!(figure["values"].as_array().unwrap().len(), 3);
    }
    assert!(json["tries"][0]["written"].is_null());
    node.end().await;
}

#[tokio::test]
async fn the_overhead_of_a_virtual_machine_has_the_free_memory_of_its_guest() {
    let (node, machine) = kata(1).await;
    shows(&node.new, KATA);
    let (code, json) = json_of(&node, &machine, &["kata", "--runs", "1"]).await;
    assert_eq!(code, 0, "{json}");
    let cost = &json["tries"][0]["cost"];
    assert_eq!(cost["overhead"], json!({ "memory": "17Mi" }));
    assert_eq!(cost["container"]["freeInGuestBytes"], json!(10 * MIB));
    assert_eq!(
        cost["container"]["memoryBytes"]["max"],
        json!(6.5 * MIB as f64)
    );
    let notes = cost["notes"].to_string();
    for text in [
        "3.0 MiB of the 6.5 MiB are outside",
        "uses 6.5 MiB while idle",
        "may use 10.0 MiB more",
    ] {
        assert!(notes.contains(text), "{notes}");
    }
    node.end().await;
}

#[tokio::test]
async fn measure_all_compares_the_handlers() {
    let node = node().await;
    let machine = machine(&[(&node.old, 'a'), (&node.new, 'c')], 1);
    let outcome = measure(&node, &machine, &["--all", "--runs", "1"]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let table = outcome.stdout.rsplit("\n\n").next().unwrap();
    let rows = cells(table);
    let names: Vec<_> = rows.iter().map(|row| (row[0], row[1])).collect();
    let expected = [
        ("HANDLER", "POD"),
        ("kata", "empty"),
        ("kata", "1 container"),
        ("runc", "empty"),
        ("runc", "1 container"),
    ];
    assert_eq!(names, expected);
    node.end().await;
}

/// The content of the configuration with these rows.
fn file(node: &Node, rows: &str) -> String {
    node.write("# The head.", rows);
    fs::read_to_string(node.files.main()).unwrap()
}

#[tokio::test]
async fn write_puts_the_overhead_into_each_form_of_a_row() {
    let node = node().await;
    let socket = node.files.path("new.sock");
    let socket = text(&socket);
    for (row, expected) in [
        (
            format!("kata = {socket:?} # odd  spaces"),
            format!("kata = {{ socket = {socket:?}, {ROW} }} # odd  spaces"),
        ),
        (
            format!("kata={{socket={socket:?}}}"),
            format!("kata={{socket={socket:?},{ROW}}}"),
        ),
        (
            format!("kata = {{ socket = {socket:?}, overhead = {{ cpu = \"2\" }} }}"),
            format!("kata = {{ socket = {socket:?}, overhead = {{ memory = \"7Mi\" }} }}"),
        ),
        (
            format!("[handlers.kata] # here\n# The socket.\nsocket = {socket:?}"),
            format!("[handlers.kata] # here\n# The socket.\nsocket = {socket:?}\n{ROW}"),
        ),
    ] {
        let machine = machine(&[(&node.new, 'c')], 1);
        let before = file(&node, &row);
        let outcome = measure(&node, &machine, &["kata", "--runs", "1", "--write"]).await;
        assert_eq!(outcome.code, 0, "{row}: {}", outcome.stderr);
        let main = node.files.main();
        let after = fs::read_to_string(&main).unwrap();
        assert_eq!(after, before.replace(&row, &expected));
        let line = before.split(&row).next().unwrap().lines().count() + 1;
        let written = format!("{}:{line} (overhead before: ", text(&main));
        assert!(outcome.stdout.contains(&written), "{}", outcome.stdout);
        assert!(outcome.stdout.ends_with("with it.\n"), "{}", outcome.stdout);
        let manifests = run_beside(&["manifests", "--config", text(&main)]).await;
        let podfixed = "overhead:\n  podFixed:\n    memory: 7Mi\n";
        assert!(manifests.stdout.contains(podfixed), "{}", manifests.stdout);
    }
    node.end().await;
}

#[tokio::test]
async fn write_changes_the_file_with_the_row_and_keeps_its_mode_and_a_link_to_it() {
    let (node, machine) = kata(1).await;
    let main = file(&node, "");
    let row = format!("[handlers]\n{}", node.kata());
    node.files.write("conf.d/kata.toml.real", &row);
    let real = node.files.path("conf.d/kata.toml.real");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let link = node.files.path("conf.d/kata.toml");
    symlink(&real, &link).unwrap();
    let (code, json) = json_of(&node, &machine, &["kata", "--runs", "1", "--write"]).await;
    assert_eq!(code, 0, "{json}");
    let written = &json["tries"][0]["written"];
    assert_eq!(
        *written,
        json!({ "path": text(&link), "line": 2, "before": {} })
    );
    assert_eq!(fs::read_to_string(node.files.main()).unwrap(), main);
    assert!(fs::read_to_string(&real).unwrap().contains(ROW));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let mode = fs::metadata(&real).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let names = fs::read_dir(node.files.path("conf.d")).unwrap();
    assert_eq!(names.count(), 2);
    node.end().await;
}

#[tokio::test]
async fn without_a_row_that_can_be_written_no_pod_is_made() {
    let (node, machine) = kata(1).await;
    for (rows, problem) in [
        (
            "",
            "has a row for handler \"kata\"; add one under [handlers] first",
        ),
        ("kata = 7", "kata"),
    ] {
        let before = file(&node, rows);
        let outcome = measure(&node, &machine, &["kata", "--write"]).await;
        assert_eq!(outcome.code, 1, "{}", outcome.stdout);
        assert!(outcome.stdout.contains("failed: "), "{}", outcome.stdout);
        assert!(outcome.stdout.contains(problem), "{}", outcome.stdout);
        assert_eq!(fs::read_to_string(node.files.main()).unwrap(), before);
    }
    assert_eq!(node.new.calls("RunPodSandbox").len(), 0);
    let other = node.files.path("other.toml");
    fs::copy(node.files.main(), &other).unwrap();
    let socket = node.files.path("criswitch.sock");
    let more = [
        "try",
        "kata",
        "--write",
        "--config",
        text(&other),
        "--socket",
        text(&socket),
    ];
    let outcome = run_beside(&[&more[..], &arguments(&machine, &[])].concat()).await;
    assert_eq!(outcome.code, 1);
    let problem = "the configuration file of the running criswitch is ";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    node.end().await;
}

#[tokio::test]
async fn a_pod_that_is_not_on_this_machine_is_a_failure() {
    let node = node().await;
    let machine = machine(&[], 1);
    let (code, json) = json_of(&node, &machine, &["kata", "--write"]).await;
    assert_eq!(code, 1);
    let expected = "run 1 of 5: measure: this machine has no cgroup and no process of the pod; run criswitch in the \
                    namespaces of the node";
    let tried = &json["tries"][0];
    assert_eq!(tried["failure"], expected);
    assert!(tried["cost"].is_null() && tried["written"].is_null());
    assert_nothing_is_left(&node);
    let empty = tempfile::tempdir().unwrap();
    let outcome = try_on(&node, &["kata", "--measure", "--root", text(empty.path())]).await;
    assert_eq!((outcome.code, &*outcome.stdout), (1, ""));
    let expected = "criswitch: pods cannot be measured: ";
    assert!(outcome.stderr.starts_with(expected), "{}", outcome.stderr);
    node.end().await;
}

/// Starts a measurement whose call for the status of the first measured pod hangs.
async fn start_held_try(node: &Node, machine: &Tree) -> Child {
    node.new.hold("PodSandboxStatus");
    let main = node.files.main();
    let own = [
        "try",
        "kata",
        "--runs",
        "1",
        "--write",
        "--config",
        text(&main),
    ];
    let mut command = crate::command(&[&own[..], &arguments(machine, &[])].concat());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().unwrap();
    let is_held = |held: &[String]| held.iter().any(|rpc| rpc == "PodSandboxStatus");
    node.new.until(|journal| is_held(&journal.held)).await;
    process
}

#[tokio::test]
async fn ctrl_c_during_a_measurement_removes_the_pod_and_writes_nothing() {
    let (node, machine) = kata(1).await;
    let before = fs::read_to_string(node.files.main()).unwrap();
    let process = start_held_try(&node, &machine).await;
    interrupt(&process);
    let is_cancelled = |cancelled: &[String]| cancelled.iter().any(|rpc| rpc == "PodSandboxStatus");
    node.new
        .until(|journal| is_cancelled(&journal.cancelled))
        .await;
    node.new.release("PodSandboxStatus");
    let (code, stdout) = end(process).await;
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.ends_with("failed: interrupted\n"), "{stdout}");
    assert_nothing_is_left(&node);
    assert_eq!(fs::read_to_string(node.files.main()).unwrap(), before);
    node.end().await;
}

#[tokio::test]
async fn a_measured_pod_that_something_else_stops_is_measured_again() {
    let (node, machine) = kata(2).await;
    let process = start_held_try(&node, &machine).await;
    node.new
        .clone()
        .fail("PodSandboxStatus", tonic::Status::not_found("stopped"));
    node.new.release("PodSandboxStatus");
    node.new
        .until(|journal| journal.calls_of("RunPodSandbox").count() > 2)
        .await;
    node.new.heal("PodSandboxStatus");
    let (code, stdout) = end(process).await;
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("run 1 of 1"), "{stdout}");
    assert_nothing_is_left(&node);
    node.end().await;
}

#[test]
fn options_of_a_measurement_need_measure() {
    for option in [&["--write"][..], &["--runs", "3"], &["--idle", "2s"]] {
        let outcome = run(&[&["try", "kata"], option].concat());
        assert_eq!(outcome.code, 64, "{option:?}");
        assert!(outcome.stderr.contains("--measure"), "{}", outcome.stderr);
    }
    for (option, value) in [
        ("--runs", "0"),
        ("--runs", "101"),
        ("--idle", "11m"),
        ("--idle", "0s"),
        ("--idle", "x"),
    ] {
        let outcome = run(&["try", "kata", "--measure", option, value]);
        assert_eq!(outcome.code, 64, "{option} {value}");
    }
}
