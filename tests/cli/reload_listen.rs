//! Reloads of a daemon whose `listen` was edited, at its old socket and at the new one.

use expect_test::expect;

use crate::reload::Node;
use crate::support::sockets::shown;
use crate::support::{Sim, portable};
use crate::{Outcome, command, run_beside, text};

/// Starts a daemon, then changes `listen` in its file. Returns the node and the socket that the daemon still serves.
async fn edited() -> (Node, String) {
    let node = Node::start("").await;
    let socket = text(&shown(&node.files.path("criswitch.sock"))).to_owned();
    let main = std::fs::read_to_string(node.files.main())
        .unwrap()
        .replace("criswitch.sock", "other.sock");
    node.files.write("criswitch.toml", &main);
    (node, socket)
}

async fn at(node: &Node, command: &str, socket: &str) -> Outcome {
    let file = node.files.main();
    run_beside(&[command, "--config", text(&file), "--socket", socket]).await
}

#[cfg(unix)] // The message names systemd.
#[tokio::test]
async fn the_daemon_on_its_old_socket_rejects_a_changed_listen_by_name() {
    let (node, socket) = edited().await;
    let outcome = at(&node, "reload", &format!("unix://{socket}")).await;
    assert_eq!(outcome.code, 78, "{}", outcome.stderr);
    let shown = outcome.stderr.replace(text(&node.files.path("")), "DIR/");
    expect![[r#"
        DIR/criswitch.toml:1:10: "listen" cannot change from "DIR/criswitch.sock" to "DIR/other.sock" without a restart; try the old value, or restart criswitch, after you have changed ListenStream= of criswitch.socket if systemd holds the socket
        criswitch: not reloaded: nothing has changed
    "#]].assert_eq(&shown);
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
async fn a_reload_at_the_new_socket_fails_with_the_hint_to_restart() {
    let (node, _) = edited().await;
    let outcome = node.reload().await;
    assert_eq!(outcome.code, 69);
    for part in [
        "not reloaded (if you changed `listen`, restart criswitch or set `listen` back)",
        "other.sock: cannot connect",
        "--socket PATH",
    ] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert_eq!(node.info().await["reloads"]["begun"], 0);
    node.end().await;
}

#[cfg(unix)] // Windows has no signals.
#[tokio::test]
async fn a_reload_by_signal_is_rejected_by_name_in_the_log_and_nothing_changes() {
    let (node, _) = edited().await;
    node.hang_up().await;
    let rejected = crate::reload_unusable_files::rejected(&node, 1).await;
    assert!(
        rejected.contains("\"listen\" cannot change from"),
        "{rejected}"
    );
    node.client().run_pod("runc", "web").await.unwrap();
    let log = node.whole_log().await;
    let shown = |line: &&String| line.contains("not reloaded") && line.contains("listen");
    assert_eq!(log.iter().filter(shown).count(), 1, "{log:?}");
}

#[tokio::test]
async fn the_socket_of_a_different_runtime_is_reported() {
    let (node, _) = edited().await;
    let other = node.files.path("other.sock");
    let sim = Sim::new("runc");
    sim.serve_on(&other);
    let outcome = at(&node, "reload", text(&shown(&other))).await;
    assert_eq!(outcome.code, 69);
    assert!(
        outcome.stderr.contains("not of criswitch"),
        "{}",
        outcome.stderr
    );
    node.end().await;
}

#[cfg(unix)] // A pipe has no relative path.
#[test]
fn a_relative_socket_path_is_wrong_usage() {
    let outcome = crate::run(&["reload", "--socket", "run/criswitch.sock"]);
    assert_eq!(outcome.code, 64);
    let shown = "is relative; try an absolute path";
    assert!(outcome.stderr.contains(shown), "{}", outcome.stderr);
}

#[tokio::test]
async fn a_removed_file_is_recognized_by_a_relative_path() {
    let node = Node::start("").await;
    let socket = shown(&node.files.path("criswitch.sock"));
    std::fs::remove_file(node.files.main()).unwrap();
    let mut reload = command(&["reload", "--socket", text(&socket)]);
    reload.args(["--config", "criswitch.toml"]);
    reload.current_dir(node.files.path(""));
    let outcome = tokio::task::spawn_blocking(move || reload.output().unwrap())
        .await
        .unwrap();
    let shown = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(78), "{shown}");
    assert!(portable(&shown).contains("No such file"), "{shown}");
    node.end().await;
}
