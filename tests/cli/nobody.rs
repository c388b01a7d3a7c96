//! What is said where nobody answers who is asked.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use expect_test::expect;

use crate::reload::{Files, Node};
use crate::{command, run, run_beside, text};

const ROWS: &str = "default_handler = \"runc\"\n[handlers]\nrunc = \"/run/runc.sock\"\n";

/// A configuration that has nothing wrong with it.
fn listens_on(files: &Files, socket: &Path) {
    files.write("criswitch.toml", &format!("listen = {socket:?}\n{ROWS}"));
}

/// The exit code of a command that cannot ask criswitch.
fn unasked(command: &str) -> i32 {
    if command == "status" { 69 } else { 1 }
}

/// What the commands that ask a switch say where none answers.
async fn refused(files: &Files) -> String {
    let config = files.main();
    let mut told = String::new();
    for command in ["status", "pods", "reload"] {
        let outcome = run_beside(&[command, "--config", text(&config)]).await;
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (unasked(command), "")
        );
        told += &outcome.stderr.replace(text(&files.path("")), "DIR/");
    }
    told
}

#[tokio::test]
async fn who_finds_no_switch_is_told_what_to_look_at() {
    let files = Files::new();
    let socket = files.path("socket");
    listens_on(&files, &socket);
    expect![[r#"
        criswitch: DIR/socket: cannot connect: No such file or directory (os error 2); check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
        criswitch: DIR/socket: cannot connect: No such file or directory (os error 2); check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
        criswitch: not reloaded (a changed `listen` needs a restart: restart criswitch, or set `listen` back): DIR/socket: cannot connect: No such file or directory (os error 2); check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
    "#]].assert_eq(&refused(&files).await);
    files.write("socket", "");
    let told = refused(&files).await;
    let cause = "DIR/socket: cannot connect: Connection refused (os error 111); check that criswitch is running";
    assert_eq!(told.matches(cause).count(), 3, "{told}");
}

#[tokio::test]
async fn who_finds_another_server_than_a_runtime_is_told_where() {
    let files = Files::new();
    let socket = files.path("socket");
    listens_on(&files, &socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            client.read_exact(&mut [0; 24]).ok();
            client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    // What breaks first is not always the same.
    let other = "DIR/socket: the process at this socket does not speak gRPC, or has just ended: ";
    let told = refused(&files).await;
    assert_eq!(told.matches(other).count(), 3, "{told}");
    assert_eq!(told.lines().count(), 3, "{told}");
    assert_eq!(told.matches("DIR/socket: ").count(), 3, "{told}");
    assert_eq!(
        told.matches("this is its socket (`listen`, or --socket PATH)")
            .count(),
        3,
        "{told}"
    );
    assert!(!told.contains("backend"), "{told}");
    let probed = files.path("probed.toml");
    let rows = format!("default_handler = \"a\"\n[handlers]\na = {socket:?}\n");
    files.write("probed.toml", &rows);
    let outcome = run_beside(&["check", "--probe", "--config", text(&probed)]).await;
    let told = outcome.stdout.replace(text(&files.path("")), "DIR/");
    let other = "\nbackend \"a\" (DIR/socket): the process at this socket does not speak gRPC, or has just ended: ";
    assert_eq!(told.matches(other).count(), 1, "{told}");
    assert_eq!(told.matches("DIR/socket").count(), 2, "{told}");
}

#[tokio::test]
async fn a_user_who_may_not_ask_is_told_who_may() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let node = Node::start("").await;
    // A test's directory is its own user's; the socket's mode is what is to refuse.
    fs::set_permissions(node.files.path(""), Permissions::from_mode(0o755)).unwrap();
    let binary = node.files.path("bin");
    // By another process: whatever a test beside this one starts would hold a file that is written here.
    let mut copy = Command::new("cp");
    copy.args([env!("CARGO_BIN_EXE_criswitch"), text(&binary)]);
    assert!(copy.status().unwrap().success());
    let ask = |command: &str| {
        let mut ask = Command::new("setpriv");
        ask.args(["--reuid=65534", "--clear-groups", text(&binary), command]);
        let output = ask.args(["--config", text(&node.files.main())]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(unasked(command)));
        let told = String::from_utf8(output.stderr).unwrap();
        told.replace(text(&node.files.path("")), "DIR/")
    };
    expect![[r#"
        criswitch: DIR/criswitch.sock: cannot connect: Permission denied (os error 13); run the command as root, or as a user of `allow_uids`
    "#]].assert_eq(&ask("status"));
    expect![[r#"
        criswitch: not reloaded (a changed `listen` needs a restart: restart criswitch, or set `listen` back): DIR/criswitch.sock: cannot connect: Permission denied (os error 13); run the command as root, or as a user of `allow_uids`
    "#]].assert_eq(&ask("reload"));
    node.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_files_is_told_where_nobody_is() {
    let files = Files::new();
    let socket = files.path("socket");
    files.write(
        "criswitch.toml",
        &format!("listen = {socket:?}\nshutdown_timout = \"1s\"\n{ROWS}"),
    );
    let told = refused(&files).await;
    let cause = "DIR/socket: cannot connect: No such file or directory";
    assert_eq!(told.matches(cause).count(), 3, "{told}");
    let problem =
        "\nDIR/criswitch.toml:2:1: unknown key \"shutdown_timout\"; try \"shutdown_timeout\"\n";
    assert_eq!(told.matches(problem).count(), 3, "{told}");
    let asked = run(&[
        "status",
        "--config",
        text(&files.main()),
        "--socket",
        text(&socket),
    ]);
    assert!(
        !asked.stderr.contains("shutdown_timout"),
        "{}",
        asked.stderr
    );
}

#[test]
fn a_file_that_cannot_be_read_is_told_and_nobody_is_asked() {
    let files = Files::new();
    let missing = files.main();
    for command in ["status", "pods", "reload"] {
        let outcome = run(&[command, "--config", text(&missing)]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (78, ""));
        expect![[r#"
            DIR/criswitch.toml:1:1: cannot be read: No such file or directory (os error 2); try creating it, or a different path after --config
        "#]].assert_eq(&outcome.stderr.replace(text(&files.path("")), "DIR/"));
        let socket = files.path("socket");
        let outcome = run(&[
            command,
            "--config",
            text(&missing),
            "--socket",
            text(&socket),
        ]);
        assert_eq!(outcome.code, unasked(command));
        assert!(
            outcome.stderr.contains("cannot connect"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn who_looks_again_and_again_gets_no_words_between_the_documents() {
    let files = Files::new();
    listens_on(&files, &files.path("socket"));
    let mut watch = command(&[
        "status",
        "--watch",
        "--json",
        "--config",
        text(&files.main()),
    ]);
    watch.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut told = BufReader::new(watch.stderr.take().unwrap()).lines();
    let told = told.next().unwrap().unwrap();
    watch.kill().unwrap();
    assert!(told.contains("cannot connect"), "{told}");
    let output = watch.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
}
