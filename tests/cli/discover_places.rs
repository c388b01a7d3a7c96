//! The paths that `criswitch discover` examines, and the files that are not backends.

use expect_test::expect;

use crate::runtimes::{CONTAINERD, CRIO, Node, containerd, crio};
use crate::support::{Rig, Sim};
use crate::text;

#[tokio::test]
async fn every_well_known_path_is_examined() {
    let mut node = Node::new();
    for (n, place) in [
        "var/snap/microk8s/common/run/containerd.sock",
        "run/k0s/containerd.sock",
        "run/k3s/cri-dockerd/cri-dockerd.sock",
        "run/k3s/containerd/containerd.sock",
        "run/cri-dockerd.sock",
        CRIO,
        CONTAINERD,
    ]
    .into_iter()
    .enumerate()
    {
        let handler = format!("h{n}");
        node = node.with(place, containerd([handler.as_str()]));
    }
    let printed = node.configuration(&[]).await;
    assert_eq!(
        printed.backends(),
        [
            "containerd = /node/run/containerd/containerd.sock",
            "crio = /node/run/crio/crio.sock",
            "cri-dockerd = /node/run/cri-dockerd.sock",
            "k3s = /node/run/k3s/containerd/containerd.sock",
            "k3s-docker = /node/run/k3s/cri-dockerd/cri-dockerd.sock",
            "k0s = /node/run/k0s/containerd.sock",
            "microk8s = /node/var/snap/microk8s/common/run/containerd.sock",
        ]
    );
    // The help lists every well-known path.
    let help = crate::run(&["discover", "--help"]).stdout;
    for backend in printed.backends() {
        let (_, place) = backend.split_once(" = /node").unwrap();
        assert!(help.contains(&format!("  {place} ")), "{place}");
    }
}

#[tokio::test]
async fn a_socket_in_the_arguments_comes_first_and_gets_the_default_handler() {
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with("run/kata/containerd.sock", containerd(["kata", "runc"]));
    let printed = node
        .configuration(&["--all", "unix://NODE/run/kata/containerd.sock"])
        .await;
    assert_eq!(
        printed.backends(),
        [
            "kata = /node/run/kata/containerd.sock",
            "containerd = /node/run/containerd/containerd.sock",
        ]
    );
    assert_eq!(
        printed.rows(),
        [r#"*kata -> kata "kata""#, r#"runc -> kata "runc""#]
    );
}

/// A kubelet that uses a backend removes all pods there that it does not know.
#[tokio::test]
async fn only_the_named_sockets_become_backends_and_a_note_names_the_others_with_their_pods() {
    let other = containerd(["runc"]);
    let node = Node::new()
        .with(CONTAINERD, other.clone())
        .with("run/kata/containerd.sock", containerd(["kata"]));
    let direct = crate::support::Client::new(&node.path(CONTAINERD));
    direct.run_pod("", "web").await.unwrap();
    let printed = node.configuration(&["NODE/run/kata/containerd.sock"]).await;
    assert_eq!(
        printed.backends(),
        ["kata = /node/run/kata/containerd.sock"]
    );
    let note = "criswitch: Also found: /node/run/containerd/containerd.sock (containerd 2.4.2, 1 pod). \
                It is not a backend here; --all makes it one.\n";
    assert_eq!(printed.shown, note);
    let file = node.path("found.toml");
    let sockets = ["NODE/run/kata/containerd.sock", "NODE/none.sock"];
    let outcome = node
        .discover(&[&sockets[..], &["--write", text(&file)]].concat())
        .await;
    assert_eq!(outcome.code, 1);
    let cause = "no backend at /node/none.sock: No such file or directory";
    assert!(outcome.stderr.contains(cause), "{}", outcome.stderr);
    assert!(!file.exists());
}

#[tokio::test]
async fn a_backend_is_named_by_its_file_or_its_directory_or_a_number() {
    let places = ["run/a/Run_C.sock", "run/b/run-c.sock", "run/run-c/b.sock"];
    let mut node = Node::new();
    for (handler, place) in ["x", "y", "z"].into_iter().zip(places) {
        node = node.with(place, containerd([handler]));
    }
    let given = places.map(|place| format!("NODE/{place}"));
    let printed = node
        .configuration(&given.each_ref().map(String::as_str))
        .await;
    assert_eq!(
        printed.backends(),
        [
            "run-c = /node/run/a/Run_C.sock",
            "b = /node/run/b/run-c.sock",
            "backend-1 = /node/run/run-c/b.sock",
        ]
    );
}

#[tokio::test]
async fn two_paths_to_one_socket_are_one_backend() {
    let node = Node::new().with(CONTAINERD, containerd(["runc"]));
    std::os::unix::fs::symlink(node.path("run"), node.path("var/run")).unwrap();
    let given = "NODE/var/run/containerd/containerd.sock";
    let printed = node.configuration(&[given, given]).await;
    assert_eq!(
        printed.backends(),
        ["containerd = /node/var/run/containerd/containerd.sock"]
    );
    let also = "also at\n# /node/run/containerd/containerd.sock\n";
    assert!(printed.text.contains(also), "{}", printed.text);
}

#[tokio::test]
async fn the_runtime_that_the_kubelet_uses_comes_before_the_other_well_known_paths() {
    for (endpoint, default) in [
        ("unix:///run/crio/crio.sock", "crio"),
        ("unix:///var/run/own.sock", "own"),
        ("unix:///run/absent.sock", "containerd"),
    ] {
        let node = Node::new()
            .with(CONTAINERD, containerd(["runc"]))
            .with(CRIO, crio(["crun"]))
            .with("var/run/own.sock", containerd(["own"]));
        let kubelet = format!("kubelet\0--container-runtime-endpoint={endpoint}\0");
        std::fs::write(node.path("proc/812/cmdline"), kubelet).unwrap();
        let printed = node.configuration(&[]).await;
        let first = &printed.config.table.backends[0].name;
        assert_eq!(first, default, "{}", printed.text);
    }
}

#[tokio::test]
async fn criswitchs_own_socket_is_recognized_by_its_path_or_its_answer() {
    let node = Node::new().with(CONTAINERD, containerd(["runc"]));
    let rig = Rig::start([Sim::new("other")]).await.on_a_real_clock();
    let switch = rig.directory().join("criswitch.sock");
    std::os::unix::fs::symlink(&switch, node.path(CRIO)).unwrap();
    // No option names criswitch's socket, so `discover` recognizes criswitch by the reply at this socket.
    let printed = node.configuration(&[]).await;
    assert_eq!(printed.backends().len(), 1);
    expect![[r#"
        criswitch: /node/run/crio/crio.sock is a socket of criswitch, not of a backend.
    "#]]
    .assert_eq(&printed.shown);
    // `--listen` names criswitch's socket, so `discover` sends nothing to it, not even through a link.
    let printed = node.configuration(&["--listen", text(&switch)]).await;
    assert_eq!(printed.backends().len(), 1);
    assert_eq!(printed.config.listen.to_string(), text(&switch));
    // `discover` rejects a `--listen` that is the socket of a backend.
    std::os::unix::fs::symlink(node.path(CONTAINERD), node.path("link.sock")).unwrap();
    for listen in ["NODE/run/containerd/containerd.sock", "NODE/link.sock"] {
        let outcome = node.discover(&["--listen", listen]).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""), "{listen}");
    }
}

#[tokio::test]
async fn a_path_that_is_not_a_cri_socket_is_reported_with_the_cause() {
    let node = Node::new().with(CONTAINERD, containerd(["runc"]));
    std::fs::write(node.path(CRIO), "").unwrap();
    drop(std::os::unix::net::UnixListener::bind(node.path("run/cri-dockerd.sock")).unwrap());
    let no_cri = Sim::new("docker");
    let unknown = "unknown service runtime.v1.RuntimeService";
    no_cri.fail("Version", tonic::Status::unimplemented(unknown));
    let node = node.with("run/k0s/containerd.sock", no_cri);
    let printed = node.configuration(&[]).await;
    assert_eq!(printed.backends().len(), 1);
    expect![[r#"
        criswitch: No backend at /node/run/cri-dockerd.sock: cannot connect: Connection refused.
        criswitch: No backend at /node/run/k0s/containerd.sock: Version returned Unimplemented: unknown service runtime.v1.RuntimeService; the runtime is too old, or its CRI plugin is disabled (disabled_plugins, as in Docker's packages).
        criswitch: No backend at /node/run/crio/crio.sock: it is a file, not a socket.
    "#]].assert_eq(&printed.shown);
}

#[tokio::test]
async fn discover_without_a_socket_exits_with_1_and_a_hint() {
    let node = Node::new();
    let outcome = node.discover(&[]).await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    let root = rustix::process::geteuid().is_root();
    let hint = if root {
        "start the container runtime"
    } else {
        "as root"
    };
    assert!(
        outcome
            .stderr
            .contains("found no CRI socket at the well-known paths; "),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains(hint), "{}", outcome.stderr);
    // If a socket exists but does not answer, the error is a different one.
    drop(std::os::unix::net::UnixListener::bind(node.path(CONTAINERD)).unwrap());
    let outcome = node.discover(&["--json"]).await;
    assert_eq!(outcome.code, 1);
    let failure: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let problem = failure["problems"][0]["what"].as_str().unwrap();
    assert!(
        problem.starts_with("no backend answers at any CRI socket; "),
        "{problem}"
    );
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        lines[0].contains("No backend at /node/run/containerd/containerd.sock: cannot connect"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("no backend answers at any CRI socket; "),
        "{lines:?}"
    );
}
