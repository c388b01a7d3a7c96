//! The kubelet's settings: flags of its process, or of the files that start it, then its configuration.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::rancher::{self, Rancher};
use super::{Finding, Root, Setting, same, tell};

const CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// Where kubeadm keeps the node's own settings, which it writes into [`CONFIG`] when it upgrades the node.
const KUBEADM_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
/// What kubeadm's units give to the kubelet, a later one's flags counting.
const FLAG_FILES: [&str; 3] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
];
/// Kubernetes 1.37: the default of containerRuntimeEndpoint.
const DEFAULT_RUNTIME: &str = "unix:///run/containerd/containerd.sock";
/// A setting's flag and key.
type SettingNames = (&'static str, &'static str);
const RUNTIME: SettingNames = ("--container-runtime-endpoint", "containerRuntimeEndpoint");
const IMAGES: SettingNames = ("--image-service-endpoint", "imageServiceEndpoint");
const CGROUP_DRIVER: SettingNames = ("--cgroup-driver", "cgroupDriver");

/// What the kubelet is told.
pub(super) struct Kubelet {
    /// Of its process, if it runs.
    pub(super) pid: Option<u32>,
    pub(super) runtime: Option<Setting>,
    pub(super) images: Option<Setting>,
    pub(super) cgroup_driver: Option<Setting>,
    /// Who starts it, where that is k3s or RKE2.
    pub(super) rancher: Option<Rancher>,
    /// Whether there is one, or what would start one.
    exists: bool,
    /// Something of it could not be read: what seems to be missing may be there.
    partial: bool,
}

/// Where flags come from, and the words of the command line.
struct Flags {
    from: String,
    words: Vec<String>,
}

/// A file of its configuration.
struct KubeletFile {
    path: PathBuf,
    value: Value,
    keys: Keys,
}

/// How a file names a setting.
enum Keys {
    Kubelet,
    /// As the flag, without its dashes.
    Rancher,
}

/// A process that is a kubelet, or has one in it.
struct KubeletProcess {
    pid: u32,
    /// k3s or RKE2.
    rancher: Option<&'static str>,
    words: Vec<String>,
}

impl Kubelet {
    pub(super) fn read(root: &Root<'_>, findings: &mut Vec<Finding>) -> Kubelet {
        let processes = processes(root);
        let process = kubelet_of(&processes);
        let pid = process.map(|process| process.pid);
        let flags = match process {
            Some(process) => vec![process.flags()],
            None => FLAG_FILES
                .iter()
                .filter_map(|path| written(root, path))
                .collect(),
        };
        let told = findings.len();
        let starts = match processes.first() {
            Some(first) => first.rancher,
            None if flags.is_empty() && !root.at(Path::new(CONFIG)).exists() => {
                Rancher::installed(root)
            }
            None => None,
        };
        let rancher = starts.map(|program| Rancher::read(program, root, findings));
        let alone = process.is_some_and(|process| process.rancher.is_none());
        let files = match &rancher {
            Some(rancher) if !alone => files_of(rancher, root, findings),
            _ => files(root, &flags, findings),
        };
        let setting = |names| setting(&flags, &files, names);
        Kubelet {
            pid,
            runtime: setting(RUNTIME),
            images: setting(IMAGES),
            cgroup_driver: setting(CGROUP_DRIVER),
            exists: !flags.is_empty() || !files.is_empty() || rancher.is_some(),
            partial: findings.len() > told,
            rancher,
        }
    }

    /// Whether it speaks to the switch, and to nobody else.
    pub(super) fn judge(&self, switch: &str, findings: &mut Vec<Finding>) {
        let hint = format!("containerRuntimeEndpoint: {switch}");
        if !self.exists && !self.partial {
            let what = "no kubelet found: no process and no configuration file";
            return tell(findings, CONFIG, what, hint);
        }
        match &self.runtime {
            None if self.partial => {}
            None => {
                let default = match self.rancher {
                    Some(_) => rancher::CONTAINERD,
                    None => DEFAULT_RUNTIME,
                };
                let what = format!("the kubelet uses its default runtime endpoint, {default}");
                tell(findings, self.place(CONFIG), what, hint);
            }
            Some(runtime) if !same(&runtime.value, switch) => {
                let what = format!(
                    "the kubelet's container runtime endpoint is {}, not criswitch",
                    runtime.value
                );
                let place = self.place(&runtime.from);
                tell(findings, place, what, runtime.instead(switch));
            }
            Some(_) => {}
        }
        if let Some(images) = &self.images
            && !same(&images.value, switch)
        {
            let what = format!(
                "the kubelet's image service endpoint is {}, not criswitch",
                images.value
            );
            let hint = format!("removing {}", images.name);
            tell(findings, &images.from, what, hint);
        }
    }

    /// Whether kubeadm leaves it so.
    pub(super) fn judge_kubeadm(root: &Root<'_>, switch: &str, findings: &mut Vec<Finding>) {
        let kept = KubeletFile::read(PathBuf::from(KUBEADM_CONFIG), root, findings);
        let runtime = kept.and_then(|kept| kept.setting(RUNTIME));
        if let Some(runtime) = runtime.filter(|runtime| !same(&runtime.value, switch)) {
            let value = &runtime.value;
            let what = format!(
                "kubeadm will set the kubelet's container runtime endpoint to {value} at its next upgrade"
            );
            tell(findings, KUBEADM_CONFIG, what, runtime.instead(switch));
        }
    }

    /// Where to change what is in this file: elsewhere if k3s or RKE2 write it anew.
    fn place(&self, from: &str) -> String {
        match &self.rancher {
            Some(rancher) if from == CONFIG || rancher.writes(Path::new(from)) => {
                rancher.own_drop_in().display().to_string()
            }
            _ => from.to_owned(),
        }
    }

    /// Whether it has the cgroup driver of the default backend: kubelets that ask for it take no other, earlier ones
    /// go by their own setting.
    pub(super) fn judge_cgroup_driver(&self, theirs: &str, findings: &mut Vec<Finding>) {
        if let Some(ours) = &self.cgroup_driver
            && ours.value != theirs
        {
            let what = format!(
                "the kubelet's cgroup driver is {}, the default backend's is {theirs}",
                ours.value
            );
            tell(findings, self.place(&ours.from), what, ours.instead(theirs));
        }
    }
}

/// How a process is named to people.
pub(super) fn process(pid: u32) -> String {
    format!("process {pid}")
}

/// The kubelets that run, and what has one in it; those with higher numbers may be in containers.
fn processes(root: &Root<'_>) -> Vec<KubeletProcess> {
    let entries = std::fs::read_dir(root.at(Path::new("/proc")));
    let entries = entries.into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pids: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter()
        .filter_map(|pid| KubeletProcess::look(root, pid))
        .collect()
}

/// The first one's, as others are in containers: itself, or the process that RKE2 has started for it.
fn kubelet_of(processes: &[KubeletProcess]) -> Option<&KubeletProcess> {
    let first = processes.first()?;
    let own = processes.iter().find(|process| process.rancher.is_none());
    match first.rancher {
        Some(rancher::RKE2) => own.or(Some(first)),
        _ => Some(first),
    }
}

impl KubeletProcess {
    fn look(root: &Root<'_>, pid: u32) -> Option<KubeletProcess> {
        let path = format!("/proc/{pid}/cmdline");
        let line = root.text(Path::new(&path)).ok()??;
        let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
        let program = Path::new(words.first()?).file_name()?;
        let rancher = rancher::running(&words);
        (program == "kubelet" || rancher.is_some()).then_some(KubeletProcess {
            pid,
            rancher,
            words,
        })
    }

    fn flags(&self) -> Flags {
        Flags {
            from: process(self.pid),
            words: self.words.clone(),
        }
    }
}

/// The flags in a file of environment variables.
fn written(root: &Root<'_>, path: &str) -> Option<Flags> {
    let text = root.text(Path::new(path)).ok()??;
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let values = lines.filter_map(|line| Some(line.split_once('=')?.1));
    let words =
        values.flat_map(|value| value.split(|c: char| c.is_whitespace() || "\"'".contains(c)));
    Some(Flags {
        from: path.to_owned(),
        words: words.map(str::to_owned).collect(),
    })
}

/// Its configuration and what is merged into it, a later file's keys counting.
fn files(root: &Root<'_>, flags: &[Flags], findings: &mut Vec<Finding>) -> Vec<KubeletFile> {
    let main = last(flags, "--config").map_or(CONFIG.to_owned(), |(path, _)| path);
    let mut paths = vec![PathBuf::from(main)];
    if let Some((folder, _)) = last(flags, "--config-dir") {
        paths.extend(root.files_in(Path::new(&folder), "conf"));
    }
    let file = |path| KubeletFile::read(path, root, findings);
    paths.into_iter().filter_map(file).collect()
}

/// What k3s or RKE2 have their kubelet read: what they wrote at their last start, then their own configuration, from
/// which they write that at the next, then the drop-ins of others.
fn files_of(rancher: &Rancher, root: &Root<'_>, findings: &mut Vec<Finding>) -> Vec<KubeletFile> {
    let mut files = Vec::new();
    let mut others = Vec::new();
    for path in root.files_in(&rancher.drop_ins(), "conf") {
        let order = match rancher.writes(&path) {
            true => &mut files,
            false => &mut others,
        };
        order.extend(KubeletFile::read(path, root, findings));
    }
    let own = rancher.config.iter().map(|(path, value)| KubeletFile {
        path: path.clone(),
        value: value.clone(),
        keys: Keys::Rancher,
    });
    files.extend(own);
    files.extend(others);
    files
}

impl KubeletFile {
    fn read(path: PathBuf, root: &Root<'_>, findings: &mut Vec<Finding>) -> Option<KubeletFile> {
        let value = root.yaml(&path, findings)?;
        Some(KubeletFile {
            path,
            value,
            keys: Keys::Kubelet,
        })
    }

    fn setting(&self, (flag, key): SettingNames) -> Option<Setting> {
        let key = match self.keys {
            Keys::Kubelet => key,
            Keys::Rancher => flag.trim_start_matches('-'),
        };
        Setting::of(&self.value, key, &self.path)
    }
}

/// A flag counts more than a key.
fn setting(flags: &[Flags], files: &[KubeletFile], names: SettingNames) -> Option<Setting> {
    let (flag, _) = names;
    let of_flag = last(flags, flag).map(|(value, from)| Setting {
        name: flag,
        value,
        from,
    });
    let mut files = files.iter().rev();
    of_flag.or_else(|| files.find_map(|file| file.setting(names)))
}

/// The last value of a flag, `--name=value` or `--name value`, and where it is from.
fn last(flags: &[Flags], name: &str) -> Option<(String, String)> {
    flags.iter().rev().find_map(|flags| {
        let after = flags.words.iter().skip(1).map(String::as_str);
        let pairs = flags.words.iter().zip(after.chain([""]));
        let values = pairs.filter_map(|(word, next)| match word.strip_prefix(name)? {
            "" => Some(next),
            rest => rest.strip_prefix('='),
        });
        let value = values.last().filter(|value| !value.is_empty())?;
        Some((value.to_owned(), flags.from.clone()))
    })
}
