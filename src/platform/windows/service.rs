//! The service manager. criswitch does not report to it yet, so nothing is sent.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A state that criswitch reports.
#[derive(Clone, Copy, Debug)]
pub enum NotifyState<'a> {
    /// criswitch serves.
    Ready,
    /// criswitch reloads its configuration.
    Reloading,
    /// criswitch finishes calls in flight.
    Stopping,
    /// One line for people.
    Status(&'a str),
    /// The thread that serves calls runs.
    Watchdog,
    /// The shutdown may take this time, in microseconds.
    ExtendTimeoutUsec(u32),
}

impl fmt::Display for NotifyState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Whether a service manager reads messages: never.
pub fn is_managed() -> bool {
    false
}

/// The time within which the service manager expects a watchdog message: it expects none.
pub fn watchdog() -> Option<Duration> {
    None
}

/// Sends nothing.
///
/// # Errors
/// None.
pub fn send(_: &str) -> io::Result<()> {
    Ok(())
}

/// The directories of systemd's unit: none.
pub fn directories() -> [Option<PathBuf>; 2] {
    [None, None]
}
