//! The command line of the daemon, for its help and its manual page.

use crate::exit::{CONFIGURATION, FAILED, USAGE};

/// The name of each option, its value, and its help.
pub const OPTIONS: [(&str, &str, &str); 4] = [
    (
        "config",
        "FILE",
        "Read this configuration file, and conf.d/*.toml beside it",
    ),
    (
        "check",
        "",
        "Check whether a start would be valid, and exit",
    ),
    ("version", "", "Print the version"),
    ("help", "", "Print this help"),
];

/// The exit codes.
pub const DAEMON_CODES: [(u8, &str); 4] = [
    (0, "ended by SIGTERM or SIGINT, or valid with --check"),
    (FAILED, "failure at run time"),
    (USAGE, "wrong usage"),
    (CONFIGURATION, "the configuration is wrong"),
];
