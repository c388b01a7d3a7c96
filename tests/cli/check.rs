//! `criswitch check` without calls to backends.

use std::fs;

use expect_test::expect;

use crate::logged_daemon::LoggedDaemon;
#[cfg(unix)]
use crate::support::write_program;
use crate::support::{ConfigFiles, native};
use crate::{command, main_file, run, text};

pub(crate) const TABLE: &str = "
    listen = '/run/criswitch/other.sock'
    default_handler = 'runc'
    shutdown_timeout = '90s'
    [handlers]
    runc = '/run/containerd/containerd.sock'
    gvisor = { backend = 'crio', handler = 'runsc' }
    plain = { backend = 'crio', handler = '' }
    [backends]
    crio = '/run/crio/crio.sock'
    old = { socket = '/run/old/containerd.sock', auto_register = true }";

#[cfg(unix)] // Windows has different settings, and windows.rs checks them.
#[test]
fn check_shows_the_settings_and_the_routing_table() {
    let files = main_file(TABLE);
    let outcome = run(&["check", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let shown = files.stable(&outcome.stdout);
    expect![[r#"
        read criswitch.toml

        KEY                  VALUE
        listen               /run/criswitch/other.sock
        default_handler      runc
        shutdown_timeout     1m 30s
        max_message          16MiB
        start_wait           30s
        list_timeout         2s
        stats_timeout        2s
        stale_lists          unlimited
        runtime_dir          /run/criswitch/state with systemd, else /run/criswitch/other.sock.state
        state_dir            /var/lib/criswitch with systemd, else /run/criswitch/other.sock.state
        allow_uids           [0]
        watch                false
        labels_file          -
        labels_failed_after  5m
        log.level            info
        log.format           auto
        metrics.listen       -

        HANDLER  BACKEND  BACKEND HANDLER
        gvisor   crio     runsc
        plain    crio     (its own default)
        runc     runc     runc

        BACKEND  HANDLERS  LIST TIMEOUT  STATS TIMEOUT  AUTO-REGISTER  SOCKET
        runc     1         2s            2s             no             /run/containerd/containerd.sock
        crio     2         2s            2s             no             /run/crio/crio.sock
        old      0         2s            2s             yes            /run/old/containerd.sock

        configuration is valid
    "#]]
    .assert_eq(&shown);
}

/// The output of `criswitch check` below its last table.
fn warnings(table: &str) -> String {
    let files = main_file(table);
    let outcome = run(&["check", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let (_, warnings) = outcome.stdout.split_once("SOCKET\n").unwrap();
    let (_, warnings) = warnings.split_once("\n\n").unwrap();
    files.stable(warnings)
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn check_warns_of_the_unmapped_user_and_of_a_file_of_labels_that_cannot_be_written() {
    let rows = "default_handler = 'runc'\n[handlers]\nrunc = '/run/containerd/containerd.sock'";
    let users = warnings(&format!("allow_uids = [1000, 65534]\n{rows}"));
    expect![[r#"
        criswitch.toml:1:1: allow_uids has 65534, which is every user without an id in this user namespace; try the id of one user

        configuration is valid, with 1 warning
    "#]].assert_eq(&users);
    for file in ["/nonexistent/features.d/criswitch", "/proc"] {
        let labels = warnings(&format!("labels_file = '{file}'\n{rows}"));
        let words = format!("criswitch.toml:1:15: labels_file is {file}, ");
        assert!(labels.starts_with(&words), "{labels}");
    }
}

#[test]
fn check_warns_of_files_in_the_directory_of_drop_ins_that_it_does_not_read() {
    let files = ConfigFiles::of(&[
        ("criswitch.toml", TABLE.as_bytes()),
        ("conf.d/10-a.toml", b"watch = true"),
        ("conf.d/20-b.conf", b"watch = true"),
        ("conf.d/30-c.TOML", b""),
        ("conf.d/40-d.yaml", b""),
        ("conf.d/.50-e.toml.swp", b""),
        ("conf.d/60-f.toml~", b""),
        ("conf.d/70-g.toml.bak", b""),
    ]);
    let outcome = run(&["check", "--config", text(&files.main())]);
    let shown = files.stable(&outcome.stdout);
    let lines = shown.lines().filter(|line| line.contains("conf.d"));
    expect![[r#"
        read conf.d/10-a.toml
        conf.d/20-b.conf: criswitch does not read this file, because its name does not end in .toml; try renaming it to conf.d/20-b.toml
        conf.d/30-c.TOML: criswitch does not read this file, because its name does not end in .toml; try renaming it to conf.d/30-c.toml
        conf.d/40-d.yaml: criswitch does not read this file, because its name does not end in .toml; try renaming it to conf.d/40-d.toml
        conf.d/70-g.toml.bak: criswitch does not read this file, because its name does not end in .toml; try moving it to a different directory"#]].assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn check_prints_the_schema_for_editors() {
    let output = command(&["check", "--schema"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema, criswitch_config::keys::schema());
}

#[test]
fn check_warns_of_valid_settings_that_are_probably_mistakes() {
    let warnings = warnings(
        "max_message = '64KiB'
        stale_lists = '0s'
        default_handler = 'runc'
        [handlers]
        runc = '/run/containerd/containerd.sock'
        listen = '/run/criswitch/other.sock'
        [backends]
        old = '/run/old/containerd.sock'
        watch = { socket = '/run/watch.sock', auto_register = true }
        new = { socket = '/run/new.sock', auto_register = true }",
    );
    expect![[r#"
        criswitch.toml:1:15: max_message is 64KiB, and the kubelet accepts 16MiB: larger lists fail, for example on a node with many pods; try "16MiB"
        criswitch.toml:2:23: stale_lists is 0s: while a backend does not answer, every list of the node fails; try "unlimited"
        criswitch.toml:6: handler "listen" has the name of a key; if the key is meant, move it above the first [table]
        criswitch.toml:9: backend "watch" has the name of a key; if the key is meant, move it above the first [table]
        criswitch.toml:8: backend "old" has no handler: it gets no new pods; add a row under [handlers], or remove the backend once its pods have ended

        configuration is valid, with 5 warnings
    "#]]
    .assert_eq(&warnings);
}

#[test]
fn check_warns_of_the_socket_of_a_program_without_the_cri() {
    let warnings = warnings(
        "default_handler = 'runc'\n[handlers]\nrunc = '/var/run/docker.sock'\ncri = '/run/cri-dockerd.sock'\nnri = '/run/nri/nri.sock'",
    );
    expect![[r#"
        criswitch.toml:3: backend "runc" is the socket of Docker, which has no CRI; try the socket of containerd or of cri-dockerd
        criswitch.toml:5: backend "nri" is the socket of NRI, which has no CRI; try the socket of the runtime itself

        configuration is valid, with 2 warnings
    "#]]
    .assert_eq(&warnings);
}

#[test]
fn check_warns_of_a_backend_whose_own_lists_are_never_cached() {
    let warnings = warnings(
        "default_handler = 'runc'
        [handlers]
        runc = 'runc'
        [backends]
        runc = { socket = '/run/runc.sock', stale_lists = '0s' }",
    );
    expect![[r#"
        criswitch.toml:5: backend "runc" has stale_lists = "0s": while a backend does not answer, every list of the node fails; try "unlimited"

        configuration is valid, with 1 warning
    "#]]
    .assert_eq(&warnings);
}

#[cfg(unix)] // Windows has different settings, and windows.rs checks them.
#[test]
fn check_prints_the_configuration_as_json() {
    let files = main_file(TABLE);
    let outcome = run(&["check", "--json", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        {
          "allowUids": [
            0
          ],
          "backends": [
            {
              "autoRegister": false,
              "listTimeoutMs": 2000,
              "name": "runc",
              "origin": "criswitch.toml:6",
              "required": true,
              "socket": "/run/containerd/containerd.sock",
              "statsTimeoutMs": 2000
            },
            {
              "autoRegister": false,
              "listTimeoutMs": 2000,
              "name": "crio",
              "origin": "criswitch.toml:10",
              "required": true,
              "socket": "/run/crio/crio.sock",
              "statsTimeoutMs": 2000
            },
            {
              "autoRegister": true,
              "listTimeoutMs": 2000,
              "name": "old",
              "origin": "criswitch.toml:11",
              "required": true,
              "socket": "/run/old/containerd.sock",
              "statsTimeoutMs": 2000
            }
          ],
          "defaultHandler": "runc",
          "files": [
            "criswitch.toml"
          ],
          "handlers": [
            {
              "backend": "crio",
              "backendHandler": "runsc",
              "name": "gvisor",
              "origin": "criswitch.toml:7"
            },
            {
              "backend": "crio",
              "backendHandler": "",
              "name": "plain",
              "origin": "criswitch.toml:8"
            },
            {
              "backend": "runc",
              "backendHandler": "runc",
              "name": "runc",
              "origin": "criswitch.toml:6"
            }
          ],
          "hash": "fd19f2070bcbc047",
          "labelsFailedAfterMs": 300000,
          "listTimeoutMs": 2000,
          "listen": "/run/criswitch/other.sock",
          "logFormat": "auto",
          "logLevel": "info",
          "maxMessageBytes": 16777216,
          "moreProblems": 0,
          "notes": [],
          "problems": [],
          "schema": 1,
          "shutdownTimeoutMs": 90000,
          "startWaitMs": 30000,
          "statsTimeoutMs": 2000,
          "watch": false
        }
    "#]]
    .assert_eq(&files.stable(&outcome.stdout));
}

#[test]
fn every_problem_goes_to_standard_error_and_the_code_is_78() {
    let files = main_file(
        "default_handler = 'runcc'\nshutdown_timeout = '10'\n[handlers]\nrunc = '/run/a.sock'",
    );
    let path = files.main();
    let mut shown = Vec::new();
    for arguments in [
        &["check"][..],
        &["check", "--json"],
        &["check", "--probe"],
        &[],
    ] {
        let outcome = match arguments {
            [] => crate::ended(&mut crate::daemon(text(&path)), false),
            _ => run(&[arguments, &["--config", text(&path)]].concat()),
        };
        assert_eq!(outcome.code, 78, "{arguments:?}");
        // With `--json`, the problems are on standard output too.
        let is_json = arguments.contains(&"--json");
        assert_eq!(outcome.stdout.is_empty(), !is_json, "{arguments:?}");
        // Only the text output of `check` ends with a line that says whether the configuration is valid.
        let (problems, verdict) = match outcome.stderr.split_once("configuration is not") {
            Some((problems, verdict)) => (problems.to_owned(), Some(verdict)),
            None => (outcome.stderr.clone(), None),
        };
        let is_for_people = !arguments.is_empty() && !is_json;
        let expected = is_for_people.then_some(" valid: 2 problems\n");
        assert_eq!(verdict, expected, "{arguments:?}");
        shown.push(files.stable(&problems));
    }
    shown.dedup();
    assert_eq!(shown.len(), 1, "each tells the same");
    expect![[r#"
        criswitch.toml:1:19: "default_handler" is "runcc", which is not in [handlers]; try "runc"
        criswitch.toml:2:20: "10" is not a duration: time unit needed, for example 10sec or 10ms; try "10s"
    "#]]
    .assert_eq(&shown[0]);
}

#[cfg(unix)] // The path is a Unix path, and windows.rs checks a Windows path.
#[test]
fn a_missing_file_is_a_problem_of_the_configuration() {
    let outcome = run(&["check", "--config", "/nonexistent/criswitch.toml"]);
    assert_eq!(outcome.code, 78);
    expect![[r#"
        /nonexistent/criswitch.toml:1:1: cannot be read: No such file or directory; try criswitch discover --write /nonexistent/criswitch.toml, or a different path after --config
        configuration is not valid: 1 problem
    "#]]
    .assert_eq(&outcome.stderr);
}

#[cfg(unix)] // A pipe has no relative path.
#[test]
fn json_has_every_problem_of_the_configuration() {
    let files = main_file("default_handler = 'runc'\n[handlers]\nrunc = 'x.sock/'\n");
    let outcome = run(&["check", "--json", "--config", text(&files.main())]);
    assert_eq!(outcome.code, 78);
    expect![[r#"
        {"moreProblems":0,"problems":[{"column":8,"line":3,"path":"criswitch.toml","try":"an absolute path, such as \"/run/name/name.sock\"","what":"the socket path \"x.sock/\" is relative"}],"schema":1}
    "#]]
    .assert_eq(&files.stable(&outcome.stdout));
    expect![[r#"
        criswitch.toml:3:8: the socket path "x.sock/" is relative; try an absolute path, such as "/run/name/name.sock"
    "#]].assert_eq(&files.stable(&outcome.stderr));
}

#[cfg(unix)] // The state is beside the socket.
#[test]
fn check_warns_of_backends_whose_absence_would_make_lists_fail_after_a_restart() {
    let files = main_file(
        "listen = 'criswitch.sock'
        default_handler = 'runc'
        [handlers]
        runc = '/run/criswitch-test/runc.sock'
        [backends]
        new = { socket = '/run/criswitch-test/new.sock', auto_register = true, required = false }",
    );
    let directory = files.main().parent().unwrap().to_owned();
    let config = fs::read_to_string(files.main()).unwrap().replace(
        "'criswitch.sock'",
        &format!("{:?}", directory.join("criswitch.sock")),
    );
    fs::write(files.main(), native(&config)).unwrap();
    let check = || {
        let outcome = run(&["check", "--config", text(&files.main())]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
        let (_, below) = outcome.stdout.split_once("new.sock\n").unwrap();
        below.to_owned()
    };
    let warning = expect![[r#"

        a restart would make lists fail as long as backend runc (/run/criswitch-test/runc.sock) is away: its lists are not saved, because it has not been listed yet or they cannot be written

        configuration is valid, with 1 warning
    "#]];
    assert_eq!(check(), "\nconfiguration is valid\n");
    let daemon = LoggedDaemon::start(&files);
    warning.assert_eq(&check());
    daemon.end();
    // `check` reads the saved state from disk, so its warning is the same when the daemon does not run.
    warning.assert_eq(&check());
    let register = directory.join("criswitch.sock.state/backends.register");
    fs::write(&register, "damaged").unwrap();
    warning.assert_eq(&check());
    assert_eq!(fs::read(register).unwrap(), b"damaged");
}

#[cfg(unix)] // The daemon is a script.
#[test]
fn a_configuration_that_the_daemon_rejects_is_a_problem() {
    let folder = beside_daemon("echo no >&2\nexit 78");
    let program = folder.path().join("criswitch");
    let files = main_file(TABLE);
    let what = "the daemon beside this program rejects this configuration (exit status: 78): no";
    for (format, end) in [
        ("wide", "configuration is not valid for the daemon\n"),
        ("json", "}\n"),
        ("name", "runc\n"),
    ] {
        let mut check = std::process::Command::new(&program);
        check.args(["check", "-o", format, "--config", text(&files.main())]);
        let output = check.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{format}");
        let shown = [output.stderr, output.stdout].map(|text| String::from_utf8(text).unwrap());
        assert!(shown.concat().contains(what), "{shown:?}");
        assert!(shown[1].ends_with(end), "{shown:?}");
    }
}

/// A folder with criswitch and with a script as the daemon.
#[cfg(unix)]
fn beside_daemon(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let [program, daemon] = ["criswitch", "criswitchd"].map(|name| folder.path().join(name));
    write_program(&program, fs::read(env!("CARGO_BIN_EXE_criswitch")).unwrap());
    write_program(&daemon, format!("#!/bin/sh\n{script}\n"));
    folder
}

#[cfg(unix)] // The daemon is a script.
#[test]
fn version_names_a_daemon_of_another_version() {
    let folder = beside_daemon("echo criswitchd 0.0.9");
    let mut version = std::process::Command::new(folder.path().join("criswitch"));
    let output = version.arg("version").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let sentence = "the daemon beside this program has another version: criswitchd 0.0.9; install both from one release";
    assert!(errors.contains(sentence), "{errors}");
}

#[test]
fn the_daemon_checks_its_configuration_in_one_line() {
    let files = main_file(TABLE);
    let path = text(&files.main()).to_owned();
    let mut check = crate::daemon(&path);
    let output = check.arg("--check").output().unwrap();
    assert!(output.status.success());
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown, format!("{path} is valid: 3 handlers, 3 backends\n"));
    let serve = run(&["serve"]);
    let place = "the daemon is a program of its own; start ";
    assert!(serve.stderr.contains(place), "{}", serve.stderr);
}
