//! A daemon whose `listen` was edited: where it is asked, and what it says.

use expect_test::expect;

use crate::reload::Node;
use crate::support::Sim;
use crate::{Outcome, command, run_beside, text};

/// The node, with another `listen` in its file; its own socket.
async fn edited() -> (Node, String) {
    let node = Node::start("").await;
    let socket = text(&node.files.path("criswitch.sock")).to_owned();
    let main = std::fs::read_to_string(node.files.main()).unwrap();
    let main = main.replace("criswitch.sock", "other.sock");
    node.files.write("criswitch.toml", &main);
    (node, socket)
}

async fn at(node: &Node, command: &str, socket: &str) -> Outcome {
    let file = node.files.main();
    run_beside(&[command, "--config", text(&file), "--socket", socket]).await
}

#[tokio::test]
async fn the_daemon_is_asked_on_its_own_socket_and_refuses_by_name() {
    let (node, socket) = edited().await;
    let outcome = at(&node, "reload", &format!("unix://{socket}")).await;
    assert_eq!(outcome.code, 78, "{}", outcome.stderr);
    let told = outcome.stderr.replace(text(&node.files.path("")), "DIR/");
    expect![[r#"
        DIR/criswitch.toml:1:10: "listen" cannot change from "DIR/criswitch.sock" to "DIR/other.sock" without a restart; set it back, or restart criswitch, after you have changed ListenStream= of criswitch.socket if systemd holds the socket
        criswitch: not reloaded: nothing has changed
    "#]].assert_eq(&told);
    node.client().run_pod("runc", "web").await.unwrap();
    for command in ["status", "pods"] {
        let outcome = at(&node, command, &socket).await;
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        assert!(outcome.stdout.contains("runc"), "{}", outcome.stdout);
    }
    node.write("", &node.kata());
    assert_eq!(at(&node, "reload", &socket).await.code, 0);
    node.end().await;
}

#[tokio::test]
async fn who_asks_where_nobody_is_yet_is_told_of_the_restart_and_no_reload_begins() {
    let (node, _) = edited().await;
    let outcome = node.reload().await;
    assert_eq!(outcome.code, 1);
    for part in [
        "not reloaded (a changed `listen` needs a restart: restart criswitch, or set `listen` back)",
        "other.sock: cannot connect",
        "--socket PATH",
    ] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert_eq!(node.info().await["reloads"]["begun"], 0);
    node.end().await;
}

#[tokio::test]
async fn the_signal_is_refused_by_name_in_the_log_and_nothing_else_changes() {
    let (node, _) = edited().await;
    node.hang_up().await;
    let refused = crate::reload_odd::refused(&node, 1).await;
    assert!(
        refused.contains("\"listen\" cannot change from"),
        "{refused}"
    );
    node.client().run_pod("runc", "web").await.unwrap();
    let log = node.whole_log().await;
    let told = |line: &&String| line.contains("not reloaded") && line.contains("listen");
    assert_eq!(log.iter().filter(told).count(), 1, "{log:?}");
}

#[tokio::test]
async fn another_runtimes_socket_is_told_from_a_daemons() {
    let (node, _) = edited().await;
    let other = node.files.path("other.sock");
    let sim = Sim::new("runc");
    sim.serve_on(&other);
    let outcome = at(&node, "reload", text(&other)).await;
    assert_eq!(outcome.code, 1);
    assert!(
        outcome.stderr.contains("not of criswitch"),
        "{}",
        outcome.stderr
    );
    node.end().await;
}

#[test]
fn a_socket_that_can_be_none_is_wrong_usage() {
    let outcome = crate::run(&["reload", "--socket", "run/criswitch.sock"]);
    assert_eq!(outcome.code, 64);
    let told = "is relative; try an absolute path";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
}

#[tokio::test]
async fn a_file_that_is_gone_may_be_named_from_its_directory() {
    let node = Node::start("").await;
    let socket = node.files.path("criswitch.sock");
    std::fs::remove_file(node.files.main()).unwrap();
    let mut reload = command(&["reload", "--socket", text(&socket)]);
    reload.args(["--config", "criswitch.toml"]);
    reload.current_dir(node.files.path(""));
    let outcome = tokio::task::spawn_blocking(move || reload.output().unwrap());
    let outcome = outcome.await.unwrap();
    let told = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(78), "{told}");
    assert!(told.contains("No such file"), "{told}");
    node.end().await;
}
