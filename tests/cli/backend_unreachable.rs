//! The output of commands while a backend is unreachable: the verdict of `criswitch status`, and the warning that a
//! restart would make lists fail.

use crate::reload::Node;
#[cfg(unix)]
use crate::terminal::on_a_terminal_beside;
use crate::{run_beside, text};

/// The configuration of a backend that never answers, because its socket does not exist.
const AWAY: &str = "[backends]\nkata = \"/nowhere/kata.sock\"\n";

async fn with_a_backend_away() -> Node {
    let node = Node::start(AWAY).await;
    while node.info().await["backends"]
        .as_array()
        .is_none_or(|backends| backends.iter().all(|backend| backend["state"] != "down"))
    {}
    node
}

#[tokio::test]
async fn reload_and_status_announce_that_lists_would_fail_after_a_restart() {
    let node = with_a_backend_away().await;
    let announced = "a restart now would make lists fail: backend kata (/nowhere/kata.sock) is away, and it has not been listed yet";
    let config = node.files.main();
    let reload = node.reload().await;
    assert_eq!((reload.code, reload.stderr.as_str()), (0, ""));
    assert_eq!(reload.stdout.lines().last(), Some(announced));
    let status = run_beside(&["status", "--config", text(&config)]).await;
    let lines = status.stdout.lines().filter(|line| *line == announced);
    assert_eq!(lines.count(), 1, "{}", status.stdout);

    // After `forget`, no list needs the backend, so a restart would make no list fail.
    node.write("", "");
    assert_eq!(node.reload().await.code, 0);
    let forget = run_beside(&["forget", "kata", "--yes", "--config", text(&config)]).await;
    assert_eq!((forget.code, forget.stderr.as_str()), (0, ""));
    let status = run_beside(&["status", "--config", text(&config)]).await;
    let reload = node.reload().await;
    for stdout in [reload.stdout, status.stdout] {
        assert!(!stdout.contains("a restart now"), "{stdout}");
    }
    node.end().await;
}

/// The first words of `criswitch status`, which are its verdict: on a terminal, and through a pipe.
#[cfg(unix)] // Only a test for Unix uses this.
async fn verdict(node: &Node) -> [String; 2] {
    let config = node.files.main();
    let status = ["status", "--config", text(&config)];
    let outputs = [
        on_a_terminal_beside(&status).await,
        run_beside(&status).await,
    ];
    outputs.map(|output| output.stdout.split(':').next().unwrap().to_owned())
}

#[cfg(unix)] // script(1), which makes the terminal, is a Unix program.
#[tokio::test]
async fn the_verdict_of_status_is_green_yellow_or_red_on_a_terminal() {
    let node = Node::start("").await;
    let green = "\u{1b}[32mserving\u{1b}[0m";
    assert_eq!(verdict(&node).await, [green, "serving"]);
    node.write("", "kata = \"/nowhere/kata.sock\"");
    assert_eq!(node.reload().await.code, 0);
    while node.info().await["backends"][1]["state"] != "down" {}
    let yellow = "\u{1b}[33mdegraded\u{1b}[0m";
    assert_eq!(verdict(&node).await, [yellow, "degraded"]);
    node.end().await;

    let node = with_a_backend_away().await;
    let red = "\u{1b}[31mlists failing\u{1b}[0m";
    assert_eq!(verdict(&node).await, [red, "lists failing"]);
    node.end().await;
}
