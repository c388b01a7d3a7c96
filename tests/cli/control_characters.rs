//! The commands' output and the daemon's log contain no control characters, even if names of backends and clients do.

use criswitch_cri::codec::cri::RuntimeCondition;
use tonic::Status;

use crate::reload::Node;
use crate::{run_beside, text};

/// Contains an escape sequence in its 7-bit and its 8-bit encoding, BEL, DEL, CR and LF.
const HOSTILE: &str = "a\u{1b}[31mb\u{9b}2Jc\u{7}d\u{7f}e\r\nf";

async fn hostile() -> Node {
    let node = Node::start("log.level = 'debug'").await;
    for sim in [&node.old, &node.new] {
        sim.clone().set(|settings| {
            settings.runtime_name = HOSTILE.to_owned();
            settings.version = HOSTILE.to_owned();
            settings.handlers[1].name = HOSTILE.to_owned();
            settings.config =
                Some(serde_json::json!({ "containerd": { "defaultRuntimeName": HOSTILE } }));
            settings.conditions.push(RuntimeCondition {
                r#type: HOSTILE.to_owned(),
                status: false,
                reason: HOSTILE.to_owned(),
                message: HOSTILE.to_owned(),
            });
            settings.conditions[1].status = false;
            settings.conditions[1].message = HOSTILE.to_owned();
        });
    }
    node
}

#[track_caller]
fn assert_plain(what: &str, printed: &str) {
    let lines = printed.split_terminator('\n');
    let odd: Vec<_> = lines
        .filter(|line| line.contains(char::is_control))
        .collect();
    assert!(odd.is_empty(), "{what}: {odd:#?}");
}

/// Checks that the output has the hostile text without its control characters.
async fn prints(node: &Node, arguments: &[&str]) {
    let file = node.files.main();
    let config = [arguments, &["--config", text(&file)]].concat();
    let sockets = [node.old.socket(), node.new.socket()];
    let arguments = match arguments {
        ["discover", ..] => [arguments, &[text(&sockets[0]), text(&sockets[1])]].concat(),
        _ => config,
    };
    let outcome = run_beside(&arguments).await;
    let printed = outcome.stdout + &outcome.stderr;
    assert_plain(&format!("{arguments:?}"), &printed);
    assert!(printed.contains("[31mb"), "{arguments:?}: {printed}");
}

#[tokio::test]
async fn no_command_prints_control_characters_of_a_backend() {
    let node = hostile().await;
    node.client().run_pod("runc", HOSTILE).await.unwrap();
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["pods"],
        &["pods", "--json"],
        &["check", "--probe"],
        &["check", "--probe", "--json"],
        &["discover"],
        &["discover", "--json"],
    ] {
        prints(&node, arguments).await;
    }
    node.old.fail("Status", Status::internal(HOSTILE));
    node.old.fail("ListPodSandbox", Status::internal(HOSTILE));
    for arguments in [
        &["status"][..],
        &["pods", "--handler", "c\u{1b}[31mb"],
        &["check", "--probe"],
        &["check", "--probe", "--json"],
        &["discover"],
    ] {
        prints(&node, arguments).await;
    }
    node.end().await;
}

#[tokio::test]
async fn no_log_line_has_control_characters_of_a_backend_or_a_client() {
    let node = hostile().await;
    for rpc in ["RunPodSandbox", "ListPodSandbox", "Version", "Status"] {
        node.old.fail(rpc, Status::internal(HOSTILE));
    }
    node.client().run_pod(HOSTILE, HOSTILE).await.unwrap_err();
    node.client().run_pod("runc", HOSTILE).await.unwrap_err();
    node.client().stop_pod(HOSTILE).await.unwrap_err();
    node.old.stop().await;
    node.old.start();
    let failed = async { while !node.info().await["backends"].to_string().contains("[31mb") {} };
    tokio::time::timeout(crate::support::PATIENCE, failed)
        .await
        .unwrap();
    let log = node.whole_log().await;
    assert!(log.iter().any(|line| line.contains("[31mb")), "{log:#?}");
    log.iter().for_each(|line| assert_plain("log", line));
}
