//! The plug-in for node-problem-detector: its exit code and its line for each state of criswitch.

use std::process::Command;

use serde_json::Value as Json;

use crate::reload::Node;
use crate::support::PATIENCE;
use crate::{Outcome, beside, text};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/node-problem-detector");

/// Runs the plug-in with this command for criswitch.
async fn check(what: &str, criswitch: &str) -> Outcome {
    let mut plugin = Command::new(format!("{FOLDER}/check-criswitch.sh"));
    plugin.arg(what).env("CRISWITCH", criswitch);
    beside(plugin).await
}

/// A program that asks the daemon of the node.
fn program(node: &Node) -> String {
    let own = env!("CARGO_BIN_EXE_criswitch");
    let main = node.files.main();
    let script = format!("exec {own} \"$@\" --config {}", text(&main));
    node.files.write("ask", &script);
    format!("sh {}", text(&node.files.path("ask")))
}

/// Runs the plug-in until it prints this line, and checks the exit code.
async fn until(node: &Node, what: &str, code: i32, line: &str) {
    let program = program(node);
    let mut seen = String::new();
    let found = async {
        loop {
            let outcome = check(what, &program).await;
            seen = format!("{} {}", outcome.code, outcome.stdout);
            if seen == format!("{code} {line}\n") {
                return;
            }
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    assert!(found.is_ok(), "{seen}");
}

#[tokio::test]
async fn a_backend_that_is_down_is_a_problem_until_it_is_back() {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    until(&node, "backends", 0, "no problem").await;
    node.new.stop().await;
    until(&node, "backends", 1, "backend kata is down").await;
    until(&node, "reload", 0, "no problem").await;
    until(&node, "nri", 0, "no problem").await;
    node.new.start();
    until(&node, "backends", 0, "no problem").await;
    node.end().await;
}

#[tokio::test]
async fn a_rejected_reload_is_a_problem_until_a_reload_is_applied() {
    let node = Node::start("").await;
    node.write("", "kata = 5");
    assert_eq!(node.reload().await.code, 78);
    let line = "reload rejected: \"kata\" is an integer, not a string";
    until(&node, "reload", 1, line).await;
    // The daemon serves the previous configuration.
    until(&node, "backends", 0, "no problem").await;
    node.write("", "");
    assert_eq!(node.reload().await.code, 0);
    until(&node, "reload", 0, "no problem").await;
    node.end().await;
}

#[tokio::test]
async fn a_lost_nri_socket_is_a_problem() {
    let node = Node::start("").await;
    let mut command = crate::command(&["status", "-o", "json", "--config"]);
    command.arg(node.files.main());
    let status = beside(command).await.stdout;
    let lost = status.replace(
        "\"lostNriSockets\": []",
        "\"lostNriSockets\": [\n    \"/run/nri.sock: taken by \\\"crio\\\"\"\n  ]",
    );
    assert_ne!(lost, status);
    node.files.write("status", &lost);
    let program = format!("exec cat {}", text(&node.files.path("status")));
    node.files.write("show", &program);
    let show = format!("sh {}", text(&node.files.path("show")));
    let outcome = check("nri", &show).await;
    let line = "/run/nri.sock: taken by \"crio\"\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, line));
    assert_eq!(check("backends", &show).await.code, 0);

    let unknown = status.replace("\"lostNriSockets\": []", "\"lostNriSockets\": null");
    node.files.write("status", &unknown);
    let outcome = check("nri", &show).await;
    assert_eq!(outcome.code, 2, "{}", outcome.stdout);
    node.end().await;
}

#[tokio::test]
async fn without_an_answer_of_criswitch_every_condition_is_unknown() {
    let node = Node::start("").await;
    let program = program(&node);
    let (_files, ended) = node.end_with_files().await;
    assert_eq!(ended, Some(0));
    for what in ["backends", "reload", "nri"] {
        let outcome = check(what, &program).await;
        assert_eq!(outcome.code, 2, "{}", outcome.stdout);
        let line = "unknown, criswitch status exits with 69: ";
        assert!(outcome.stdout.starts_with(line), "{}", outcome.stdout);
        assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
    }
    let outcome = check("backends", "/nosuch").await;
    let line = "unknown, criswitch status exits with 127: no answer\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, line));
    for (shown, cause) in [
        ("{}", "the socket does not belong to criswitch"),
        (
            r#"{"problems":[{"what":"cannot decode the reply"}],"schema":1}"#,
            "cannot decode the reply",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("status");
        std::fs::write(&file, format!("echo '{shown}'; exit 1")).unwrap();
        let outcome = check("backends", &format!("sh {}", text(&file))).await;
        let line = format!("unknown, {cause}\n");
        assert_eq!((outcome.code, outcome.stdout), (2, line));
    }
}

#[test]
fn each_rule_sets_a_condition_of_the_configuration_with_the_plugin() {
    let file = std::fs::read_to_string(format!("{FOLDER}/criswitch.json")).unwrap();
    let json: Json = serde_json::from_str(&file).unwrap();
    let rules = json["rules"].as_array().unwrap();
    let checks = rules.iter().map(|rule| rule["args"][1].as_str().unwrap());
    assert_eq!(checks.collect::<Vec<_>>(), ["backends", "reload", "nri"]);
    for rule in rules {
        assert_eq!(rule["args"][0], "/custom-config/check-criswitch.sh");
        let conditions = json["conditions"].as_array().unwrap();
        assert!(conditions.iter().any(|it| it["type"] == rule["condition"]));
    }
}
