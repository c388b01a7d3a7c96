//! `criswitch labels`, and the file that the daemon keeps for node-feature-discovery.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use criswitch_cri::codec::cri::RuntimeHandlerFeatures;
use expect_test::expect;
use serde_json::{Value as Json, json};

use crate::reload::Node;
use crate::support::PATIENCE;
use crate::{Outcome, run, run_beside, text};

async fn labels(node: &Node, arguments: &[&str]) -> Outcome {
    let file = node.files.main();
    let labels = ["labels", "--config", text(&file)];
    run_beside(&[&labels, arguments].concat()).await
}

/// A node with two ready backends, and labels in the file `features.d/criswitch`.
async fn labelled(failed_after: &str) -> (Node, String) {
    let node = Node::start("").await;
    let file = node.files.path("features.d/criswitch");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let head = format!("labels_file = {file:?}\nlabels_failed_after = {failed_after:?}");
    node.write(&head, &node.kata());
    assert_eq!(node.reload().await.code, 0);
    until(&file, "handler.kata=true").await;
    (node, head)
}

/// Waits until the file has a line with this text, and returns the content.
async fn until(file: &Path, wanted: &str) -> String {
    wait(file, |content| content.contains(wanted)).await
}

async fn wait(file: &Path, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut content = String::new();
    let found = async {
        loop {
            content = std::fs::read_to_string(file).unwrap_or_default();
            if is_wanted(&content) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    assert!(found.is_ok(), "{content}");
    content
}

#[tokio::test]
async fn labels_are_printed_as_a_feature_file_as_json_and_as_kubectl_commands() {
    let node = Node::start("").await;
    let printed = labels(&node, &[]).await;
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    expect![[r#"
        # Written by criswitch, which replaces this file when its labels change.
        criswitch.io/backend.runc.runtime=old
        criswitch.io/backend.runc.version=1.0.0
        criswitch.io/handler.runc=true
    "#]]
    .assert_eq(&printed.stdout);
    let printed = labels(&node, &["-o", "json"]).await;
    let json: Json = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(json["labels"]["criswitch.io/handler.runc"], "true");
    assert_eq!(json["problems"], json!([]));
    let printed = labels(&node, &["--kubectl", "node-1.example"]).await;
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    let expected = "kubectl label --overwrite node node-1.example criswitch.io/handler.runc=true\n";
    assert!(printed.stdout.contains(expected), "{}", printed.stdout);
    let file = node.files.path("labels");
    std::fs::write(&file, "old").unwrap();
    let printed = labels(&node, &["--write", text(&file)]).await;
    assert_eq!((printed.code, printed.stdout.as_str()), (0, ""));
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written, labels(&node, &[]).await.stdout);
    node.end().await;
}

#[tokio::test]
async fn a_template_has_the_labels_of_handlers_and_the_taints_in_the_form_of_the_autoscaler() {
    let node = Node::start("").await;
    let taints = [
        "--taint",
        "sandboxed=true:NoSchedule",
        "--taint=a/b:NoExecute",
    ];
    let tags = labels(
        &node,
        &[&["--template", "cluster-autoscaler"][..], &taints].concat(),
    )
    .await;
    assert_eq!((tags.code, tags.stderr.as_str()), (0, ""));
    for (template, effect, code) in [
        ("cluster-autoscaler", "NoExecute", 1),
        ("karpenter", "NoExecute", 0),
        ("karpenter", "NoSchedule", 1),
    ] {
        let again = format!("--taint=sandboxed=other:{effect}");
        let more = ["--template", template, &again];
        let outcome = labels(&node, &[&more[..], &taints].concat()).await;
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
    }
    expect![[r#"
        k8s.io/cluster-autoscaler/node-template/label/criswitch.io/handler.runc=true
        k8s.io/cluster-autoscaler/node-template/taint/sandboxed=true:NoSchedule
        k8s.io/cluster-autoscaler/node-template/taint/a/b=:NoExecute
    "#]]
    .assert_eq(&tags.stdout);
    let pool = labels(&node, &[&["--template=karpenter"][..], &taints].concat()).await;
    expect![[r#"
        spec:
          template:
            metadata:
              labels:
                criswitch.io/handler.runc: "true"
            spec:
              taints:
              - effect: NoSchedule
                key: sandboxed
                value: "true"
              - effect: NoExecute
                key: a/b
    "#]]
    .assert_eq(&pool.stdout);
    let pool = labels(&node, &["--template=karpenter"]).await;
    assert!(!pool.stdout.contains("taints"), "{}", pool.stdout);
    node.end().await;
}

#[test]
fn the_taints_of_a_template_are_checked() {
    // Taints that no node can have are an error also while no daemon runs.
    let socket = "--socket=/nonexistent/criswitch.sock";
    let taints = ["--taint=a=b:NoSchedule", "--taint=a=c:NoSchedule"];
    let outcome = run(&[&["labels", socket, "--template=karpenter"][..], &taints].concat());
    assert_eq!(outcome.code, 1);
    assert!(
        outcome.stderr.contains("two taints have the key a"),
        "{}",
        outcome.stderr
    );
    for taint in ["", "a", "a=b", ":NoSchedule", "a=b:Never", "a b:NoSchedule"] {
        let taint = format!("--taint={taint}");
        let outcome = run(&["labels", "--template=karpenter", &taint]);
        assert_eq!(outcome.code, 64, "{taint}: {}", outcome.stderr);
    }
    let outcome = run(&["labels", "--taint=a:NoSchedule"]);
    assert_eq!(outcome.code, 64, "{}", outcome.stderr);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_reported() {
    let node = Node::start("").await;
    let file = node.files.path("missing/labels");
    let outcome = labels(&node, &["--write", text(&file)]).await;
    assert_eq!(outcome.code, 1);
    let cause = "missing/labels: the labels cannot be written: No such file";
    assert!(outcome.stderr.contains(cause), "{}", outcome.stderr);
    node.end().await;
}

#[test]
fn the_name_of_a_node_is_checked() {
    for name in ["", "-x", "a b", "a;b", "A"] {
        let outcome = run(&["labels", &format!("--kubectl={name}")]);
        assert_eq!(outcome.code, 64, "{name}: {}", outcome.stderr);
    }
}

#[tokio::test]
async fn the_daemon_keeps_the_file_current_and_leaves_it_at_the_end() {
    let (node, head) = labelled("5m").await;
    let file = node.files.path("features.d/criswitch");
    let content = std::fs::read_to_string(&file).unwrap();
    expect![[r#"
        # Written by criswitch, which replaces this file when its labels change.
        criswitch.io/backend.kata.runtime=new
        criswitch.io/backend.kata.version=1.0.0
        criswitch.io/backend.runc.runtime=old
        criswitch.io/backend.runc.version=1.0.0
        criswitch.io/handler.kata=true
        criswitch.io/handler.runc=true
    "#]]
    .assert_eq(&content);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert_eq!(labels(&node, &[]).await.stdout, content);
    node.write(&head, "");
    assert_eq!(node.reload().await.code, 0);
    let without = wait(&file, |content| !content.contains("kata")).await;
    assert!(without.contains("handler.runc=true"), "{without}");
    let directory = std::fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(directory.count(), 1);
    let (files, ended) = node.end_with_files().await;
    assert_eq!(ended, Some(0));
    let kept = std::fs::read_to_string(files.path("features.d/criswitch"));
    assert_eq!(kept.unwrap(), without);
}

#[tokio::test]
async fn a_handler_loses_its_label_after_its_backend_has_failed_and_gets_it_back() {
    let (node, _) = labelled("1s").await;
    let file = node.files.path("features.d/criswitch");
    node.new.stop().await;
    let without = wait(&file, |content| !content.contains("kata")).await;
    assert!(without.contains("handler.runc=true"), "{without}");
    node.new.start();
    until(&file, "handler.kata=true").await;
    node.end().await;
}

#[tokio::test]
async fn features_of_a_handler_and_the_version_of_a_runtime_become_labels_when_the_backend_reports_them()
 {
    let (node, _) = labelled("5m").await;
    let file = node.files.path("features.d/criswitch");
    node.new.stop().await;
    let features = RuntimeHandlerFeatures {
        recursive_read_only_mounts: true,
        user_namespaces: true,
        cgroup_namespaces: true,
    };
    let runtime = node.new.clone();
    drop(runtime.features("kata", features).version("2.4.2+unknown"));
    node.new.start();
    until(&file, "criswitch.io/handler.kata.user-namespaces=true\n").await;
    until(&file, "criswitch.io/backend.kata.version=2.4.2\n").await;
    until(&file, "criswitch.io/handler.kata.cgroup-namespaces=true\n").await;
    let content = until(
        &file,
        "criswitch.io/handler.kata.recursive-read-only-mounts=true\n",
    )
    .await;
    assert!(!content.contains("runc.user"), "{content}");
    node.end().await;
}

#[tokio::test]
async fn a_handler_that_its_backend_does_not_report_has_no_label() {
    let (node, head) = labelled("5m").await;
    let file = node.files.path("features.d/criswitch");
    node.new.stop().await;
    let features = RuntimeHandlerFeatures::default();
    drop(node.new.clone().features("kata", features));
    node.new.start();
    let boxed = "boxed = { backend = \"new\", handler = \"runsc\" }";
    let named = format!("[backends]\nnew = {:?}", node.new.socket());
    node.write(&head, &format!("{}\n{boxed}\n{named}", node.kata()));
    assert_eq!(node.reload().await.code, 0);
    let gone = |content: &str| content.contains("handler.kata=true") && !content.contains("boxed");
    wait(&file, gone).await;
    let printed = labels(&node, &[]).await;
    let note = "handler boxed has no labels: backend new does not report the handler \"runsc\"\n";
    assert_eq!((printed.code, printed.stderr.as_str()), (0, note));
    node.end().await;
}

#[tokio::test]
async fn a_handler_keeps_its_label_until_its_backend_has_failed_for_long_enough() {
    let (node, head) = labelled("unlimited").await;
    let file = node.files.path("features.d/criswitch");
    node.new.stop().await;
    while node.info().await["backends"][1]["state"] != "down" {}
    // The next content of the file shows that criswitch has computed the labels again.
    let boxed = "boxed = { backend = \"old\", handler = \"runc\" }";
    let named = format!("[backends]\nold = {:?}", node.old.socket());
    node.write(&head, &format!("{}\n{boxed}\n{named}", node.kata()));
    assert_eq!(node.reload().await.code, 0);
    let content = until(&file, "handler.boxed=true").await;
    assert!(content.contains("handler.kata=true"), "{content}");
    node.end().await;
}

#[tokio::test]
async fn a_file_that_the_daemon_cannot_write_is_logged_once_and_shown_in_the_status() {
    let node = Node::start("").await;
    let directory = node.files.path("features.d");
    let file = directory.join("criswitch");
    node.write(&format!("labels_file = {file:?}"), "");
    assert_eq!(node.reload().await.code, 0);
    let problem = async {
        loop {
            let labels = &node.info().await["nodeLabels"];
            if let Some(problem) = labels["fileProblem"].as_str() {
                return problem.to_owned();
            }
        }
    };
    let problem = tokio::time::timeout(PATIENCE, problem).await.unwrap();
    assert!(problem.contains("No such file"), "{problem}");
    let main = node.files.main();
    let status = run_beside(&["status", "--config", text(&main)]).await;
    let line = "the labels of the node cannot be written to ";
    assert!(status.stdout.contains(line), "{}", status.stdout);
    std::fs::create_dir(&directory).unwrap();
    // A change of the table makes criswitch write at once.
    node.write(&format!("labels_file = {file:?}"), &node.kata());
    assert_eq!(node.reload().await.code, 0);
    until(&file, "handler.runc=true").await;
    while !node.info().await["nodeLabels"]["fileProblem"].is_null() {}
    let log = node.whole_log().await;
    let count = |part: &str| log.iter().filter(|line| line.contains(part)).count();
    assert_eq!(
        count("the labels of the node cannot be written"),
        1,
        "{log:?}"
    );
    assert_eq!(
        count("the labels of the node are written again"),
        1,
        "{log:?}"
    );
}

#[tokio::test]
async fn a_reload_without_the_file_removes_it() {
    let (node, _) = labelled("5m").await;
    let file = node.files.path("features.d/criswitch");
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    let removed = async {
        while file.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, removed).await.unwrap();
    node.end().await;
}
