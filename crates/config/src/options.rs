//! The command line of the daemon, for its help and its manual page.

/// The name of each option, its value, and its help.
pub const OPTIONS: [(&str, &str, &str); 4] = [
    (
        "config",
        "FILE",
        "The configuration file; conf.d/*.toml beside it is read too",
    ),
    ("check", "", "Say whether a start would be valid, and exit"),
    ("version", "", "Print the version"),
    ("help", "", "Print this help"),
];

/// The exit codes.
pub const DAEMON_CODES: &str = "0 ended by SIGTERM or SIGINT, or valid with --check, 1 failure at run time, 64 wrong \
                                usage, 78 the configuration is wrong";
