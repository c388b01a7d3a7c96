//! Backends whose sockets are served by a user other than the configured one, as the kernel reports it.

use crate::logged_daemon::LoggedDaemon;
use crate::runtimes::{CONTAINERD, CRIO, Node, containerd, crio};
use crate::support::Sim;
use crate::who_may_connect::{NOBODY, is_root};
use crate::{main_file, run_beside, text};

/// The output of `check --probe` for a backend with this row. The backend's process runs as an unexpected user.
async fn probed(row: &str) -> String {
    let node = Node::new().with(CRIO, Sim::new("crio").of_user(NOBODY));
    let row = row.replace("SOCKET", text(&node.path(CRIO)));
    let table = format!("default_handler = 'crio'\n[handlers]\ncrio = 'b'\n[backends]\nb = {row}");
    let files = main_file(&table);
    let outcome = run_beside(&["check", "--probe", "--config", text(&files.main())]).await;
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    outcome.stdout
}

#[tokio::test]
async fn a_probe_names_the_user_unless_it_is_the_configured_one() {
    if !is_root() {
        return;
    }
    let named = format!("user {NOBODY} serves the backend's socket");
    for (row, is_named) in [
        ("'SOCKET'", true),
        ("{ socket = 'SOCKET', user = 'daemon' }", true),
        ("{ socket = 'SOCKET', user = '65534' }", false),
    ] {
        let shown = probed(row).await;
        assert_eq!(shown.contains(&named), is_named, "{row}: {shown}");
    }
}

#[tokio::test]
async fn discover_names_the_user() {
    if !is_root() {
        return;
    }
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, crio(["crun"]).of_user(NOBODY));
    let shown = node.configuration(&[]).await.shown;
    assert!(shown.contains("crio: user 65534 serves"), "{shown}");
    assert!(shown.contains("user = \"65534\""), "{shown}");
    assert!(!shown.contains("containerd: user"), "{shown}");
}

#[tokio::test]
async fn the_daemon_logs_each_process_once_and_warns_of_an_unexpected_user() {
    if !is_root() {
        return;
    }
    let node = Node::new()
        .with(CONTAINERD, containerd(["runc"]))
        .with(CRIO, crio(["crun"]).of_user(NOBODY));
    let files = main_file("");
    let listen = files.main().with_file_name("listen");
    let write = |user: &str| {
        let (containerd, crio) = (node.path(CONTAINERD), node.path(CRIO));
        let table =
            format!("default_handler = 'runc'\n[handlers]\nrunc = {containerd:?}\ncrun = 'crio'");
        let row = format!("[backends]\ncrio = {{ socket = {crio:?}, user = '{user}' }}");
        std::fs::write(files.main(), format!("listen = {listen:?}\n{table}\n{row}")).unwrap();
    };
    write("daemon");
    let mut shown = LoggedDaemon::start(&files);
    shown.until("user 65534 serves the backend's socket");
    for user in ["nobody", "daemon"] {
        write(user);
        shown.signal("HUP");
        shown.until("user of backend crio");
    }
    let log = shown.end();
    let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("connected to the backend's process"), 2, "{log}");
    assert_eq!(lines("user 65534 serves the backend's socket"), 2, "{log}");
}
