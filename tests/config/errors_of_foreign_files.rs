//! Keys and files of other programs.

use expect_test::expect;

use crate::fails_with;

#[test]
fn the_hint_for_a_key_of_another_program_names_the_key_of_criswitch() {
    fails_with(
        "runtime_endpoint = 'unix:///run/containerd/containerd.sock'
        image-endpoint = 'unix:///run/containerd/containerd.sock'
        log_level = 'debug'
        metrics_listen = '127.0.0.1:1'
        endpoint = '/run/x.sock'
        default_runtime = 'runc'
        default_handler = 'runc'
        [handlers]
        runc = { endpoint = '/run/x.sock' }
        [metrics]
        port = '127.0.0.1:1'
        colour = 'red'
        [node]
        accept = ['eviction']",
        expect![[r#"
            criswitch.toml:1:1: unknown key "runtime_endpoint"; try a row under [handlers] with the runtime's socket
            criswitch.toml:2:9: unknown key "image-endpoint"; try removing it: criswitch sends image calls to the backends
            criswitch.toml:3:9: unknown key "log_level"; try level under [log]
            criswitch.toml:4:9: unknown key "metrics_listen"; try listen under [metrics]
            criswitch.toml:5:9: unknown key "endpoint"; try "listen" for criswitch's own socket, or a row under [handlers] for a runtime's
            criswitch.toml:6:9: unknown key "default_runtime"; try "default_handler"
            criswitch.toml:9:18: unknown key "endpoint"; try "socket"
            criswitch.toml:11:9: unknown key "port"; try "listen"
            criswitch.toml:12:9: unknown key "colour"; try "listen", the only key of [metrics]
            criswitch.toml:13:10: unknown key "node"; try criswitch node plan --spec FILE: the table is for a specification, not for the daemon"#]],
    );
}

#[test]
fn a_file_of_another_program_is_named() {
    for (text, name) in [
        (
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n",
            "containerd's configuration",
        ),
        (
            "# x\n[crio.runtime]\ndefault_runtime = 'crun'\n",
            "CRI-O's configuration",
        ),
        (
            "runtime-endpoint: unix:///run/x.sock\ntimeout: 10\n",
            "crictl's configuration",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\n",
            "a Kubernetes object in YAML",
        ),
        (
            "default_handler: runc\nhandlers:\n  runc: /run/x.sock\n",
            "YAML",
        ),
        ("{\n  \"default_handler\": \"runc\"\n}\n", "JSON"),
    ] {
        let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", text.as_bytes())]);
        let problems = criswitch_config::Config::load(&files.main()).expect_err(name);
        let words =
            format!("this is {name}, not criswitch's configuration; try criswitch discover");
        assert!(problems.to_string().contains(&words), "{problems}");
        assert_eq!(problems.len(), 1, "{problems}");
    }
}

#[test]
fn a_single_line_of_another_language_is_a_syntax_error() {
    fails_with(
        "default_handler = 'a'
        [handlers.a]
        socket = '/run/a.sock'
        [handlers.b]
socket: /run/b.sock
        [handlers.c]
{ socket = '/run/c.sock' }",
        expect![[r#"
            criswitch.toml:5:7: not valid TOML: invalid unquoted key, expected letters, numbers, `-`, `_`; try = in place of :
            criswitch.toml:7:1: not valid TOML: invalid key-value pair, expected key; try key = "value", each on one line"#]],
    );
}

#[test]
fn the_names_of_a_configuration_of_criswitch_do_not_make_it_a_file_of_another_program() {
    let rows = "default_handler = 'crio'\n[handlers]\ncrio = { backend = 'plugins', tolerations = [\n{ operator = 'Exists' },\n] }\n[backends]\nplugins = '/run/x.sock'";
    crate::load(rows);
}

#[test]
fn a_hint_has_the_kind_of_a_program_and_the_unit_of_minutes() {
    fails_with(
        "default_handler = 'a'
        list_timeout = '5M'
        stale_lists = '2H'
        max_message = '16'
        [handlers]
        a = { socket = '/run/a.sock', kind = 'runsc' }
        b = { socket = '/run/b.sock', kind = 'kata-qemu' }
        c = { socket = '/run/c.sock', kind = 'sysbox' }",
        expect![[r#"
            criswitch.toml:2:24: "5M" is not a duration: write the unit in lower case; try "5m"
            criswitch.toml:3:23: "2H" is not a duration: write the unit in lower case; try "1h" or "unlimited"
            criswitch.toml:4:23: the size "16" has no unit; try "16MiB"
            criswitch.toml:6:46: "runsc" is not a kind of runtime; try "gvisor"
            criswitch.toml:7:46: "kata-qemu" is not a kind of runtime; try "kata"
            criswitch.toml:8:46: "sysbox" is not a kind of runtime; try one of "runc", "crun", "gvisor", "kata", "runhcs", "other""#]],
    );
}

#[cfg(unix)] // Windows has addresses of pipes instead of paths.
#[test]
fn a_socket_path_with_a_blank_at_its_end_is_an_error() {
    fails_with(
        "default_handler = 'a'
        listen = '/run/x.sock '
        [handlers]
        a = ' /run/a.sock'",
        expect![[r#"
            criswitch.toml:2:18: the socket path "/run/x.sock " begins or ends with a blank; try the path without the blank
            criswitch.toml:4:13: the socket path " /run/a.sock" begins or ends with a blank; try the path without the blank"#]],
    );
}

#[cfg(unix)] // Windows has different system directories.
#[test]
fn a_directory_of_the_system_is_not_a_directory_for_the_state() {
    fails_with(
        "default_handler = 'a'
        runtime_dir = '/'
        state_dir = '/var/lib/'
        [handlers]
        a = '/run/a.sock'",
        expect![[r#"
            criswitch.toml:2:23: "/" is a directory of the system, and criswitch needs one of its own; try "/var/lib/criswitch"
            criswitch.toml:3:21: "/var/lib/" is a directory of the system, and criswitch needs one of its own; try "/var/lib/criswitch""#]],
    );
}
