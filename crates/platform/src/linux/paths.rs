//! The default paths.

use std::path::{Path, PathBuf};

/// The main configuration file.
pub const CONFIG: &str = "/etc/criswitch/criswitch.toml";
/// The socket that criswitch listens on.
pub const LISTEN: &str = "/run/criswitch/criswitch.sock";
/// An example address of a backend.
pub const BACKEND: &str = "/run/containerd/containerd.sock";
/// The example address of a backend, as written in a configuration file.
pub const BACKEND_EXAMPLE: &str = "\"/run/containerd/containerd.sock\"";
/// Example directories for the state of this boot and for the state that survives a reboot, as written in a
/// configuration file.
pub const STATE_EXAMPLES: [&str; 2] = ["\"/run/criswitch/state\"", "\"/var/lib/criswitch\""];

/// An example feature file of node-feature-discovery, as written in a configuration file.
pub const LABELS_EXAMPLE: &str = "\"/etc/kubernetes/node-feature-discovery/features.d/criswitch\"";

/// The well-known addresses of backends in the order of precedence, and the names of the backends there.
pub const WELL_KNOWN: &[(&str, &str)] = &[
    ("containerd", "/run/containerd/containerd.sock"),
    ("crio", "/run/crio/crio.sock"),
    ("cri-dockerd", "/run/cri-dockerd.sock"),
    // The containerd of RKE2 has this path too.
    ("k3s", "/run/k3s/containerd/containerd.sock"),
    ("k3s-docker", "/run/k3s/cri-dockerd/cri-dockerd.sock"),
    ("k0s", "/run/k0s/containerd.sock"),
    ("microk8s", "/var/snap/microk8s/common/run/containerd.sock"),
];

/// The path without the link `/var/run`, which points to `/run` on every machine.
pub fn in_run(path: &Path) -> PathBuf {
    let rest = path.strip_prefix("/var/run");
    rest.map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

/// An address below the directory `root`.
pub fn below(root: &Path, address: &str) -> PathBuf {
    root.join(address.trim_start_matches('/'))
}

/// The directories of the state without systemd: both are the path of the socket with `.state` appended.
pub fn state(listen: &Path) -> [PathBuf; 2] {
    let mut path = listen.as_os_str().to_owned();
    path.push(".state");
    [path.clone().into(), path.into()]
}

/// The path of [`LISTEN`].
pub fn listen() -> PathBuf {
    LISTEN.into()
}

/// The labels of nodes that every RuntimeClass selects: none, because most nodes of a cluster run Linux.
pub const NODE_LABELS: &[(&str, &str)] = &[];
