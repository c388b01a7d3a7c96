//! The facts about this node and its backends that decide whether a limit applies.

use std::fs;
use std::path::{Path, PathBuf};

use criswitch_advice::{Fact, Facts};
use criswitch_client::probe::Runtime;
use criswitch_config::{Handler, disk};

use super::NodeFacts;

/// The flags of runsc that a limit depends on. Each row has the name in [`Fact::RunscFlag`], the name of the flag, and
/// the values of the flag for which the fact is true.
#[rustfmt::skip]
const RUNSC_FLAGS: [(&str, &str, &[&str]); 7] = [
    ("allow-suid", "allow-suid", &TRUE),
    ("character-device-policy=passthrough", "character-device-policy", &["passthrough", "prefer-emulated"]),
    ("host-uds=all", "host-uds", &["all"]),
    ("host-uds=open", "host-uds", &["all", "open"]),
    ("net-raw", "net-raw", &TRUE),
    ("network=host", "network", &["host"]),
    ("oci-seccomp", "oci-seccomp", &TRUE),
];
/// The texts that Go reads as true.
const TRUE: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];
/// The older name of the flag `host-uds=all`.
const OLD_HOST_UDS: &str = "fsgofer-host-uds";
/// This file exists if the kernel has SELinux enabled.
const SELINUX: &str = "sys/fs/selinux/enforce";
/// The default paths of the configuration of Kata Containers. A shim without a configured path reads the first one that
/// exists.
const KATA_FILES: [&str; 3] = [
    "/etc/kata-containers/configuration.toml",
    "/opt/kata/share/defaults/kata-containers/configuration.toml",
    "/usr/share/defaults/kata-containers/configuration.toml",
];
/// Words in the names of Kata's handlers and configuration files. `WITHOUT_SHARE` means that virtual machines share no
/// file system with the node, `WITH_SHARE` that they share one. If a name has words of both lists, such as
/// `kata-qemu-snp`, the first list counts. Handlers with `gpu` in their name differ between versions of Kata, so only
/// their configuration shows whether they share one.
#[rustfmt::skip]
const WITHOUT_SHARE: [&str; 10] = ["cc", "cca", "coco", "fc", "firecracker", "remote", "se", "sev", "snp", "tdx"];
const WITH_SHARE: [&str; 5] = ["clh", "cloud", "dragonball", "qemu", "stratovirt"];

impl NodeFacts {
    /// The known facts for a handler. `features` are those of the handler and the node.
    pub(super) fn handler_facts(
        &self,
        row: &Handler,
        features: Option<Vec<&'static str>>,
    ) -> Facts {
        let runtime = self.runtime(row);
        let shared = self.shared_files(row, runtime);
        let mut facts = vec![
            (Fact::ThisNode, Some(true)),
            (Fact::Selinux, self.selinux(row)),
            (Fact::SharedFileSystem, shared),
            // Only a virtual machine on the node can share a file system with it.
            (Fact::BlockDevices, shared.filter(|is_shared| *is_shared)),
            (Fact::HypervisorIsolation, hypervisor(row, runtime)),
        ];
        if let Some(runtime) = runtime {
            facts.push((
                Fact::PrivilegedWithoutHostDevices,
                runtime.privileged_without_host_devices,
            ));
            facts.push((Fact::NvidiaRuntime, Some(runtime.is_nvidia)));
            for (fact, flag, values) in RUNSC_FLAGS {
                facts.push((
                    Fact::RunscFlag(fact),
                    self.runsc_flag(runtime, flag, values),
                ));
            }
        }
        Facts {
            features,
            allowed_sysctls: self.allowed_sysctls.clone(),
            known: facts
                .into_iter()
                .filter_map(|(fact, it)| Some((fact, it?)))
                .collect(),
        }
    }

    /// Whether the backend gives containers SELinux labels.
    fn selinux(&self, row: &Handler) -> Option<bool> {
        if !self.root.join(SELINUX).exists() {
            return Some(false);
        }
        self.probe(row)?.as_ref().ok()?.configured.selinux
    }

    /// Whether a flag of runsc has one of these values, by the file that its shim reads. Without a file, runsc has no
    /// flags.
    fn runsc_flag(&self, runtime: &Runtime, flag: &str, values: &[&str]) -> Option<bool> {
        let Some(path) = &runtime.config_path else {
            return Some(false);
        };
        let flags = self
            .toml(path)?
            .get("runsc_config")
            .map_or_else(|| Some(toml::Table::new()), |it| it.as_table().cloned())?;
        // The shim rejects a file with a value that is not a text, so its flags are unknown.
        if !flags.values().all(toml::Value::is_str) {
            return None;
        }
        let has = |flag: &str, values: &[&str]| {
            let value = flags.get(flag).and_then(toml::Value::as_str);
            value.is_some_and(|value| values.contains(&value))
        };
        Some(has(flag, values) || flag == "host-uds" && has(OLD_HOST_UDS, &TRUE))
    }

    /// Whether the virtual machines of a handler of Kata Containers share a file system with the node: by the
    /// configuration of its shim, else by the names of this file, the shim and the handler.
    fn shared_files(&self, row: &Handler, runtime: Option<&Runtime>) -> Option<bool> {
        let path = runtime.and_then(|runtime| runtime.config_path.as_deref());
        let shim = runtime.map_or("", |runtime| runtime.shim.as_str());
        let is_default = path.is_none() && shim == "io.containerd.kata.v2";
        let mut defaults = KATA_FILES.into_iter().filter(|_| is_default);
        let read = path.or_else(|| defaults.find(|it| self.toml(it).is_some()));
        if read.is_some_and(|path| self.may_drop_ins_share(path)) {
            return None;
        }
        let config = read.and_then(|path| self.toml(path));
        config
            .as_ref()
            .and_then(|it| it.get("hypervisor")?.as_table())
            .into_iter()
            .flatten()
            .find_map(
                |(name, keys)| match keys.get("shared_fs").and_then(toml::Value::as_str) {
                    Some(shared) => Some(shared != "none"),
                    None => by_words(&[name]),
                },
            )
            .or_else(|| {
                let file = Path::new(path.unwrap_or_default()).file_name();
                let file = file.and_then(|file| file.to_str()).unwrap_or_default();
                by_words(&[file, shim, &row.backend_handler, &row.name])
            })
    }

    /// Whether a file of the folder `config.d` beside Kata's configuration may set `shared_fs`.
    fn may_drop_ins_share(&self, path: &str) -> bool {
        fs::read_dir(self.path(&Path::new(path).with_file_name("config.d")))
            .into_iter()
            .flatten()
            .map(|file| disk::bytes(&file?.path()))
            .any(|text| {
                text.map_or(true, |text| {
                    String::from_utf8_lossy(&text).contains("shared_fs")
                })
            })
    }

    /// A TOML file of the node; `None` if it cannot be read.
    fn toml(&self, path: &str) -> Option<toml::Table> {
        String::from_utf8(disk::bytes(&self.path(Path::new(path))).ok()?)
            .ok()?
            .parse()
            .ok()
    }

    /// A path of the node, seen from here.
    fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Whether virtual machines with one of these names share a file system with the node; `None` if no word in the names
/// shows it.
fn by_words(names: &[&str]) -> Option<bool> {
    let words: Vec<_> = names
        .iter()
        .flat_map(|name| name.split(|c: char| !c.is_alphanumeric()))
        .collect();
    if words.iter().any(|word| WITHOUT_SHARE.contains(word)) {
        Some(false)
    } else {
        (words.iter().any(|word| WITH_SHARE.contains(word)) && !words.contains(&"gpu"))
            .then_some(true)
    }
}

/// Whether a handler of Windows uses Hyper-V isolation: by its configuration, else by its name.
fn hypervisor(row: &Handler, runtime: Option<&Runtime>) -> Option<bool> {
    let has = |word| row.backend_handler.contains(word) || row.name.contains(word);
    let by_name = match (has("hypervisor"), has("process")) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    };
    runtime.and_then(|runtime| runtime.hypervisor).or(by_name)
}
