//! Facts that the replies of a runtime show: the daemon, the labels, `check --probe` and `discover` report the same.

use criswitch_cri::codec::cri::CgroupDriver::Systemd;
use serde_json::json;

use crate::reload::Node;
use crate::support::{PATIENCE, Sim};
use crate::{Outcome, run_beside, text};

/// A node with the backends runc and kata. `change` edits the simulated runtime of kata before the runtime answers.
async fn node(change: impl FnOnce(Sim)) -> Node {
    let node = Node::start("").await;
    node.new.stop().await;
    drop(node.old.clone().cgroup_driver(Systemd));
    change(node.new.clone());
    node.new.start();
    node.write("labels_failed_after = \"1s\"", &node.kata());
    assert_eq!(node.reload().await.code, 0);
    node
}

async fn probe(node: &Node) -> Outcome {
    let file = node.files.main();
    run_beside(&["check", "--probe", "--config", text(&file)]).await
}

async fn discover(node: &Node) -> Outcome {
    let sockets = [node.old.socket(), node.new.socket()];
    run_beside(&["discover", text(&sockets[0]), text(&sockets[1])]).await
}

/// Runs the command until its output has this text.
async fn until(command: impl AsyncFn() -> Outcome, wanted: impl Fn(&str) -> bool) -> Outcome {
    let found = async {
        loop {
            let outcome = command().await;
            let printed = outcome.stdout.clone() + &outcome.stderr;
            if wanted(&printed) {
                return outcome;
            }
        }
    };
    let found = tokio::time::timeout(PATIENCE, found).await;
    found.expect("the text is never printed")
}

#[tokio::test]
async fn the_cgroup_driver_of_a_runtime_without_runtime_config_is_that_of_its_configuration() {
    let node = node(|kata| {
        let kata = kata.lacks(["RuntimeConfig"]);
        kata.set(|settings| {
            let options = json!({ "SystemdCgroup": false });
            let runc = json!({ "runtimeType": "io.containerd.runc.v2", "options": options });
            let runtimes = json!({ "defaultRuntimeName": "kata", "runtimes": { "kata": runc } });
            settings.config = Some(json!({ "containerd": runtimes }));
        });
    })
    .await;
    let probed = probe(&node).await;
    assert_eq!(probed.code, 1, "{}", probed.stdout);
    for outcome in [probed, discover(&node).await] {
        let printed = outcome.stdout + &outcome.stderr;
        assert!(
            printed.contains("uses the cgroup driver cgroupfs"),
            "{printed}"
        );
    }
    let file = node.files.main();
    let status = async || run_beside(&["status", "--config", text(&file)]).await;
    until(status, |printed| printed.contains("cgroup driver differs")).await;
    node.end().await;
}

#[tokio::test]
async fn a_runtime_that_is_not_ready_fails_the_probe_and_loses_its_labels() {
    let node = node(|kata| {
        kata.set(|settings| {
            let mut conditions = settings.conditions.iter_mut();
            let ready = conditions.find(|it| it.r#type == "RuntimeReady").unwrap();
            ready.status = false;
            "no space left".clone_into(&mut ready.message);
        });
    })
    .await;
    let probed = probe(&node).await;
    assert_eq!(probed.code, 1, "{}", probed.stdout);
    let printed = probed.stdout + &probed.stderr;
    assert!(
        printed.contains("it is not ready (RuntimeReady is false): no space left"),
        "{printed}"
    );
    let found = discover(&node).await;
    let printed = found.stdout + &found.stderr;
    assert!(printed.contains("RuntimeReady is false"), "{printed}");
    let file = node.files.main();
    let status = async || run_beside(&["status", "--config", text(&file)]).await;
    until(status, |printed| printed.contains("RuntimeReady is false")).await;
    let labels = async || run_beside(&["labels", "--config", text(&file)]).await;
    let labels = until(labels, |printed| !printed.contains("kata")).await;
    assert!(
        labels.stdout.contains("handler.runc=true"),
        "{}",
        labels.stdout
    );
    node.end().await;
}

#[tokio::test]
async fn a_runtime_without_the_cri_is_reported_with_what_to_look_at() {
    let node = node(drop).await;
    let unknown = tonic::Status::unimplemented("unknown service runtime.v1.RuntimeService");
    node.new.fail("Version", unknown.clone());
    node.new.fail("ListPodSandbox", unknown);
    let hint = "its CRI plugin is disabled";
    for outcome in [probe(&node).await, discover(&node).await] {
        let printed = outcome.stdout + &outcome.stderr;
        assert!(printed.contains(hint), "{printed}");
    }
    let file = node.files.main();
    let pods = async || run_beside(&["pods", "--config", text(&file)]).await;
    pods().await;
    let status = async || run_beside(&["status", "--config", text(&file)]).await;
    until(status, |printed| printed.contains(hint)).await;
    node.end().await;
}
