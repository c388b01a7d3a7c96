//! k3s and RKE2: who starts the kubelet there, and where they keep what it is told. k3s has it within its own process.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Finding, Root};

/// It starts the kubelet as a process of its own.
pub(super) const RKE2: &str = "rke2";
const PROGRAMS: [&str; 2] = ["k3s", RKE2];
/// What they run as on a node.
const ROLES: [&str; 2] = ["server", "agent"];
/// The socket of the containerd that both come with.
pub(super) const CONTAINERD: &str = "unix:///run/k3s/containerd/containerd.sock";

/// One of them, on a machine that has it.
pub(super) struct Rancher {
    pub(super) program: &'static str,
    /// Where it keeps what it writes.
    data: PathBuf,
    /// Its configuration, a later file's keys counting: flags without their dashes.
    pub(super) config: Vec<(PathBuf, Value)>,
}

impl Rancher {
    /// The one that has left something on the machine.
    pub(super) fn installed(root: &Root<'_>) -> Option<&'static str> {
        let places = |program: &str| [config(program), data(program).join("agent")];
        let mut programs = PROGRAMS.into_iter();
        programs.find(|program| places(program).iter().any(|path| root.at(path).exists()))
    }

    /// Reads how it is configured.
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

    /// The directory of drop-ins that it gives to its kubelet.
    pub(super) fn drop_ins(&self) -> PathBuf {
        self.data.join("agent/etc/kubelet.conf.d")
    }

    /// The drop-in that a person would write.
    pub(super) fn own_drop_in(&self) -> PathBuf {
        self.drop_ins().join("90-criswitch.conf")
    }

    /// Whether it writes this drop-in anew at each start.
    pub(super) fn writes(&self, path: &Path) -> bool {
        path == self
            .drop_ins()
            .join(format!("00-{}-defaults.conf", self.program))
    }

    /// crictl's configuration, which it writes anew at each start.
    pub(super) fn crictl(&self) -> PathBuf {
        self.data.join("agent/etc/crictl.yaml")
    }
}

/// Which one it is that runs with these words. While it runs it calls itself `/usr/local/bin/k3s server`, in one word.
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
