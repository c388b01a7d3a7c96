//! Finds how k3s and RKE2 start the kubelet, and where they store the kubelet's settings.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::finding::Finding;
use super::kubelet_files::{KUBELET_DROP_IN, file_settings, files_of};
use super::root::Root;
use super::settings::{Setting, last};
use super::unit::Word;

/// The environment variables without their prefix, which is the name of the program, and the flags that they stand for.
const VARIABLES: [(&str, &str); 2] = [("CONFIG_FILE", "config"), ("DATA_DIR", "data-dir")];

/// How k3s or RKE2 is started.
pub(super) struct Given {
    pub(super) program: &'static str,
    /// The flags from environment variables. A flag from a file or from the command line takes precedence.
    pub(super) variables: Vec<Setting>,
    /// The flags from the command line.
    pub(super) flags: Vec<Setting>,
}

impl Given {
    /// Takes the flags from these environment variables.
    pub(super) fn with(self, variables: &[(String, Word)]) -> Given {
        let flags = VARIABLES.into_iter().filter_map(|(variable, flag)| {
            let variable = format!("{}_{variable}", self.program.to_uppercase());
            let (_, value) = variables.iter().rfind(|(name, _)| *name == variable)?;
            Some(Setting::new(
                flag,
                &format!("{variable}="),
                &value.text,
                &value.from,
            ))
        });
        Given {
            variables: flags.collect(),
            ..self
        }
    }
}

/// An installation of k3s or RKE2.
pub(super) struct Rancher {
    pub(super) program: &'static str,
    /// The data directory of k3s or RKE2, with the files that the program writes.
    data: PathBuf,
    /// The program's flags: those of environment variables, of its configuration files, and of its command line. The
    /// last one wins.
    flags: Vec<Setting>,
}

impl Rancher {
    /// Whether `program` is k3s or RKE2 and has files on the machine.
    pub(super) fn is_installed(program: &str, root: &Root<'_>) -> bool {
        [config(program), data(program).join("agent")]
            .iter()
            .any(|path| root.real(path).exists())
    }

    /// Reads the configuration.
    pub(super) fn read(given: &Given, root: &Root<'_>, findings: &mut Vec<Finding>) -> Rancher {
        let program = given.program;
        let mut flags = given.variables.clone();
        let named = [flags.as_slice(), &given.flags].concat();
        let main = last(&named, &["config", "c"])
            .map(|main| PathBuf::from(&main.value))
            .unwrap_or_else(|| config(program));
        let mut paths = root.files_in(
            &PathBuf::from(format!("{}.d", main.display())),
            &["yaml", "yml"],
        );
        paths.insert(0, main);
        for path in paths {
            if let Some(Value::Object(keys)) = root.yaml(&path, findings) {
                for (key, value) in &keys {
                    add(&mut flags, &path, key, value);
                }
            }
        }
        flags.extend(given.flags.iter().cloned());
        Rancher {
            program,
            data: last(&flags, &["data-dir", "d"])
                .map_or_else(|| data(program), |set| PathBuf::from(&set.value)),
            flags,
        }
    }

    /// The settings of the kubelet. If several have the same name, the last one wins. Their order: the drop-ins that
    /// the program wrote at its last start, the settings from which it starts the kubelet, the operator's drop-ins,
    /// the flags of `kubelet-arg`.
    pub(super) fn settings(&self, root: &Root<'_>, findings: &mut Vec<Finding>) -> Vec<Setting> {
        let (written, others): (Vec<_>, Vec<_>) = root
            .kubelet_drop_ins(&self.drop_ins())
            .into_iter()
            .partition(|path| self.writes(path));
        let mut settings = file_settings(written, root, findings);
        let arguments: Vec<_> = self
            .flags
            .iter()
            .filter(|flag| flag.name == "kubelet-arg")
            .filter_map(|argument| {
                let (name, value) = argument.value.trim_start_matches('-').split_once('=')?;
                let before = format!("{}{name}=", argument.before);
                Some(Setting::new(name, &before, value, &argument.from))
            })
            .collect();
        settings.extend(file_settings(
            files_of(&arguments, root, findings),
            root,
            findings,
        ));
        settings.extend(self.flags.iter().cloned());
        settings.extend(file_settings(others, root, findings));
        settings.extend(arguments);
        settings
    }

    /// The directory of the kubelet's drop-ins.
    fn drop_ins(&self) -> PathBuf {
        self.data.join("agent/etc/kubelet.conf.d")
    }

    /// The drop-in for the operator's settings. k3s and RKE2 do not overwrite this file.
    pub(super) fn own_drop_in(&self) -> PathBuf {
        self.drop_ins().join(KUBELET_DROP_IN)
    }

    /// Whether k3s or RKE2 overwrites this drop-in at each start.
    pub(super) fn writes(&self, path: &Path) -> bool {
        path == self
            .drop_ins()
            .join(format!("00-{}-defaults.conf", self.program))
    }

    /// Whether k3s starts cri-dockerd in place of containerd.
    pub(super) fn has_docker(&self) -> bool {
        self.flags
            .iter()
            .rfind(|flag| flag.name == "docker")
            .is_some_and(|docker| docker.value != "false")
    }

    /// The path of crictl's configuration, which k3s or RKE2 overwrites at each start.
    pub(super) fn crictl(&self) -> PathBuf {
        self.data.join("agent/etc/crictl.yaml")
    }
}

/// Adds the flags of a key in a configuration file. A key replaces the flags of earlier files, unless it ends with `+`.
fn add(flags: &mut Vec<Setting>, path: &Path, key: &str, value: &Value) {
    let name = key.strip_suffix('+').unwrap_or(key);
    if name == key {
        flags.retain(|flag| flag.name != name);
    }
    let from = path.display().to_string();
    let values: &[Value] = match value {
        Value::Array(values) => values,
        value => std::slice::from_ref(value),
    };
    let texts = values.iter().filter_map(Setting::text_of);
    flags.extend(texts.map(|text| Setting::new(name, &format!("{key}: "), &text, &from)));
}

fn config(program: &str) -> PathBuf {
    Path::new("/etc/rancher").join(program).join("config.yaml")
}

fn data(program: &str) -> PathBuf {
    Path::new("/var/lib/rancher").join(program)
}
