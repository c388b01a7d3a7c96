//! `criswitch forget` shows the pods that it would forget, and asks for a confirmation.

use crate::reload::Node;
use crate::support::Client;
#[cfg(unix)]
use crate::terminal::typing_beside;
use crate::{run_beside, text};

#[cfg(unix)] // Only the test on a terminal uses this.
const QUESTION: &str = "Forget backend kata? [y/N] ";

/// A node with the pod `boxed` on a backend that is down, and the pod `web` on a backend that is ready.
async fn half_down() -> Node {
    let node = Node::start("").await;
    node.write("", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    let direct = Client::new(&node.new.socket());
    direct.run_pod("kata", "boxed").await.unwrap();
    while node.info().await["backends"][1]["state"] != "ready" {}
    while node.info().await["backends"][1]["pods"] != 1 {
        node.client().pods().await.unwrap();
    }
    node.client().run_pod("runc", "web").await.unwrap();
    node.new.stop().await;
    while node.info().await["backends"][1]["state"] != "down" {}
    node
}

/// The number of pods that the backend `kata` owns.
async fn owned(node: &Node) -> u64 {
    let pods = &node.info().await["backends"][1]["pods"];
    pods.as_u64().unwrap_or_default()
}

/// Checks that the output shows the pod `boxed` and the effect on it, but not the pod `web`.
#[track_caller]
fn assert_shows_the_loss(shown: &str) {
    let mut lines = shown.lines();
    let pod = lines.find(|line| line.ends_with(" default/boxed"));
    let is_cached = |line: &str| line.starts_with("kata ") && line.contains("ready (cached)");
    assert!(pod.is_some_and(is_cached), "{shown}");
    assert!(!shown.contains("default/web"), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let effect = "Pods of backend kata";
    assert!(words.contains(effect), "{shown}");
}

#[cfg(unix)] // script(1), which makes the terminal, is a Unix program.
#[tokio::test]
async fn forget_on_a_terminal_shows_the_lost_pods_and_asks() {
    let node = half_down().await;
    let config = node.files.main();
    let forget = ["forget", "kata", "--config", text(&config)];
    for keys in ["n\n", "\n"] {
        let declined = typing_beside(keys, &forget).await;
        assert_eq!(declined.code, 1, "{}", declined.stdout);
        let (shown, rest) = declined.stdout.split_once(QUESTION).unwrap();
        assert_shows_the_loss(shown);
        assert!(
            rest.contains("not confirmed: nothing is forgotten"),
            "{rest}"
        );
        assert_eq!(owned(&node).await, 1);
    }
    let confirmed = typing_beside("y\n", &forget).await;
    assert_eq!(confirmed.code, 0, "{}", confirmed.stdout);
    let (shown, rest) = confirmed.stdout.split_once(QUESTION).unwrap();
    assert_shows_the_loss(shown);
    assert!(rest.ends_with("forgotten: kata\n"), "{rest}");
    assert_eq!(owned(&node).await, 0);
    node.end().await;
}

#[tokio::test]
async fn forget_without_a_terminal_shows_the_lost_pods_and_needs_yes() {
    let node = half_down().await;
    let config = node.files.main();
    let outcome = run_beside(&["forget", "kata", "--config", text(&config)]).await;
    assert_eq!(outcome.code, 1);
    assert_shows_the_loss(&outcome.stdout);
    assert!(outcome.stderr.contains("add --yes"), "{}", outcome.stderr);
    assert_eq!(owned(&node).await, 1);
    let outcome = run_beside(&["forget", "kata", "--yes", "--config", text(&config)]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    assert_eq!(outcome.stdout, "forgotten: kata\n");
    assert_eq!(owned(&node).await, 0);
    node.end().await;
}
