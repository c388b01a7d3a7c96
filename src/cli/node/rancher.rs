//! Finds how k3s and RKE2 start the kubelet, and where they store the kubelet's settings. k3s runs the kubelet within
//! its own process.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Finding, Root};

/// RKE2 starts the kubelet as a separate process.
pub(super) const RKE2: &str = "rke2";
const PROGRAMS: [&str; 2] = ["k3s", RKE2];
/// The subcommands of k3s and RKE2 that run a node.
const ROLES: [&str; 2] = ["server", "agent"];
/// The socket of the containerd in k3s and RKE2.
pub(super) const CONTAINERD: &str = "unix:///run/k3s/containerd/containerd.sock";

/// An installation of k3s or RKE2.
pub(super) struct Rancher {
    pub(super) program: &'static str,
    /// The data directory of k3s or RKE2, with the files that the program writes.
    data: PathBuf,
    /// The configuration files and their contents. A key has the name of a flag without its dashes. If two files set a
    /// key, the later file wins.
    pub(super) config: Vec<(PathBuf, Value)>,
}

impl Rancher {
    /// Returns `k3s` or `rke2` if the files of that program are on the machine.
    pub(super) fn installed(root: &Root<'_>) -> Option<&'static str> {
        let places = |program: &str| [config(program), data(program).join("agent")];
        let mut programs = PROGRAMS.into_iter();
        programs.find(|program| places(program).iter().any(|path| root.at(path).exists()))
    }

    /// Reads the configuration of `program`.
    pub(super) fn read(
        program: &'static str,
        root: &Root<'_>,
        findings: &mut Vec<Finding>,
    ) -> Rancher {
        let main = config(program);
        let mut paths = root.files_in(&main.with_extension("yaml.d"), "yaml");
        paths.insert(0, main);
        let read = |path: PathBuf| Some((path.clone(), root.yaml(&path, findings)?));
        let config: Vec<_> = paths.into_iter().filter_map(read).collect();
        let files = config.iter().rev();
        let mut set = files.filter_map(|(_, value)| value.get("data-dir")?.as_str());
        let data = set.next().map_or_else(|| data(program), PathBuf::from);
        Rancher {
            program,
            data,
            config,
        }
    }

    /// The directory of the kubelet's drop-ins.
    pub(super) fn drop_ins(&self) -> PathBuf {
        self.data.join("agent/etc/kubelet.conf.d")
    }

    /// The drop-in for the operator's settings. k3s and RKE2 do not overwrite this file.
    pub(super) fn own_drop_in(&self) -> PathBuf {
        self.drop_ins().join("90-criswitch.conf")
    }

    /// Whether k3s or RKE2 overwrites this drop-in at each start.
    pub(super) fn writes(&self, path: &Path) -> bool {
        path == self
            .drop_ins()
            .join(format!("00-{}-defaults.conf", self.program))
    }

    /// The path of crictl's configuration, which k3s or RKE2 overwrites at each start.
    pub(super) fn crictl(&self) -> PathBuf {
        self.data.join("agent/etc/crictl.yaml")
    }
}

/// Returns `k3s` or `rke2` if `words` is the command line of its `server` or `agent`. A running k3s sets its command
/// line to one word, `/usr/local/bin/k3s server`.
pub(super) fn running(words: &[String]) -> Option<&'static str> {
    let mut parts = words.iter().flat_map(|word| word.split(' '));
    let name = Path::new(parts.next()?).file_name()?;
    let program = PROGRAMS.into_iter().find(|program| name == *program)?;
    ROLES.contains(&parts.next()?).then_some(program)
}

fn config(program: &str) -> PathBuf {
    Path::new("/etc/rancher").join(program).join("config.yaml")
}

fn data(program: &str) -> PathBuf {
    Path::new("/var/lib/rancher").join(program)
}
