//! The plug-in for kubectl, with a script that replaces kubectl: the kubectl commands that the plug-in runs, the names
//! of nodes in its errors, and its exit code. The tests in tests/system/node run the plug-in in a cluster.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::write_program;
use crate::{Outcome, ended, text};

const PLUGIN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/deploy/kubectl/kubectl-criswitch"
);

/// A script that replaces kubectl. It writes its arguments to the file `ran`. For the pod of node `b` it prints an
/// error and exits with status 78, and for the pod of node `lost` it reports that the pod does not exist.
const KUBECTL: &str = r#"#!/bin/sh
printf '%s\n' "$*" >>"${0%/*}/ran"
case "$1 $2" in
  "get pods") cat "${0%/*}/pods" ;;
  "get nodes") echo "a b" ;;
  "get runtimeclasses") echo "kind: List" ;;
  "debug "*) echo "Creating debugging pod node-debugger-${2#node/}-x with container debugger on node ${2#node/}." ;;
  "exec "*)
    case "$*" in
      *"pod-b"*) echo "criswitch: invalid" >&2; echo "command terminated with exit code 78" >&2; exit 78 ;;
      *"pod-lost"*) echo "Error from server (NotFound): no pod" >&2; exit 1 ;;
      *"-i "*) cat ;;
      *) echo "output of $3" ;;
    esac ;;
esac
"#;

const PODS: &str = "a system pod-a Running\nb system pod-b Running\nc system pod-c Running\n";

/// A folder with this kubectl, which reports these pods of the chart.
fn cluster(pods: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let kubectl = folder.path().join("kubectl");
    fs::write(folder.path().join("pods"), pods).unwrap();
    write_program(&kubectl, KUBECTL);
    folder
}

fn plugin(folder: &Path, arguments: &[&str]) -> Outcome {
    let mut plugin = Command::new(PLUGIN);
    plugin.args(arguments).current_dir(folder);
    ended(plugin.env("KUBECTL", folder.join("kubectl")), false)
}

/// The kubectl commands that the plug-in has run, except the search for nodes.
fn ran(folder: &Path) -> Vec<String> {
    let ran = fs::read_to_string(folder.join("ran")).unwrap();
    let is_search = |line: &&str| line.starts_with("get pods ") || line.starts_with("get nodes ");
    let commands = ran.lines().filter(|line| !is_search(line));
    commands.map(str::to_owned).collect()
}

#[test]
fn a_command_runs_on_each_node_and_the_exit_code_is_that_of_the_worst() {
    let folder = cluster(PODS);
    let outcome = plugin(folder.path(), &["status", "--wide"]);
    assert_eq!(outcome.code, 78);
    let output = "==> a <==\noutput of system\n==> b <==\n==> c <==\noutput of system\n";
    assert_eq!(outcome.stdout, output);
    let error = "kubectl criswitch: node b: criswitch: invalid\n";
    assert_eq!(outcome.stderr, error);
    let command =
        |pod| format!("exec -n system {pod} -- /usr/bin/criswitch node run -- status --wide");
    assert_eq!(ran(folder.path()), ["pod-a", "pod-b", "pod-c"].map(command));
}

#[test]
fn one_node_has_no_headline_and_may_have_json() {
    let folder = cluster(PODS);
    let outcome = plugin(folder.path(), &["pods", "-o", "json", "--node", "c"]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "output of system\n")
    );
    let command = "exec -n system pod-c -- /usr/bin/criswitch node run -- pods -o json";
    assert_eq!(ran(folder.path()), [command]);
    for format in [
        &["-ojson"][..],
        &["--output=yaml"],
        &["--json"],
        &["-o", "yaml"],
    ] {
        let outcome = plugin(folder.path(), &[&["pods"][..], format].concat());
        assert_eq!(outcome.code, 64, "{format:?}: {}", outcome.stderr);
    }
    let table = plugin(
        folder.path(),
        &["pods", "-o", "wide", "--node=a", "--node=c"],
    );
    assert_eq!(table.code, 0, "{}", table.stderr);
}

#[test]
fn a_node_that_cannot_be_asked_is_named_and_not_omitted() {
    let folder = cluster("a system pod-a Running\nlost system pod-lost Running\n");
    let outcome = plugin(folder.path(), &["status"]);
    assert_eq!(outcome.code, 69);
    let errors = "\
kubectl criswitch: node b: not asked, because it has no pod of the chart; use --node
kubectl criswitch: node lost: Error from server (NotFound): no pod
";
    assert_eq!(outcome.stderr, errors);

    // The pod of node b does not run, and no pod is on a node yet.
    let folder = cluster("a system pod-a Running\nb system pod-b Pending\n system pod-c Pending\n");
    let outcome = plugin(folder.path(), &["status"]);
    assert_eq!(
        outcome.stdout,
        "==> a <==\noutput of system\n==> b <==\noutput of --\n"
    );
}

#[test]
fn explain_reads_the_runtime_classes_of_the_cluster_before_the_file() {
    let folder = cluster(PODS);
    let file = folder.path().join("web.yaml");
    fs::write(&file, "kind: Pod\n").unwrap();
    let arguments = ["explain", "--node=a", "-f", text(&file)];
    let outcome = plugin(folder.path(), &arguments);
    let input = "kind: List\n---\nkind: Pod\n\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, input));
    let command = "exec -i -n system pod-a -- /usr/bin/criswitch node run --stdin -- explain -f -";
    assert_eq!(ran(folder.path()), ["get runtimeclasses -o yaml", command]);
    let other = folder.path().join("job.yaml");
    fs::write(&other, "kind: Job\n").unwrap();
    let [one, two] = [&file, &other].map(|file| text(file));
    for arguments in [
        vec!["-f", one, "-f", two],
        vec![&format!("--file={one}"), &format!("-f{two}")],
    ] {
        let outcome = plugin(
            folder.path(),
            &[&["explain", "--node=a"][..], &arguments].concat(),
        );
        assert_eq!(
            outcome.stdout,
            "kind: List\n---\nkind: Pod\n\n---\nkind: Job\n\n"
        );
    }
    let missing = plugin(folder.path(), &["explain", "-f", "nosuch"]);
    assert_eq!(missing.code, 1, "{}", missing.stderr);
}

#[test]
fn each_node_has_an_archive_that_replaces_no_file() {
    let folder = cluster(PODS);
    fs::write(folder.path().join("criswitch-c.tar.gz"), "mine").unwrap();
    let outcome = plugin(folder.path(), &["bundle"]);
    assert_eq!(outcome.code, 78);
    assert_eq!(outcome.stdout, "criswitch-a.tar.gz\n");
    let archive = |node| fs::read_to_string(folder.path().join(format!("criswitch-{node}.tar.gz")));
    assert_eq!(archive("a").unwrap(), "output of system\n");
    assert!(archive("b").is_err());
    assert_eq!(archive("c").unwrap(), "mine");
    let error = "kubectl criswitch: node c: criswitch-c.tar.gz exists; remove it first\n";
    assert!(outcome.stderr.ends_with(error), "{}", outcome.stderr);
}

#[test]
fn without_a_pod_of_the_chart_the_command_runs_in_a_pod_that_is_removed() {
    let folder = cluster("");
    fs::write(folder.path().join("criswitch-a.tar.gz"), "mine").unwrap();
    let outcome = plugin(folder.path(), &["bundle", "--node=a"]);
    assert_eq!((outcome.code, ran(folder.path()).len()), (1, 0));
    let outcome = plugin(folder.path(), &["status", "--image=box"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let of_node = |node: &str| {
        let pod = format!("node-debugger-{node}-x");
        [
            format!(
                "debug node/{node} --profile=sysadmin --image=box --attach=false -- sleep 3600"
            ),
            format!("wait --for=condition=Ready --timeout=60s pod/{pod}"),
            format!(
                "exec {pod} -- chroot /host /bin/sh -c PATH=$PATH:/opt/criswitch/current; exec criswitch \"$@\" criswitch status"
            ),
            format!("delete pod {pod} --wait=false"),
        ]
    };
    assert_eq!(ran(folder.path()), [of_node("a"), of_node("b")].concat());
}

#[test]
fn a_wrong_command_line_runs_nothing() {
    let folder = cluster(PODS);
    for arguments in [
        &[][..],
        &["reload"],
        &["status", "--node"],
        &["status", "--node="],
        &["status", "-f", "x"],
        &["explain", "-f"],
    ] {
        let outcome = plugin(folder.path(), arguments);
        assert_eq!(outcome.code, 64, "{arguments:?}: {}", outcome.stderr);
        assert!(!folder.path().join("ran").exists());
    }
}
