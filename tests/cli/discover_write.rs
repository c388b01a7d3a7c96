//! The outputs of `criswitch discover` besides text: a new file, and JSON.

use std::os::unix::fs::PermissionsExt;

use expect_test::expect;

use crate::runtimes::{CONTAINERD, CRIO, Node, containerd, crio};
use crate::{run, run_beside, text};

fn node() -> Node {
    Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, crio(["crun"]))
}

#[tokio::test]
async fn a_written_file_equals_the_printed_configuration_and_is_valid() {
    let node = node();
    let file = node.path("etc/criswitch.toml");
    let printed = node.discover(&[]).await.stdout;
    let outcome = node.discover(&["--write", text(&file)]).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        criswitch wrote /node/etc/criswitch.toml. Read it, then run:
          criswitch check --probe --config /node/etc/criswitch.toml
          criswitchd --config /node/etc/criswitch.toml
          crictl -r unix:///run/criswitch/criswitch.sock pods
        If these show what you expect, set for the kubelet:
          --container-runtime-endpoint=unix:///run/criswitch/criswitch.sock
    "#]]
    .assert_eq(&outcome.stdout);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let written = std::fs::read_to_string(&file).unwrap();
    let root = text(file.parent().unwrap().parent().unwrap());
    assert_eq!(written.replace(root, "/node"), printed);
    let checked = run_beside(&["check", "--probe", "--config", text(&file)]).await;
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""));
}

#[tokio::test]
async fn an_existing_file_is_not_changed() {
    let node = node();
    let file = node.path("etc/criswitch.toml");
    std::fs::write(&file, "mine").unwrap();
    let outcome = node.discover(&["--write", text(&file)]).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    expect![[r#"
        criswitch: /node/etc/criswitch.toml exists and was not changed; try a different name, or move the file
    "#]].assert_eq(&outcome.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    // A dangling symbolic link counts as an existing file.
    let link = node.path("etc/link.toml");
    std::os::unix::fs::symlink(node.path("etc/elsewhere.toml"), &link).unwrap();
    let outcome = node.discover(&["--write", text(&link)]).await;
    assert_eq!(outcome.code, 1);
    assert!(!node.path("etc/elsewhere.toml").exists());
}

#[tokio::test]
async fn a_missing_directory_is_reported_with_a_hint() {
    let outcome = node()
        .discover(&["--write", "NODE/none/criswitch.toml"])
        .await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    expect![[r#"
        criswitch: cannot write /node/none/criswitch.toml: /node/none does not exist; try mkdir -p /node/none
    "#]].assert_eq(&outcome.stderr);
}

#[tokio::test]
async fn nothing_is_written_when_nothing_was_found() {
    let node = Node::new();
    let file = node.path("etc/criswitch.toml");
    let outcome = node.discover(&["--write", text(&file)]).await;
    assert_eq!(outcome.code, 1);
    assert!(!file.exists());
}

#[tokio::test]
async fn discover_rejects_a_listen_that_the_daemon_would_reject() {
    let outcome = node()
        .discover(&["--listen", "/run/x/run/crio/crio.sock"])
        .await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    expect![[r#"
        criswitch: the result is not a valid configuration: discovered:5:10: "listen" ends in run/crio/crio.sock: for a socket with this name, the kubelet collects stats in a different way; try "/run/criswitch/criswitch.sock"
    "#]].assert_eq(&outcome.stderr);
}

#[test]
fn a_socket_that_is_not_a_path_is_wrong_usage() {
    let outcome = run(&["discover", "run/a.sock"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (64, ""));
    expect![[r#"
        error: invalid value 'run/a.sock' for '[SOCKET]...': the socket path "run/a.sock" is relative; try an absolute path, such as "/run/name/name.sock"

        For more information, try '--help'.
    "#]].assert_eq(&outcome.stderr);
    let both = run(&["discover", "--json", "--write", "x"]);
    assert_eq!(both.code, 64);
}

#[tokio::test]
async fn programs_get_the_same_as_json() {
    let node = || {
        let node = node();
        std::fs::write(node.path("run/cri-dockerd.sock"), "").unwrap();
        node
    };
    let outcome = node().discover(&["--json"]).await;
    assert_eq!(outcome.code, 0);
    let mut json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let configuration = json
        .as_object_mut()
        .unwrap()
        .remove("configuration")
        .unwrap();
    let printed = node().discover(&[]).await.stdout;
    assert_eq!(configuration, printed);
    expect![[r#"
        {
          "backends": [
            {
              "also": [],
              "defaultHandler": "runc",
              "name": "containerd",
              "probe": {
                "answers": true,
                "cgroupDriver": "systemd",
                "conditions": [
                  {
                    "message": "",
                    "reason": "",
                    "status": true,
                    "type": "RuntimeReady"
                  },
                  {
                    "message": "",
                    "reason": "",
                    "status": true,
                    "type": "NetworkReady"
                  }
                ],
                "features": [
                  "supplemental_groups_policy"
                ],
                "handlers": [
                  "runc"
                ],
                "lackingRpcs": [],
                "runtime": "containerd",
                "unansweredRpcs": [],
                "unknownFeatures": [],
                "version": "2.4.2"
              },
              "socket": "/node/run/containerd/containerd.sock"
            },
            {
              "also": [],
              "name": "crio",
              "probe": {
                "answers": true,
                "cgroupDriver": "systemd",
                "conditions": [
                  {
                    "message": "",
                    "reason": "",
                    "status": true,
                    "type": "RuntimeReady"
                  },
                  {
                    "message": "",
                    "reason": "",
                    "status": true,
                    "type": "NetworkReady"
                  }
                ],
                "features": [
                  "supplemental_groups_policy"
                ],
                "handlers": [
                  "crun"
                ],
                "lackingRpcs": [],
                "runtime": "cri-o",
                "unansweredRpcs": [],
                "unknownFeatures": [],
                "version": "1.37.0"
              },
              "socket": "/node/run/crio/crio.sock"
            }
          ],
          "defaultHandler": "runc",
          "handlers": [
            {
              "backend": "containerd",
              "backendHandler": "runc",
              "features": [],
              "kind": "runc",
              "name": "runc"
            },
            {
              "backend": "crio",
              "backendHandler": "crun",
              "features": [],
              "kind": "crun",
              "name": "crun"
            }
          ],
          "listen": "/run/criswitch/criswitch.sock",
          "notes": [
            "No backend at /node/run/cri-dockerd.sock: it is a file, not a socket."
          ],
          "own": [],
          "problems": [],
          "schema": 1,
          "silent": [
            {
              "cause": "it is a file, not a socket",
              "socket": "/node/run/cri-dockerd.sock"
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&json).unwrap());
}
