//! Files that cannot be read, and files that contain no valid configuration.

use expect_test::expect;

use crate::{RUNC, fails_with, files_fail_with};

#[cfg(unix)] // A pipe has no relative path.
#[test]
fn all_problems_of_all_files_are_reported_at_once_in_order_of_place() {
    let main = "shutdown_timout = '10s'\ndefault_handler = 'runcc'\n[handlers]\nrunc = 'run/a.sock'\nKata = 'vm'";
    files_fail_with(
        &[
            ("criswitch.toml", main.as_bytes()),
            (
                "conf.d/a.toml",
                b"max_message = '0'\n[backends]\nvn = '/run/vm.sock'",
            ),
            ("conf.d/b.toml", b"[handlers]\nx = 7"),
        ],
        expect![[r#"
            criswitch.toml:1:1: unknown key "shutdown_timout"; try "shutdown_timeout"
            criswitch.toml:2:19: "default_handler" is "runcc", which is not in [handlers]; try "runc"
            criswitch.toml:4:8: the socket path "run/a.sock" is relative; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:5:1: handler name "Kata" is not a DNS label (RFC 1123); try "kata": 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:5:8: no backend is named "vm"; try "vn"
            conf.d/a.toml:1:15: a limit of zero would reject every message; try "16MiB"
            conf.d/b.toml:2:5: "x" is an integer, not a string; try "/run/containerd/containerd.sock""#]],
    );
}

#[cfg(unix)] // The hints name `allow_uids`.
#[test]
fn an_unknown_key_is_reported_with_the_nearest_known_one() {
    let head = "lsten = '/run/x.sock'\nreload = false";
    let tables =
        "[log]\nlevle = 'info'\ncolour = 'json'\n[metrics]\nport = 'x'\n[telemetry]\nlisten = 'x'";
    fails_with(
        &format!("{head}\n{RUNC}\n{tables}"),
        expect![[r#"
            criswitch.toml:1:1: unknown key "lsten"; try "listen"
            criswitch.toml:2:1: unknown key "reload"; try one of "listen", "default_handler", "shutdown_timeout", "max_message", "start_wait", "list_timeout", "stats_timeout", "stale_lists", "runtime_dir", "state_dir", "allow_uids", "watch", "labels_file", "labels_failed_after", "handlers", "backends", "log", "metrics"
            criswitch.toml:8:1: unknown key "levle"; try "level"
            criswitch.toml:9:1: unknown key "colour"; try one of "level", "format"
            criswitch.toml:11:1: unknown key "port"; try "listen"
            criswitch.toml:12:2: unknown key "telemetry"; try one of "listen", "default_handler", "shutdown_timeout", "max_message", "start_wait", "list_timeout", "stats_timeout", "stale_lists", "runtime_dir", "state_dir", "allow_uids", "watch", "labels_file", "labels_failed_after", "handlers", "backends", "log", "metrics""#]],
    );
}

#[cfg(unix)] // The hints name `allow_uids`.
#[test]
fn a_slip_has_one_problem_with_the_text_that_was_meant() {
    for (main, hint) in [
        (
            "default_handler = 'a'\n[handlers]\na = { backend = 'b' }\n[backend]\nb = '/run/b.sock'",
            "\"backends\"",
        ),
        (
            "default_handler = 'a'\n[Handlers]\na = '/run/a.sock'",
            "\"handlers\"",
        ),
        (
            "default_handler = 'a',\n[handlers]\na = '/run/a.sock'",
            "the line without the , at its end",
        ),
        (
            "default_handler = 'a'\n[handlers]\na = { socket = '/run/a.sock' kind = 'runc' }",
            "a comma between the keys",
        ),
        (
            "default_handler = 'a'\n[handlers]\na = { socket = '/run/a.sock', auto_register = true }",
            "this key in a row of [backends]",
        ),
        (
            "allow_uids = '1000'\ndefault_handler = 'a'\n[handlers]\na = '/run/a.sock'",
            "[1000]",
        ),
        (
            "allow_uids = ['1000']\ndefault_handler = 'a'\n[handlers]\na = '/run/a.sock'",
            "1000 without quotes",
        ),
        (
            "default_handler: 'a'\n[handlers]\na = '/run/a.sock'",
            "= in place of :",
        ),
        (
            "default_handler = 'a'\n[handlers]\na = { socket: '/run/a.sock' }",
            "= in place of :",
        ),
        (
            "default_handler = 'a'\n[handlers]\n=======\na = '/run/a.sock'",
            "the file without the markers of a merge conflict",
        ),
    ] {
        let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", main.as_bytes())]);
        let problems = criswitch_config::Config::load(&files.main()).expect_err(main);
        assert_eq!(problems.len(), 1, "{problems}");
        let first = problems.iter().next().unwrap();
        assert_eq!(first.hint, hint, "{problems}");
    }
}

#[test]
fn an_unknown_key_in_a_row_is_reported_and_no_key_as_missing() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = { sokcet = '/run/a.sock' }
        b = { backend = 'c', handler = 'x', weight = 1 }
        [backends]
        c = { socket = '/run/c.sock', weight = 1 }
        d = { socet = '/run/d.sock' }
        e = { socket = '/run/e.sock', list_timout = '5s', auto_registr = true }",
        expect![[r#"
            criswitch.toml:3:15: unknown key "sokcet"; try "socket"
            criswitch.toml:4:45: unknown key "weight"; try one of "backend", "socket", "handler", "kind", "class", "overhead", "node_selector", "tolerations"
            criswitch.toml:6:39: unknown key "weight"; try one of "socket", "list_timeout", "stats_timeout", "stale_lists", "auto_register", "required", "user"
            criswitch.toml:7:15: unknown key "socet"; try "socket"
            criswitch.toml:8:39: unknown key "list_timout"; try "list_timeout"
            criswitch.toml:8:59: unknown key "auto_registr"; try "auto_register""#]],
    );
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn a_wrong_type_is_reported_with_a_valid_value() {
    fails_with(
        "listen = 1
        default_handler = 2.5
        shutdown_timeout = 10
        max_message = true
        allow_uids = 1000
        log = 'info'
        [handlers]
        a = ['/run/a.sock']
        b = { socket = 1979-05-27 }
        [backends]
        c = 3
        d = { socket = { path = 'x' } }
        e = { socket = '/run/e.sock', list_timeout = 5, auto_register = 'yes' }",
        expect![[r#"
            criswitch.toml:1:10: "listen" is an integer, not a string; try "/run/criswitch/criswitch.sock"
            criswitch.toml:2:27: "default_handler" is a float, not a string; try "runc"
            criswitch.toml:3:28: "shutdown_timeout" is an integer, not a string; try "10s"
            criswitch.toml:4:23: "max_message" is a boolean, not a string; try "16MiB"
            criswitch.toml:5:22: "allow_uids" is an integer, not an array of integers; try [1000]
            criswitch.toml:6:15: "log" is a string, not a table; try [log]
            criswitch.toml:8:13: "a" is an array, not a string; try "/run/containerd/containerd.sock"
            criswitch.toml:9:24: "socket" is a date, not a string; try "/run/containerd/containerd.sock"
            criswitch.toml:11:13: "c" is an integer, not a string; try "/run/containerd/containerd.sock"
            criswitch.toml:12:24: "socket" is a table, not a string; try "/run/containerd/containerd.sock"
            criswitch.toml:13:54: "list_timeout" is an integer, not a string; try "5s"
            criswitch.toml:13:73: "auto_register" is a string, not a boolean; try true or false"#]],
    );
    fails_with(
        "default_handler = 'a'\nhandlers = 'a'\n[[backends]]\nc = '/run/c.sock'",
        expect![[r#"
            criswitch.toml:2:12: "handlers" is a string, not a table; try [handlers]
            criswitch.toml:3:1: "backends" is an array, not a table; try [backends]"#]],
    );
    fails_with(
        &format!("allow_uids = [0, 'root', 1000, [1]]\n{RUNC}"),
        expect![[r#"
            criswitch.toml:1:18: "allow_uids" contains a string; only integers are allowed; try the ids of users, such as [0]
            criswitch.toml:1:32: "allow_uids" contains an array; only integers are allowed; try the ids of users, such as [0]"#]],
    );
    fails_with(
        &format!(
            "log.level = ['info']\nlog.format = 1\nwatch = 'yes'\nmetrics.listen = 9199\n{RUNC}"
        ),
        expect![[r#"
            criswitch.toml:1:13: "level" is an array, not a string; try "info"
            criswitch.toml:2:14: "format" is an integer, not a string; try "auto"
            criswitch.toml:3:9: "watch" is a string, not a boolean; try true or false
            criswitch.toml:4:18: "listen" is an integer, not a string; try "127.0.0.1:9199""#]],
    );
}

#[cfg(unix)] // The hints name `allow_uids`.
#[test]
fn a_top_level_key_below_a_table_is_reported_as_misplaced() {
    fails_with(
        "default_handler = 'runc'
        [handlers]
        runc = '/run/runc.sock'
        watch = true
        listen = 'x.sock'
        max_message = '2GiB'
        [backends]
        list_timeout = '2s'
        allow_uids = [0]
        [log]
        start_wait = '1s'
        [metrics]
        shutdown_timeout = '10s'",
        expect![[r#"
            criswitch.toml:4:9: "watch" is a top-level key, not a key of [handlers]; try moving it above the first [table]
            criswitch.toml:5:18: no backend is named "x.sock"; try the key "listen" above the first [table]
            criswitch.toml:6:9: "max_message" is a top-level key, not a key of [handlers]; try moving it above the first [table]
            criswitch.toml:6:23: "2GiB" is above the limit of 1GiB; try "1GiB" or less
            criswitch.toml:8:9: "list_timeout" is a top-level key, not a key of [backends]; try moving it above the first [table]
            criswitch.toml:9:9: "allow_uids" is a top-level key, not a key of [backends]; try moving it above the first [table]
            criswitch.toml:11:9: "start_wait" is a top-level key, not a key of [log]; try moving it above the first [table]
            criswitch.toml:13:9: "shutdown_timeout" is a top-level key, not a key of [metrics]; try moving it above the first [table]"#]],
    );
    fails_with(
        "[handlers]\ndefault_handler = 'runc'\nrunc = '/run/runc.sock'",
        expect![[
            r#"criswitch.toml:2:1: "default_handler" is a top-level key, not a key of [handlers]; try moving it above the first [table]"#
        ]],
    );
    fails_with(
        "[handlers]\nrunc = '/run/runc.sock'\n[log]\ndefault_handler = 'runc'",
        expect![[
            r#"criswitch.toml:4:1: "default_handler" is a top-level key, not a key of [log]; try moving it above the first [table]"#
        ]],
    );
}

#[test]
fn invalid_toml_is_reported_once_per_line() {
    fails_with(
        "a = { b = , c = }",
        expect![[
            r#"criswitch.toml:1:11: not valid TOML: extra comma in inline table, expected value; try key = "value", each on one line"#
        ]],
    );
    fails_with(
        "default_handler = runc\n[handlers\nrunc = '/run/a.sock\n= 3\nx y = 2\n",
        expect![[r#"
            criswitch.toml:1:19: not valid TOML: string values must be quoted, expected literal string; try text in quotes
            criswitch.toml:2:10: not valid TOML: unclosed table, expected `]`; try ] at the end of the header
            criswitch.toml:4:1: not valid TOML: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`; try key = "value", each on one line
            criswitch.toml:5:3: not valid TOML: key with no value, expected `=`; try key = "value", each on one line"#]],
    );
    fails_with(
        "default_handler = 'a'\ndefault_handler = 'b'\n[backends]\na = '/run/a'\n[handlers]\na = '/run/a'\n'a' = '/run/b'\n[handlers]",
        expect![[r#"
            criswitch.toml:2:1: not valid TOML: duplicate key "default_handler", which is already at criswitch.toml:1:1; try removing one of the two
            criswitch.toml:7:1: not valid TOML: duplicate key "a", which is already at criswitch.toml:6:1; try removing one of the two
            criswitch.toml:8:2: not valid TOML: duplicate key "handlers"; try moving its rows below the first one"#]],
    );
    fails_with(
        "[handlers]\nrunc = \"\\\\.\\pipe\\containerd\"\nkata = \"/run/kata.sock\n",
        expect![[r#"
            criswitch.toml:2:13: not valid TOML: missing escaped value, expected `b`, `e`, `f`, `n`, `r`, `\`, `"`, `x`, `u`, `U`; try single quotes, in which \ is not an escape
            criswitch.toml:3:23: not valid TOML: invalid basic string, expected `"`; try a quote at the end of the text"#]],
    );
}

#[test]
fn invalid_toml_hides_no_problem_of_another_file_and_adds_none() {
    files_fail_with(
        &[
            (
                "criswitch.toml",
                b"default_handler = runc\n[backends]\ncrio = '/run/crio.sock'",
            ),
            (
                "conf.d/a.toml",
                b"shutdown_timeout = 'soon'\n[handlers]\nkata = 'crio'",
            ),
        ],
        expect![[r#"
            criswitch.toml:1:19: not valid TOML: string values must be quoted, expected literal string; try text in quotes
            conf.d/a.toml:1:20: "soon" is not a duration: expected number at 0; try "10s""#]],
    );
    files_fail_with(
        &[
            (
                "criswitch.toml",
                b"default_handler = 'kata'\nmax_message = 1\n[handlers]\nrunc = 'crio'",
            ),
            ("conf.d/a.toml", b"[handlers]\nkata = "),
        ],
        expect![[r#"
            criswitch.toml:2:15: "max_message" is an integer, not a string; try "1MiB"
            conf.d/a.toml:2:8: not valid TOML: string values must be quoted, expected literal string; try text in quotes"#]],
    );
}

#[test]
fn a_column_counts_characters() {
    fails_with(
        &format!("log = {{ '\u{e4}\u{f6}\u{fc}' = 1, level = 'x' }}\n{RUNC}"),
        expect![[r#"
            criswitch.toml:1:9: unknown key "äöü"; try one of "level", "format"
            criswitch.toml:1:28: "x" is not a log level; try one of "off", "error", "warn", "info", "debug", "trace""#]],
    );
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn a_key_in_two_files_is_reported_with_both_places() {
    let main = "default_handler = 'runc'\nallow_uids = []\n[handlers]\nrunc = '/run/a.sock'\n[backends]\nb = '/run/b.sock'";
    let first = "shutdown_timeout = '1s'\n[log]\nlevel = 'info'\n[handlers]\nrunc = '/run/a.sock'";
    let second = "default_handler = 'runc'\nshutdown_timeout = '1s'\nallow_uids = [1]\nlog.level = 'warn'\n[backends]\nb = '/run/c.sock'";
    files_fail_with(
        &[
            ("criswitch.toml", main.as_bytes()),
            ("conf.d/a.toml", first.as_bytes()),
            ("conf.d/b.toml", second.as_bytes()),
        ],
        expect![[r#"
            conf.d/a.toml:5:1: handler "runc" is already defined at criswitch.toml:4:1; try removing one of the two
            conf.d/b.toml:1:1: "default_handler" is already defined at criswitch.toml:1:1; try removing one of the two
            conf.d/b.toml:2:1: "shutdown_timeout" is already defined at conf.d/a.toml:1:1; try removing one of the two
            conf.d/b.toml:3:1: "allow_uids" is already defined at criswitch.toml:2:1; try removing one of the two
            conf.d/b.toml:4:5: "log.level" is already defined at conf.d/a.toml:3:1; try removing one of the two
            conf.d/b.toml:6:1: backend "b" is already defined at criswitch.toml:6:1; try removing one of the two"#]],
    );
}

#[test]
fn a_missing_file_is_reported() {
    files_fail_with(
        &[("conf.d/a.toml", b"shutdown_timeout = 'soon'")],
        expect![[r#"
            criswitch.toml:1:1: cannot be read: No such file or directory (os error 2); try criswitch discover --write criswitch.toml, or a different path after --config
            conf.d/a.toml:1:20: "soon" is not a duration: expected number at 0; try "10s""#]],
    );
}

#[cfg(unix)] // Windows reports a different error.
#[test]
fn an_unreadable_file_is_reported() {
    // The mode of a file does not stop root from reading it. This test therefore replaces a file with a directory, and
    // a directory with a file.
    files_fail_with(
        &[
            (
                "criswitch.toml",
                b"default_handler = 'kata'\n[handlers]\nrunc = '/run/a.sock'",
            ),
            ("conf.d/a.toml/x", b""),
        ],
        expect![
            "conf.d/a.toml:1:1: cannot be read: Is a directory (os error 21); try a readable file in its place"
        ],
    );
    files_fail_with(
        &[("criswitch.toml", RUNC.as_bytes()), ("conf.d", b"")],
        expect![
            "conf.d:1:1: cannot be read: Not a directory (os error 20); try a readable file in its place"
        ],
    );
}

#[test]
fn a_file_that_is_not_utf_8_is_reported_with_the_place() {
    files_fail_with(
        &[("criswitch.toml", b"default_handler = 'r'\n# \xc3\xa4\xff\n")],
        expect!["criswitch.toml:2:4: not UTF-8; try saving the file as UTF-8"],
    );
}

#[cfg(unix)] // Windows has addresses of pipes instead of paths, and users as texts.
#[test]
fn each_slip_of_another_language_has_its_own_hint() {
    for (text, hint) in [
        ("watch = yes", "try true or false"),
        ("watch = True", "try true or false"),
        ("watch = \u{201c}true\u{201d}", "try straight quotes, \""),
        ("watch =\u{a0}true", "try blanks instead of no-break spaces"),
        ("watch = true;", "try the line without the ; at its end"),
        ("// a comment", "try # for a comment"),
        ("kata = unix:///run/kata.sock", "try text in quotes"),
        ("watch = true // a comment", "try # for a comment"),
        ("allow_uids = 1000", "try [1000]"),
        ("imports = ['/x']", "try files in the directory conf.d"),
        (
            "[handlers]\nb = '$SOCKET'\n[log]",
            "because criswitch replaces no variables",
        ),
        (
            "[handlers]\nb = '/run/$NAME/c.sock'\n[log]",
            "has a variable; try the path itself, because criswitch replaces no variables",
        ),
        (
            "[handlers]\nb = '${DIR}/c.sock'\n[log]",
            "has a variable; try the path itself, because criswitch replaces no variables",
        ),
        (
            "\u{a0}watch = true",
            "try blanks instead of no-break spaces",
        ),
        (
            "watch = true\u{a0}",
            "try blanks instead of no-break spaces",
        ),
        ("; a comment", "try # for a comment"),
        (
            "[handlers]\nb = '/run/'\n[log]",
            "names a directory; try the path of the socket in it",
        ),
        (
            "[handlers]\nb = 'gvisor'\n[log]",
            "is named \"gvisor\"; try the path of its socket",
        ),
        ("[log]\n[log]", "try moving its rows below the first one"),
    ] {
        let text = format!("default_handler = 'a'\n{text}\n[handlers.a]\nsocket = '/run/a.sock'\n");
        let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", text.as_bytes())]);
        let problems = criswitch_config::Config::load(&files.main()).expect_err(&text);
        assert!(problems.to_string().contains(hint), "{text}: {problems}");
    }
    let typo = "default_hander = 'a'\n[handlers]\na = '/run/a.sock'\n";
    let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", typo.as_bytes())]);
    let problems = criswitch_config::Config::load(&files.main()).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems}");
}
