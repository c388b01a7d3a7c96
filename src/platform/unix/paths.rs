//! The default paths.

/// The main configuration file.
pub const CONFIG: &str = "/etc/criswitch/criswitch.toml";
/// The socket that criswitch listens on.
pub const LISTEN: &str = "/run/criswitch/criswitch.sock";
