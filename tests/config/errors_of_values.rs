//! Single values that are invalid.

use criswitch_config::Config;
use expect_test::{Expect, expect};

use crate::{RUNC, changes_nothing, fails_with};
use criswitch_testing::ConfigFiles;

/// Tests each value of a key alone, in an otherwise valid configuration.
#[track_caller]
fn values_fail_with(key: &str, values: &[&str], expected: Expect) {
    let mut shown = Vec::new();
    for value in values {
        let text = format!("{key} = '{value}'\n{RUNC}");
        let files = ConfigFiles::of(&[("criswitch.toml", text.as_bytes())]);
        let problems = Config::load(&files.main()).expect_err(value);
        assert_eq!(problems.len(), 1, "{problems}");
        shown.push(files.stable(&problems.to_string()));
        changes_nothing(&files);
    }
    expected.assert_eq(&shown.join("\n"));
}

#[test]
fn a_bad_name_is_reported() {
    let long = "x".repeat(64);
    fails_with(
        &format!(
            "default_handler = 'Kata'
            [handlers]
            Kata = '/run/1'
            -a = '/run/2'
            a- = '/run/3'
            'a.b' = '/run/4'
            '' = '/run/5'
            {long} = '/run/6'
            [backends]
            A_B = '/run/7'"
        ),
        expect![[r#"
            criswitch.toml:3:13: handler name "Kata" is not a DNS label (RFC 1123); try "kata": 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:4:13: handler name "-a" is not a DNS label (RFC 1123); try 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:5:13: handler name "a-" is not a DNS label (RFC 1123); try 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:6:13: handler name "a.b" is not a DNS label (RFC 1123); try "a-b": 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:7:13: handler name "" is not a DNS label (RFC 1123); try 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:8:13: handler name "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is not a DNS label (RFC 1123); try 1 to 63 of a-z, 0-9 and "-", with no "-" at either end
            criswitch.toml:10:13: backend name "A_B" is not a DNS label (RFC 1123); try "a-b": 1 to 63 of a-z, 0-9 and "-", with no "-" at either end"#]],
    );
}

#[cfg(unix)] // The values are paths of sockets.
#[test]
fn a_text_that_is_not_a_socket_path_is_reported() {
    let long = format!("/run/{}", "x".repeat(103));
    fails_with(
        &format!(
            "listen = 'run/x.sock'
            default_handler = 'a'
            [handlers]
            a = 'unix://run/a.sock'
            b = 'npipe:////./pipe/containerd'
            c = {{ socket = '' }}
            d = '{long}'
            e = \"/run/a\\u0000b\\n.sock\"
            [backends]
            f = 'containerd.sock'
            g = 'tcp://127.0.0.1:1234'"
        ),
        expect![[r#"
            criswitch.toml:1:10: the socket path "run/x.sock" is relative; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:4:17: the socket path "run/a.sock" is relative; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:5:17: "npipe:////./pipe/containerd" is not a Unix socket; criswitch supports only Unix sockets on this platform; try the path of a Unix socket, plain or after "unix://"
            criswitch.toml:6:28: the socket path is empty; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:7:17: the socket path is 108 bytes long, and the kernel takes at most 107; try a shorter path, or a symbolic link to its directory
            criswitch.toml:8:17: the socket path "/run/a\0b\n.sock" contains a NUL byte; try the path without the NUL byte
            criswitch.toml:10:17: the socket path "containerd.sock" is relative; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:11:17: "tcp://127.0.0.1:1234" is not a Unix socket; criswitch supports only Unix sockets on this platform; try the path of a Unix socket, plain or after "unix://""#]],
    );
}

#[cfg(unix)] // The values are paths of sockets.
#[test]
fn a_socket_path_with_a_meaning_for_the_kubelet_is_rejected_for_listen() {
    let main = "default_handler = 'a'\n[handlers]\na = '/run/a.sock'";
    let problems_at =
        |listen: &str, expected| fails_with(&format!("listen = '{listen}'\n{main}"), expected);
    problems_at(
        "/run/crio/crio.sock",
        expect![[
            r#"criswitch.toml:1:10: "listen" ends in run/crio/crio.sock: for a socket with this name, the kubelet collects stats in a different way; try "/run/criswitch/criswitch.sock""#
        ]],
    );
    problems_at(
        "/var/run/crio/crio.sock",
        expect![[
            r#"criswitch.toml:1:10: "listen" ends in run/crio/crio.sock: for a socket with this name, the kubelet collects stats in a different way; try "/run/criswitch/criswitch.sock""#
        ]],
    );
    problems_at(
        "/run/containerd/containerd.sock",
        expect![[
            r#"criswitch.toml:1:10: "listen" is /run/containerd/containerd.sock: the kubelet's cAdvisor dials that socket and expects containerd itself; try "/run/criswitch/criswitch.sock""#
        ]],
    );
}

#[test]
fn a_bad_duration_is_reported() {
    let long = "99999999999999999999s";
    values_fail_with(
        "shutdown_timeout",
        &["10", "ten seconds", "5 parsecs", "", "-1s", "1h 1ms", long],
        expect![[r#"
            criswitch.toml:1:20: "10" is not a duration: time unit needed, for example 10sec or 10ms; try "10s"
            criswitch.toml:1:20: "ten seconds" is not a duration: expected number at 0; try "10s"
            criswitch.toml:1:20: "5 parsecs" is not a duration: unknown time unit "parsecs", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations); try "10s"
            criswitch.toml:1:20: "" is not a duration: value was empty; try "10s"
            criswitch.toml:1:20: "-1s" is not a duration: expected number at 0; try "10s"
            criswitch.toml:1:20: "1h 1ms" is longer than the limit of 1h; try "1h" or less
            criswitch.toml:1:20: "99999999999999999999s" is not a duration: number is too large or cannot be represented without a lack of precision (values below 1ns are not supported); try "10s""#]],
    );
}

#[cfg(unix)] // `user` is an error on Windows.
#[test]
fn a_user_that_the_node_does_not_have_is_reported() {
    for (user, expected) in [
        (
            "no-such-user",
            expect![[
                r#"criswitch.toml:5:38: /etc/passwd has no user "no-such-user"; try the user's number, such as "1000""#
            ]],
        ),
        (
            "4294967295",
            expect!["criswitch.toml:5:38: 4294967295 is not a user id; try 0 to 4294967294"],
        ),
    ] {
        let row = format!("a = {{ socket = '/run/a.sock', user = '{user}' }}");
        fails_with(&format!("{RUNC}[backends]\n{row}"), expected);
    }
}

#[test]
fn a_timeout_of_zero_is_reported() {
    values_fail_with(
        "list_timeout",
        &["0s", "61m", "2"],
        expect![[r#"
            criswitch.toml:1:16: "0s" is not longer than zero; try "2s"
            criswitch.toml:1:16: "61m" is longer than the limit of 1h; try "1h" or less
            criswitch.toml:1:16: "2" is not a duration: time unit needed, for example 2sec or 2ms; try "2s""#]],
    );
    values_fail_with(
        "stats_timeout",
        &["0s"],
        expect![[r#"criswitch.toml:1:17: "0s" is not longer than zero; try "2s""#]],
    );
    fails_with(
        &format!("{RUNC}[backends]\na = {{ socket = '/run/a.sock', list_timeout = '0ms' }}"),
        expect![[r#"criswitch.toml:5:46: "0ms" is not longer than zero; try "2s""#]],
    );
    fails_with(
        &format!("{RUNC}[backends]\na = {{ socket = '/run/a.sock', stats_timeout = '0ms' }}"),
        expect![[r#"criswitch.toml:5:47: "0ms" is not longer than zero; try "2s""#]],
    );
}

#[test]
fn a_wait_beyond_its_limit_is_reported() {
    values_fail_with(
        "start_wait",
        &["2h", "-1s"],
        expect![[r#"
        criswitch.toml:1:14: "2h" is longer than the limit of 1h; try "1h" or less
        criswitch.toml:1:14: "-1s" is not a duration: expected number at 0; try "10s""#]],
    );
    values_fail_with(
        "stale_lists",
        &["1day", "never"],
        expect![[r#"
            criswitch.toml:1:15: "1day" is longer than the limit of 1h; try "1h" or less or "unlimited"
            criswitch.toml:1:15: "never" is not a duration: expected number at 0; try "10s" or "unlimited""#]],
    );
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn a_number_that_is_not_a_user_id_is_reported() {
    fails_with(
        &format!("allow_uids = [0, -1, 4294967294, 4294967295, 99999999999999999999]\n{RUNC}"),
        expect![[r#"
            criswitch.toml:1:18: -1 is not a user id; try 0 to 4294967294
            criswitch.toml:1:34: 4294967295 is not a user id; try 0 to 4294967294
            criswitch.toml:1:46: 99999999999999999999 is not a user id; try 0 to 4294967294"#]],
    );
}

#[test]
fn a_bad_size_is_reported() {
    let long = "99999999999EiB";
    values_fail_with(
        "max_message",
        &["0", "0MiB", "1025MiB", long, "lots", "-1MiB", ""],
        expect![[r#"
            criswitch.toml:1:15: a limit of zero would reject every message; try "16MiB"
            criswitch.toml:1:15: a limit of zero would reject every message; try "16MiB"
            criswitch.toml:1:15: "1025MiB" is above the limit of 1GiB; try "1GiB" or less
            criswitch.toml:1:15: "99999999999EiB" is above the limit of 1GiB; try "1GiB" or less
            criswitch.toml:1:15: "lots" is not a size; try "16MiB"
            criswitch.toml:1:15: "-1MiB" is not a size; try "16MiB"
            criswitch.toml:1:15: "" is not a size; try "16MiB""#]],
    );
}

#[test]
fn a_bad_log_level_is_reported() {
    values_fail_with(
        "log.level",
        &[
            "INFO",
            "verbose",
            "",
            "inf",
            "info,",
            "session",
            "info,warn",
            "session=debug,info,session=off",
            "session=loud",
            "sesion=debug",
            "h2=trace",
            "criswitch::nosuch=trace",
            "=debug",
        ],
        expect![[r#"
            criswitch.toml:1:13: "INFO" is not a log level; try "info"
            criswitch.toml:1:13: "verbose" is not a log level; try one of "off", "error", "warn", "info", "debug", "trace"
            criswitch.toml:1:13: "" is not a log level; try one of "off", "error", "warn", "info", "debug", "trace"
            criswitch.toml:1:13: "inf" is not a log level; try "info"
            criswitch.toml:1:13: "" is not a log level; try one of "off", "error", "warn", "info", "debug", "trace"
            criswitch.toml:1:13: "session" is not a log level; try "info,session=debug"
            criswitch.toml:1:13: "warn" sets a level that is already set earlier in this text; try removing one of the two
            criswitch.toml:1:13: "session=off" sets a level that is already set earlier in this text; try removing one of the two
            criswitch.toml:1:13: "loud" is not a log level; try one of "off", "error", "warn", "info", "debug", "trace"
            criswitch.toml:1:13: "sesion" is not a module of criswitch; try "session"
            criswitch.toml:1:13: "h2" is not a module of criswitch; try a module of docs/architecture.md, such as "session"
            criswitch.toml:1:13: "criswitch::nosuch" is not a module of criswitch; try a module of docs/architecture.md, such as "session"
            criswitch.toml:1:13: "" is not a module of criswitch; try a module of docs/architecture.md, such as "session""#]],
    );
}

#[test]
fn a_bad_log_format_is_reported() {
    values_fail_with(
        "log.format",
        &["JSON", "xml", ""],
        expect![[r#"
        criswitch.toml:1:14: "JSON" is not a log format; try "json"
        criswitch.toml:1:14: "xml" is not a log format; try one of "auto", "text", "json", "journald"
        criswitch.toml:1:14: "" is not a log format; try one of "auto", "text", "json", "journald""#]],
    );
}

#[cfg(unix)] // The values are paths of sockets.
#[test]
fn a_labels_file_that_node_feature_discovery_does_not_read_is_reported() {
    values_fail_with(
        "labels_file",
        &[
            "features.d/criswitch",
            "/",
            "/features.d/",
            "/features.d/.criswitch",
            "/..",
        ],
        expect![[r#"
            criswitch.toml:1:15: "features.d/criswitch" is not an absolute path; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch"
            criswitch.toml:1:15: "/" is a directory or a hidden file, which node-feature-discovery does not read; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch"
            criswitch.toml:1:15: "/features.d/" is a directory or a hidden file, which node-feature-discovery does not read; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch"
            criswitch.toml:1:15: "/features.d/.criswitch" is a directory or a hidden file, which node-feature-discovery does not read; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch"
            criswitch.toml:1:15: "/.." is a directory or a hidden file, which node-feature-discovery does not read; try "/etc/kubernetes/node-feature-discovery/features.d/criswitch""#]],
    );
}

#[cfg(unix)] // The values are paths of sockets.
#[test]
fn metrics_are_for_this_node_only() {
    values_fail_with(
        "metrics.listen",
        &[
            "9199",
            ":9199",
            "127.0.0.1",
            "localhost:9199",
            "127.0.0.1:99999",
            "127.0.0.1:0",
            "run/metrics.sock",
            "http://127.0.0.1:9199",
            "/run/criswitch/criswitch.sock",
        ],
        expect![[r#"
            criswitch.toml:1:18: "9199" is neither an address with a port nor a socket's path; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: ":9199" is neither an address with a port nor a socket's path; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: "127.0.0.1" is neither an address with a port nor a socket's path; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: "localhost:9199" is neither an address with a port nor a socket's path; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: "127.0.0.1:99999" is neither an address with a port nor a socket's path; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: 127.0.0.1:0 has no fixed port: the port would change at each start; try "127.0.0.1:9199", "[::1]:9199" or the path of a Unix socket
            criswitch.toml:1:18: the socket path "run/metrics.sock" is relative; try an absolute path, such as "/run/name/name.sock"
            criswitch.toml:1:18: "http://127.0.0.1:9199" is not a Unix socket; criswitch supports only Unix sockets on this platform; try the path of a Unix socket, plain or after "unix://"
            criswitch.toml:1:18: /run/criswitch/criswitch.sock is the socket for the CRI ("listen"); try "/run/criswitch/metrics.sock""#]],
    );
}
