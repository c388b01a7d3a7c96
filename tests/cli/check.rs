//! `criswitch check` without a word to any backend.

use expect_test::expect;

use crate::{main_file, run, text};

const TABLE: &str = "
    listen = '/run/criswitch/other.sock'
    default = 'runc'
    drain = '90s'
    [handlers]
    runc = '/run/containerd/containerd.sock'
    gvisor = { backend = 'crio', handler = 'runsc' }
    plain = { backend = 'crio', handler = '' }
    [backends]
    crio = '/run/crio/crio.sock'
    old = { socket = '/run/old/containerd.sock', adopt = true }";

#[test]
fn check_shows_the_table_as_it_will_run() {
    let files = main_file(TABLE);
    let outcome = run(&["check", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        KEY             VALUE
        listen          /run/criswitch/other.sock
        default         runc
        drain           1m 30s
        max_message     16MiB
        start_wait      30s
        list_timeout    2s
        stats_timeout   2s
        stale_lists     unlimited
        runtime_dir     -
        state_dir       -
        allow_uids      [0]
        watch           false
        log.level       info
        log.format      auto
        metrics.listen  -

        HANDLER  BACKEND  CALLED THERE
        gvisor   crio     runsc
        plain    crio     (its own default)
        runc     runc     runc

        BACKEND  HANDLERS  LIST TIMEOUT  STATS TIMEOUT  ADOPTS  SOCKET
        runc     1         2s            2s             no      /run/containerd/containerd.sock
        crio     2         2s            2s             no      /run/crio/crio.sock
        old      0         2s            2s             yes     /run/old/containerd.sock
    "#]]
    .assert_eq(&outcome.stdout);
}

#[test]
fn check_shows_it_to_programs_as_json() {
    let files = main_file(TABLE);
    let outcome = run(&["check", "--json", "--config", text(&files.main())]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    expect![[r#"
        {
          "allow_uids": [
            0
          ],
          "backends": [
            {
              "adopt": false,
              "list_timeout_ms": 2000,
              "name": "runc",
              "origin": "criswitch.toml:6",
              "probe": null,
              "required": true,
              "socket": "/run/containerd/containerd.sock",
              "stale_lists_ms": null,
              "stats_timeout_ms": 2000,
              "user": null
            },
            {
              "adopt": false,
              "list_timeout_ms": 2000,
              "name": "crio",
              "origin": "criswitch.toml:10",
              "probe": null,
              "required": true,
              "socket": "/run/crio/crio.sock",
              "stale_lists_ms": null,
              "stats_timeout_ms": 2000,
              "user": null
            },
            {
              "adopt": true,
              "list_timeout_ms": 2000,
              "name": "old",
              "origin": "criswitch.toml:11",
              "probe": null,
              "required": true,
              "socket": "/run/old/containerd.sock",
              "stale_lists_ms": null,
              "stats_timeout_ms": 2000,
              "user": null
            }
          ],
          "default": "runc",
          "drain_ms": 90000,
          "files": [
            "criswitch.toml"
          ],
          "handlers": [
            {
              "advertised": null,
              "backend": "crio",
              "backend_handler": "runsc",
              "name": "gvisor",
              "origin": "criswitch.toml:7"
            },
            {
              "advertised": null,
              "backend": "crio",
              "backend_handler": "",
              "name": "plain",
              "origin": "criswitch.toml:8"
            },
            {
              "advertised": null,
              "backend": "runc",
              "backend_handler": "runc",
              "name": "runc",
              "origin": "criswitch.toml:6"
            }
          ],
          "hash": "7a194fc9af81e8f2",
          "lacking_features": null,
          "list_timeout_ms": 2000,
          "listen": "/run/criswitch/other.sock",
          "log_format": "auto",
          "log_level": "info",
          "max_message_bytes": 16777216,
          "metrics_listen": null,
          "more_problems": 0,
          "node": null,
          "notes": [],
          "problems": [],
          "runtime_dir": null,
          "stale_lists_ms": null,
          "start_wait_ms": 30000,
          "state_dir": null,
          "stats_timeout_ms": 2000,
          "watch": false
        }
    "#]]
    .assert_eq(&files.stable(&outcome.stdout));
}

#[test]
fn every_problem_goes_to_standard_error_and_the_code_is_78() {
    let files = main_file("default = 'runcc'\ndrain = '10'\n[handlers]\nrunc = '/run/a.sock'");
    let path = files.main();
    let mut told = Vec::new();
    for arguments in [
        &["check"][..],
        &["check", "--json"],
        &["check", "--probe"],
        &["serve"],
    ] {
        let outcome = run(&[arguments, &["--config", text(&path)]].concat());
        assert_eq!(outcome.code, 78, "{arguments:?}");
        // Programs get the same once more.
        let is_json = arguments.contains(&"--json");
        assert_eq!(outcome.stdout.is_empty(), !is_json, "{arguments:?}");
        told.push(files.stable(&outcome.stderr));
    }
    told.dedup();
    assert_eq!(told.len(), 1, "each tells the same");
    expect![[r#"
        criswitch.toml:1:11: "default" is "runcc", which is not in [handlers]; try "runc"
        criswitch.toml:2:9: "10" is not a duration: time unit needed, for example 10sec or 10ms; try "10s"
    "#]]
    .assert_eq(&told[0]);
}

#[test]
fn a_missing_file_is_a_problem_of_the_configuration() {
    let outcome = run(&["check", "--config", "/nonexistent/criswitch.toml"]);
    assert_eq!(outcome.code, 78);
    expect![[r#"
        /nonexistent/criswitch.toml:1:1: cannot be read: No such file or directory (os error 2); try creating it, or another path after --config
    "#]]
    .assert_eq(&outcome.stderr);
}

#[test]
fn what_is_wrong_is_told_to_programs_too() {
    let files = main_file("default = 'runc'\n[handlers]\nrunc = 'x.sock/'\n");
    let outcome = run(&["check", "--json", "--config", text(&files.main())]);
    assert_eq!(outcome.code, 78);
    expect![[r#"
        {
          "more_problems": 0,
          "problems": [
            {
              "column": 8,
              "line": 3,
              "path": "criswitch.toml",
              "try": "an absolute path, such as \"/run/name/name.sock\"",
              "what": "the socket path \"x.sock/\" is relative"
            }
          ]
        }
    "#]]
    .assert_eq(&files.stable(&outcome.stdout));
    expect![[r#"
        criswitch.toml:3:8: the socket path "x.sock/" is relative; try an absolute path, such as "/run/name/name.sock"
    "#]].assert_eq(&files.stable(&outcome.stderr));
}
