//! `criswitch node run` beside a simulated systemd: the command, its input and both its outputs.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::Systemd;
use crate::{command, text};

const NODE: &str = "var/lib/criswitch/node";

/// Runs the command with this standard input on the node below `root`.
fn run(root: &Path, arguments: &[&str], input: &str) -> Output {
    let all = [&["node", "run", "--root", text(root)], arguments].concat();
    let mut command = command(&all);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    // The write may fail, because a process that does not read its input may have ended.
    stdin.write_all(input.as_bytes()).ok();
    drop(stdin);
    process.wait_with_output().unwrap()
}

#[test]
fn a_command_runs_on_the_node_with_the_input_and_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(NODE);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("criswitch"), "").unwrap();
    let files = folder.clone();
    let runs = move |unit: &str, words: &[String]| {
        assert_eq!(unit, "criswitch-run.service");
        fs::write(files.join("run.err"), "a note\n").unwrap();
        let input = fs::read_to_string(files.join("run.in")).unwrap();
        (1, format!("{} <{input}>\n", words.join(" ")))
    };
    Systemd::serve(root.path(), Box::new(runs));
    for (arguments, stdout) in [
        (
            &["--stdin", "--", "explain", "-f", "-"][..],
            "explain -f - <kind: Pod>\n",
        ),
        (&["--", "status", "-o", "json"], "status -o json <>\n"),
    ] {
        let output = run(root.path(), arguments, "kind: Pod");
        let program = format!("/{NODE}/criswitch {stdout}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), program);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "a note\n");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
}

#[test]
fn a_node_without_the_program_runs_no_command() {
    let root = tempfile::tempdir().unwrap();
    let output = run(root.path(), &["--", "status"], "");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let error = "criswitch: the node has no /var/lib/criswitch/node/criswitch; run";
    assert!(said.starts_with(error), "{said}");
}
