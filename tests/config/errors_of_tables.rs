//! Values that are valid alone, but contradict each other.

use criswitch_config::Config;
use expect_test::expect;

use crate::{RUNC, fails_with};
use criswitch_testing::ConfigFiles;

#[test]
fn a_backend_that_no_row_defines_is_reported_with_the_nearest_name() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = 'cri-o'
        b = { backend = 'containerd' }
        c = ''
        d = { backend = '/run/d.sock' }
        [backends]
        crio = '/run/crio.sock'
        old = '/run/old.sock'",
        expect![[r#"
            criswitch.toml:3:13: no backend is named "cri-o"; try "crio"
            criswitch.toml:4:25: no backend is named "containerd"; try the path of its socket
            criswitch.toml:5:13: no backend is named ""; try the path of its socket
            criswitch.toml:6:25: no backend is named "/run/d.sock"; try socket = "/run/d.sock""#]],
    );
    fails_with(
        "default_handler = 'a'\n[handlers]\na = 'crio'",
        expect![[r#"criswitch.toml:3:5: no backend is named "crio"; try the path of its socket"#]],
    );
}

#[test]
fn a_handler_needs_a_backend_or_a_socket_and_not_both() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = { backend = 'c', socket = '/run/a.sock' }
        b = { handler = 'runsc' }
        [backends]
        c = {}",
        expect![[r#"
            criswitch.toml:3:13: handler "a" has both a backend and a socket; try one of the two, such as socket = "/run/containerd/containerd.sock"
            criswitch.toml:4:13: handler "b" has neither a backend nor a socket; try one of the two, such as socket = "/run/containerd/containerd.sock"
            criswitch.toml:6:13: backend "c" has no socket; try socket = "/run/containerd/containerd.sock""#]],
    );
}

#[test]
fn a_missing_default_is_reported() {
    fails_with(
        "[handlers]\nkata = '/run/a.sock'",
        expect![[
            r#"criswitch.toml:1:1: "default_handler" is missing: the handler of pods without a RuntimeClass; try default_handler = "kata""#
        ]],
    );
}

#[test]
fn a_default_outside_the_table_is_reported_with_the_nearest_handler() {
    let handlers = "[handlers]\nrunc = '/run/a.sock'\nkata = '/run/b.sock'";
    fails_with(
        &format!("default_handler = 'kta'\n{handlers}"),
        expect![[
            r#"criswitch.toml:1:19: "default_handler" is "kta", which is not in [handlers]; try "kata""#
        ]],
    );
    fails_with(
        &format!("default_handler = ''\n{handlers}"),
        expect![[
            r#"criswitch.toml:1:19: "default_handler" is "", which is not in [handlers]; try one of "runc", "kata""#
        ]],
    );
}

#[test]
fn an_empty_table_is_reported() {
    fails_with(
        "",
        expect![[r#"
            criswitch.toml:1:1: "default_handler" is missing: the handler of pods without a RuntimeClass; try default_handler = "runc"
            criswitch.toml:1:1: no handler is defined; try [handlers] with a row such as runc = "/run/containerd/containerd.sock""#]],
    );
    fails_with(
        "default_handler = 'runc'\n[backends]\na = '/run/a.sock'\n[handlers]",
        expect![[
            r#"criswitch.toml:4:2: no handler is defined; try [handlers] with a row such as runc = "/run/containerd/containerd.sock""#
        ]],
    );
}

#[test]
fn criswitchs_own_socket_is_not_a_backend() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = '/run/criswitch//criswitch.sock'
        [backends]
        b = 'unix:///run/criswitch/criswitch.sock'",
        expect![[r#"
            criswitch.toml:3:13: /run/criswitch/criswitch.sock is criswitch's own socket ("listen"); try the socket of a container runtime
            criswitch.toml:5:13: /run/criswitch/criswitch.sock is criswitch's own socket ("listen"); try the socket of a container runtime"#]],
    );
    fails_with(
        "listen = '/run/a.sock'\ndefault_handler = 'a'\n[handlers]\na = { socket = '/run/a.sock' }",
        expect![[
            r#"criswitch.toml:4:16: /run/a.sock is criswitch's own socket ("listen"); try the socket of a container runtime"#
        ]],
    );
}

#[cfg(unix)] // The path of a pipe has no `..`.
#[test]
fn a_metrics_socket_that_is_already_used_is_reported() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = '/run/a.sock'
        [backends]
        b = '/run/b.sock'
        [metrics]
        listen = 'unix:///run/a.sock'",
        expect![[
            r#"criswitch.toml:7:18: /run/a.sock is the socket of the backend "a" at criswitch.toml:3:9; try "/run/criswitch/metrics.sock""#
        ]],
    );
    let table = "default_handler = 'a'\n[handlers]\na = 'b'\n[backends]\nb = '/run/b.sock'";
    let problems_at = |path: &str, expected| {
        fails_with(&format!("{table}\n[metrics]\nlisten = '{path}'"), expected)
    };
    problems_at(
        "/run/../run/b.sock",
        expect![[
            r#"criswitch.toml:7:10: /run/../run/b.sock is the socket of the backend "b" at criswitch.toml:5:1; try "/run/criswitch/metrics.sock""#
        ]],
    );
    problems_at(
        "/run/../run/criswitch/criswitch.sock",
        expect![[
            r#"criswitch.toml:7:10: /run/../run/criswitch/criswitch.sock is the socket for the CRI ("listen"); try "/run/criswitch/metrics.sock""#
        ]],
    );
}

#[test]
fn two_names_for_one_socket_are_reported() {
    fails_with(
        "default_handler = 'a'
        [handlers]
        a = 'b'
        [backends]
        b = '/run/b.sock'
        c = 'unix:///run/b.sock'",
        expect![[
            r#"criswitch.toml:6:9: backend "c" has the same socket as "b" at criswitch.toml:5:9; try one name for both"#
        ]],
    );
}

#[test]
fn one_name_for_two_sockets_is_reported() {
    fails_with(
        "default_handler = 'kata'
        [handlers]
        kata = '/run/new.sock'
        x = 'kata'
        [backends]
        kata = '/run/old.sock'",
        expect![[
            r#"criswitch.toml:3:16: this socket has no name, and its handler's name "kata" is already the name of a different backend at criswitch.toml:6:9; try a name for the socket under [backends], such as kata-2 = "/run/new.sock""#
        ]],
    );
}

#[cfg(unix)] // The values are paths of sockets.
#[test]
fn a_file_of_labels_with_a_path_that_is_already_used_is_reported() {
    let table =
        |labels: &str| format!("labels_file = '{labels}'\nmetrics.listen = '/run/m.sock'\n{RUNC}");
    for (labels, expected) in [
        (
            "/run/./m.sock",
            expect![[
                r#"criswitch.toml:1:15: /run/./m.sock is the socket of "metrics.listen"; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch""#
            ]],
        ),
        (
            "/run/criswitch/criswitch.sock",
            expect![[
                r#"criswitch.toml:1:15: /run/criswitch/criswitch.sock is the socket for the CRI ("listen"); try "/etc/kubernetes/node-feature-discovery/features.d/criswitch""#
            ]],
        ),
    ] {
        fails_with(&table(labels), expected);
    }
    let files = ConfigFiles::of(&[("criswitch.toml", b"")]);
    let main = files.main();
    std::fs::write(&main, table(main.to_str().unwrap())).unwrap();
    let problems = Config::load(&main).unwrap_err();
    expect![[r#"criswitch.toml:1:15: criswitch.toml is a file of the configuration; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch""#]].assert_eq(&files.stable(&problems.to_string()));
}
