//! The default paths.

use std::path::{Path, PathBuf};

/// The main configuration file.
pub const CONFIG: &str = r"C:\ProgramData\criswitch\criswitch.toml";
/// The pipe that criswitch listens on.
pub const LISTEN: &str = "npipe:////./pipe/criswitch";
/// An example address of a backend.
pub const BACKEND: &str = "npipe:////./pipe/containerd-containerd";
/// The example address of a backend, as written in a configuration file.
pub const BACKEND_EXAMPLE: &str = "\"npipe:////./pipe/containerd-containerd\"";
/// The directories for the state of this boot, and for the state that survives a reboot.
const STATE: [&str; 2] = [
    r"C:\ProgramData\criswitch\runtime",
    r"C:\ProgramData\criswitch\state",
];
/// Example directories for the state, as written in a configuration file.
pub const STATE_EXAMPLES: [&str; 2] = [
    r"'C:\ProgramData\criswitch\runtime'",
    r"'C:\ProgramData\criswitch\state'",
];

/// An example file for the labels of the node, as written in a configuration file.
pub const LABELS_EXAMPLE: &str = r"'C:\ProgramData\criswitch\labels'";

/// The well-known addresses of backends in the order of precedence, and the names of the backends there.
pub const WELL_KNOWN: &[(&str, &str)] = &[
    ("containerd", "npipe:////./pipe/containerd-containerd"),
    ("cri-dockerd", "npipe:////./pipe/cri-dockerd"),
];

/// The path, unchanged: Windows has no link `/var/run`.
pub fn in_run(path: &Path) -> PathBuf {
    path.to_owned()
}

/// An address below the directory `root`: a pipe is in no directory.
pub fn below(_: &Path, address: &str) -> PathBuf {
    address.into()
}

/// The directories of the state. A pipe is in no directory, so they do not depend on `listen`.
pub fn state(_: &Path) -> [PathBuf; 2] {
    STATE.map(PathBuf::from)
}

/// The path of [`LISTEN`].
pub fn listen() -> PathBuf {
    r"\\.\pipe\criswitch".into()
}

/// The log file of the service.
pub(super) const LOG: &str = r"C:\ProgramData\criswitch\criswitch.log";

/// The labels of nodes that every RuntimeClass selects.
pub const NODE_LABELS: &[(&str, &str)] = &[("kubernetes.io/os", "windows")];
