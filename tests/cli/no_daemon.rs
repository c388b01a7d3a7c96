//! The output of commands when no daemon answers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
#[cfg(unix)]
use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    process::Command,
};

use expect_test::expect;
use serde_json::Value as Json;

use crate::reload::Files;
#[cfg(unix)]
use crate::reload::Node;
use crate::support::Sim;
use crate::support::sockets::shown;
#[cfg(unix)]
use crate::support::write_program;
use crate::{command, run, run_beside, text};

const ROWS: &str = "default_handler = \"runc\"\n[handlers]\nrunc = \"/run/runc.sock\"\n";

/// Writes a valid configuration with this `listen` socket.
fn listens_on(files: &Files, socket: &Path) {
    files.write("criswitch.toml", &format!("listen = {socket:?}\n{ROWS}"));
}

/// The errors of the commands that call the daemon when no daemon answers.
async fn refused(files: &Files) -> String {
    let config = files.main();
    let mut errors = String::new();
    for command in ["status", "pods", "reload"] {
        let outcome = run_beside(&[command, "--config", text(&config)]).await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (69, ""));
        errors += &outcome.stderr.replace(text(&files.path("")), "DIR/");
    }
    errors
}

#[cfg(unix)] // The message names systemd, and windows.rs checks the message of Windows.
#[tokio::test]
async fn an_error_without_a_daemon_names_what_to_check() {
    let files = Files::new();
    let socket = files.path("socket");
    listens_on(&files, &socket);
    expect![[r#"
        criswitch: DIR/socket: cannot connect: No such file or directory; check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
        criswitch: DIR/socket: cannot connect: No such file or directory; check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
        criswitch: not reloaded (if you changed `listen`, restart criswitch or set `listen` back): DIR/socket: cannot connect: No such file or directory; check that criswitch is running (systemctl status criswitch.socket criswitch.service), that this is its socket (`listen`, or --socket PATH), and that your user may connect (`allow_uids`)
    "#]].assert_eq(&refused(&files).await);
    files.write("socket", "");
    let errors = refused(&files).await;
    let cause =
        "DIR/socket: cannot connect: it is a file, not a socket; check that criswitch is running";
    assert_eq!(errors.matches(cause).count(), 3, "{errors}");
}

#[cfg(unix)] // The server of the test has a Unix socket.
#[tokio::test]
async fn a_server_that_is_not_a_runtime_is_named_with_its_socket() {
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
    // The cause at the end of the line varies.
    let other = "DIR/socket: the process at this socket does not speak gRPC, or has just ended: ";
    let errors = refused(&files).await;
    assert_eq!(errors.matches(other).count(), 3, "{errors}");
    assert_eq!(errors.lines().count(), 3, "{errors}");
    assert_eq!(errors.matches("DIR/socket: ").count(), 3, "{errors}");
    assert_eq!(
        errors
            .matches("this is its socket (`listen`, or --socket PATH)")
            .count(),
        3,
        "{errors}"
    );
    assert!(!errors.contains("backend"), "{errors}");
    let probed = files.path("probed.toml");
    let rows = format!("default_handler = \"a\"\n[handlers]\na = {socket:?}\n");
    files.write("probed.toml", &rows);
    let outcome = run_beside(&["check", "--probe", "--config", text(&probed)]).await;
    let errors = outcome.stdout.replace(text(&files.path("")), "DIR/");
    let other = "\nbackend \"a\" (DIR/socket): the process at this socket does not speak gRPC, or has just ended: ";
    assert_eq!(errors.matches(other).count(), 1, "{errors}");
    assert_eq!(errors.matches("DIR/socket").count(), 2, "{errors}");
}

#[cfg(unix)] // Windows has no numeric user ids.
#[tokio::test]
async fn a_user_who_may_not_connect_sees_which_users_may() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let node = Node::start("").await;
    // Every user may enter the directory, so the socket's mode denies the connection.
    fs::set_permissions(node.files.path(""), Permissions::from_mode(0o755)).unwrap();
    let binary = node.files.path("bin");
    write_program(&binary, fs::read(env!("CARGO_BIN_EXE_criswitch")).unwrap());
    let ask = |command: &str| {
        let mut ask = Command::new("setpriv");
        ask.args(["--reuid=65534", "--clear-groups", text(&binary), command]);
        let output = ask
            .args(["--config", text(&node.files.main())])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(69));
        let errors = String::from_utf8(output.stderr).unwrap();
        errors.replace(text(&node.files.path("")), "DIR/")
    };
    expect![[r#"
        criswitch: DIR/criswitch.sock: cannot connect: Permission denied; run the command as root, or as a user of `allow_uids`
    "#]].assert_eq(&ask("status"));
    expect![[r#"
        criswitch: not reloaded (if you changed `listen`, restart criswitch or set `listen` back): DIR/criswitch.sock: cannot connect: Permission denied; run the command as root, or as a user of `allow_uids`
    "#]].assert_eq(&ask("reload"));
    node.end().await;
}

#[tokio::test]
async fn problems_of_the_files_are_printed_when_no_daemon_answers() {
    let files = Files::new();
    let socket = files.path("socket");
    files.write(
        "criswitch.toml",
        &format!("listen = {socket:?}\nshutdown_timout = \"1s\"\n{ROWS}"),
    );
    let errors = refused(&files).await;
    let cause = "DIR/socket: cannot connect: No such file or directory";
    assert_eq!(errors.matches(cause).count(), 3, "{errors}");
    let problem =
        "\nDIR/criswitch.toml:2:1: unknown key \"shutdown_timout\"; try \"shutdown_timeout\"\n";
    assert_eq!(errors.matches(problem).count(), 3, "{errors}");
    let asked = run(&[
        "status",
        "--config",
        text(&files.main()),
        "--socket",
        text(&shown(&socket)),
    ]);
    assert!(
        !asked.stderr.contains("shutdown_timout"),
        "{}",
        asked.stderr
    );
}

#[test]
fn an_unreadable_file_is_reported_and_no_daemon_is_called() {
    let files = Files::new();
    let missing = files.main();
    for command in ["status", "pods", "reload"] {
        let outcome = run(&[command, "--config", text(&missing)]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (78, ""));
        expect![[r#"
            DIR/criswitch.toml:1:1: cannot be read: No such file or directory; try criswitch discover --write DIR/criswitch.toml, or a different path after --config
        "#]].assert_eq(&outcome.stderr.replace(text(&files.path("")), "DIR/"));
        let socket = files.path("socket");
        let outcome = run(&[
            command,
            "--config",
            text(&missing),
            "--socket",
            text(&shown(&socket)),
        ]);
        assert_eq!(outcome.code, 69);
        assert!(
            outcome.stderr.contains("cannot connect"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn watching_prints_one_object_per_line_also_while_nothing_answers() {
    let files = Files::new();
    listens_on(&files, &files.path("socket"));
    for command_line in ["status", "pods"] {
        let config = files.main();
        let arguments = [
            command_line,
            "--watch",
            "-o",
            "json",
            "--config",
            text(&config),
        ];
        let mut watch = command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            let object: Json = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            let problem = object["problems"][0]["what"].as_str().unwrap();
            assert!(problem.contains("cannot connect"), "{problem}");
            assert_eq!(object["schema"], 1);
        }
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}

#[tokio::test]
async fn each_command_that_calls_the_daemon_exits_with_69_if_a_different_runtime_answers() {
    let files = Files::new();
    let socket = files.path("runtime.sock");
    listens_on(&files, &socket);
    let sim = Sim::new("runc");
    sim.serve_on(&socket);
    let config = files.main();
    for arguments in [
        &["status"][..],
        &["pods"],
        &["reload"],
        &["reload", "--dry-run"],
        &["labels"],
        &["explain", "runc"],
        &["forget", "runc", "--yes"],
        &["try", "runc"],
    ] {
        let arguments = [arguments, &["--config", text(&config)]].concat();
        assert_eq!(run_beside(&arguments).await.code, 69, "{arguments:?}");
    }
    sim.stop().await;
    for arguments in [
        &["labels"][..],
        &["explain", "runc"],
        &["forget", "runc", "--yes"],
    ] {
        let arguments = [arguments, &["--config", text(&config)]].concat();
        let outcome = run_beside(&arguments).await;
        assert_eq!(outcome.code, 69, "{arguments:?}: {}", outcome.stderr);
    }
}
