//! The service manager: messages to systemd (`sd_notify(3)`), and the directories of systemd's unit.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, io};

pub use sd_notify::NotifyState;

/// The command that shows whether the units run.
pub const QUERY: &str = "systemctl status criswitch.socket criswitch.service";

/// Serves with this configuration file. Returns why it failed.
pub type Serve = fn(&Path) -> Result<(), String>;

/// The help on the option with which a service manager starts the daemon: systemd needs none.
pub const HELP: Option<&str> = None;

/// Cannot serve, because systemd needs no option.
///
/// # Errors
/// Always.
pub fn run(_: PathBuf, _: Serve) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a service manager reads messages.
pub fn is_managed() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// The time within which the service manager expects a watchdog message; `None` if it expects none.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|period| !period.is_zero())
}

/// Sends a message of one or several lines. May block.
///
/// # Errors
/// If the service manager cannot be reached.
pub fn send(message: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Custom(message)])
}

/// The directories that systemd created for the unit: one that is lost at a reboot, and one that persists.
pub fn directories() -> [Option<PathBuf>; 2] {
    ["RUNTIME_DIRECTORY", "STATE_DIRECTORY"].map(|name| env::var_os(name).map(PathBuf::from))
}
