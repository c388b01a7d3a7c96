//! The images of `criswitch try`, and pods that end during a try.

use std::process::{Child, Command, Stdio};

use tonic::Status;

use crate::reload::Node;
use crate::support::{Client, Journal};
use crate::text;
use crate::trial::{assert_nothing_is_left, json_of, node, try_on};

/// Starts `criswitch try kata`.
fn start(node: &Node) -> Child {
    let mut command = crate::command(&["try", "kata", "--config", text(&node.files.main())]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub(crate) fn interrupt(process: &Child) {
    signal(process, "INT");
}

fn signal(process: &Child, name: &str) {
    let pid = process.id().to_string();
    let kill = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(kill.unwrap().success());
}

/// The exit code and the standard output of a process.
pub(crate) async fn end(process: Child) -> (Option<i32>, String) {
    let output = tokio::task::spawn_blocking(|| process.wait_with_output().unwrap())
        .await
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// Checks that the try fails and leaves nothing.
async fn fails(node: Node, process: Child) {
    let (code, stdout) = end(process).await;
    assert_eq!(code, Some(1), "{stdout}");
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn ctrl_c_during_each_step_or_a_closed_terminal_removes_the_pod() {
    let node = node().await;
    for (rpc, name) in [
        ("CreateContainer", "INT"),
        ("StartContainer", "INT"),
        ("ExecSync", "HUP"),
        ("StopContainer", "INT"),
    ] {
        node.new.hold(rpc);
        let process = start(&node);
        node.new
            .until(|journal| journal.held.iter().any(|held| held == rpc))
            .await;
        signal(&process, name);
        node.new
            .until(|journal| journal.cancelled.iter().any(|it| it == rpc))
            .await;
        node.new.release(rpc);
        let (code, stdout) = end(process).await;
        assert_eq!(code, Some(1), "{rpc}: {stdout}");
        assert!(stdout.contains("failed after "), "{stdout}");
        assert!(stdout.ends_with("failed: interrupted\n"), "{stdout}");
        assert_nothing_is_left(&node);
    }
    node.end().await;
}

#[tokio::test]
async fn ctrl_c_while_the_pod_is_created_waits_for_its_id_and_removes_it() {
    let node = node().await;
    node.new.hold_reply("RunPodSandbox");
    let process = start(&node);
    node.new.until_done("RunPodSandbox").await;
    interrupt(&process);
    node.new.release("RunPodSandbox");
    fails(node, process).await;
}

#[tokio::test]
async fn a_pod_that_exists_although_its_creation_failed_is_found_by_its_label_and_removed() {
    let node = node().await;
    // The runtime creates the pod, but its reply never arrives.
    node.new.hold_reply("RunPodSandbox");
    let process = start(&node);
    node.new.until_done("RunPodSandbox").await;
    assert_eq!(node.new.pods().len(), 1);
    node.new.stop().await;
    node.new.release("RunPodSandbox");
    node.new.start();
    fails(node, process).await;
}

#[tokio::test]
async fn a_pod_whose_container_is_starting_is_removed_later() {
    let node = node().await;
    node.new.hold("StartContainer");
    let process = start(&node);
    let is_held = |held: &[String]| held.iter().any(|rpc| rpc == "StartContainer");
    node.new.until(|journal| is_held(&journal.held)).await;
    let words = "container is in starting state, can't be removed";
    for rpc in ["RemoveContainer", "RemovePodSandbox"] {
        node.new.fail(rpc, Status::unknown(words));
    }
    interrupt(&process);
    node.new
        .until(|journal| journal.calls_of("RemovePodSandbox").count() > 1)
        .await;
    for rpc in ["RemoveContainer", "RemovePodSandbox"] {
        node.new.heal(rpc);
    }
    node.new.release("StartContainer");
    fails(node, process).await;
}

#[tokio::test]
async fn images_without_a_shell_are_skipped() {
    let node = node().await;
    let busybox = node.new.images()[0].id.clone();
    node.new.add_image("example.com/tools:1");
    node.new
        .clone()
        .set(|settings| settings.without_shell = vec![busybox]);
    let outcome = try_on(&node, &["kata"]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stdout);
    let skipped = "docker.io/library/busybox:1.36 has no shell";
    assert!(outcome.stdout.contains(skipped), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("example.com/tools:1"),
        "{}",
        outcome.stdout
    );
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn images_that_all_lack_a_shell_are_named() {
    let node = node().await;
    let busybox = node.new.images()[0].id.clone();
    node.new
        .clone()
        .set(|settings| settings.without_shell = vec![busybox]);
    let outcome = try_on(&node, &["kata"]).await;
    assert_eq!(outcome.code, 1);
    let expected = "these images have no shell: docker.io/library/busybox:1.36; name an image with a shell: --image IMAGE";
    assert!(outcome.stdout.contains(expected), "{}", outcome.stdout);
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn without_an_image_the_error_says_what_to_do() {
    let node = Node::start("").await;
    node.old.add_image("registry.k8s.io/pause:3.10");
    let (code, json) = json_of(&node, &["runc"]).await;
    assert_eq!(code, 1);
    let tried = &json["tries"][0];
    let expected = "find image: the backend has no image with a shell; pull one there, or name one: --image IMAGE";
    assert_eq!(tried["failure"], expected);
    assert_eq!(tried["untested"], true);
    assert!(node.old.calls("RunPodSandbox").is_empty());
    node.end().await;
}

#[tokio::test]
async fn a_named_image_is_pulled_only_if_the_backend_of_the_handler_lacks_it() {
    let node = node().await;
    for (image, pulls) in [
        ("docker.io/library/busybox:1.36", 0),
        ("example.com/new:1", 1),
    ] {
        let outcome = try_on(&node, &["kata", "--image", image]).await;
        assert_eq!(outcome.code, 0, "{}", outcome.stdout);
        assert_eq!(node.new.calls("PullImage").len(), pulls, "{image}");
        assert_eq!(outcome.stdout.contains("pull image"), pulls == 1);
    }
    assert!(node.old.calls("PullImage").is_empty());
    node.new.fail("PullImage", Status::unknown("no such host"));
    let outcome = try_on(&node, &["kata", "--image", "example.com/other:1"]).await;
    assert_eq!(outcome.code, 1);
    let words = ": PullImage returned Unknown: no such host\n  result            failed at \"pull image\"\n";
    assert!(outcome.stdout.contains(words), "{}", outcome.stdout);
    node.end().await;
}

#[tokio::test]
async fn a_pod_that_something_else_stops_is_tried_again() {
    let node = node().await;
    node.new.hold("ExecSync");
    let process = start(&node);
    let is_held = |held: &[String]| held.iter().any(|rpc| rpc == "ExecSync");
    node.new.until(|journal| is_held(&journal.held)).await;
    // 137 is the exit code of a container that a kubelet kills.
    node.new.exit(&node.new.containers()[0].id, 137);
    node.new.release("ExecSync");
    // A kubelet on a busy machine may stop several pods, one after the other.
    for pods in 2..5 {
        node.new.until(|journal| !is_held(&journal.held)).await;
        node.new.hold("ExecSync");
        let runs = |journal: &Journal| journal.calls_of("RunPodSandbox").count();
        node.new
            .until(|journal| runs(journal) == pods && is_held(&journal.held))
            .await;
        node.new.exit(&node.new.containers()[0].id, 137);
        node.new.release("ExecSync");
    }
    let (code, stdout) = end(process).await;
    assert_eq!(code, Some(0), "{stdout}");
    let again = "because something else, such as a kubelet, stopped the pod";
    assert!(stdout.contains(again), "{stdout}");
    assert_eq!(node.new.calls("RunPodSandbox").len(), 5);
    assert_nothing_is_left(&node);
    node.end().await;
}

#[tokio::test]
async fn a_pod_whose_end_is_shown_late_is_tried_again() {
    let node = node().await;
    node.new
        .fail("StartContainer", Status::unknown("connection refused"));
    let process = start(&node);
    let is_looked_at = |journal: &Journal| journal.calls_of("PodSandboxStatus").count() >= 2;
    node.new.until(is_looked_at).await;
    node.new.heal("StartContainer");
    let kubelet = Client::new(&node.new.socket());
    kubelet.stop_pod(&node.new.pods()[0].id).await.unwrap();
    let (code, stdout) = end(process).await;
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(node.new.calls("RunPodSandbox").len(), 2);
    assert_nothing_is_left(&node);
    node.end().await;
}
