//! Finds the settings of the kubelet: in the flags of its process or of the files that start it, then in its
//! configuration.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::rancher::{self, Rancher};
use super::{Finding, Root, Setting, same, tell};

const CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// kubeadm's file with the settings of this node. kubeadm writes these settings into [`CONFIG`] when it upgrades the
/// node.
const KUBEADM_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
/// The files from which kubeadm's systemd units read flags. The flags of a later file win.
const FLAG_FILES: [&str; 3] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
];
/// The default of containerRuntimeEndpoint in Kubernetes 1.37.
const DEFAULT_RUNTIME: &str = "unix:///run/containerd/containerd.sock";
/// The flag of a setting, and its key in the configuration.
type SettingNames = (&'static str, &'static str);
const RUNTIME: SettingNames = ("--container-runtime-endpoint", "containerRuntimeEndpoint");
const IMAGES: SettingNames = ("--image-service-endpoint", "imageServiceEndpoint");
const CGROUP_DRIVER: SettingNames = ("--cgroup-driver", "cgroupDriver");

pub(super) struct Kubelet {
    /// The id of the kubelet's process; `None` if the kubelet does not run.
    pub(super) pid: Option<u32>,
    pub(super) runtime: Option<Setting>,
    pub(super) images: Option<Setting>,
    pub(super) cgroup_driver: Option<Setting>,
    /// k3s or RKE2, if one of them starts the kubelet.
    pub(super) rancher: Option<Rancher>,
    /// Whether a kubelet runs, or files of a kubelet exist.
    exists: bool,
    /// Whether a file could not be read. Such a file may have a setting that was not found.
    partial: bool,
}

/// The words of a command line, and the process or file that has them.
struct Flags {
    from: String,
    words: Vec<String>,
}

/// A file of the kubelet's configuration.
struct KubeletFile {
    path: PathBuf,
    value: Value,
    keys: Keys,
}

/// The kind of names that settings have in a file.
enum Keys {
    Kubelet,
    /// A setting has the name of its flag, without the dashes.
    Rancher,
}

/// A process that is a kubelet or contains a kubelet.
struct KubeletProcess {
    pid: u32,
    /// k3s or RKE2, if the process is one of them.
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

    /// Checks that the kubelet calls criswitch and no other runtime.
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
                let what = format!(
                    "the kubelet uses its default runtime endpoint {default}, not criswitch"
                );
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

    /// Checks that the next kubeadm upgrade keeps the endpoint.
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

    /// The file or process where the operator should change a setting that was found in `from`: usually `from`. With
    /// k3s or RKE2, the operator's drop-in replaces [`CONFIG`] and the files that the program overwrites.
    fn place(&self, from: &str) -> String {
        match &self.rancher {
            Some(rancher) if from == CONFIG || rancher.writes(Path::new(from)) => {
                rancher.own_drop_in().display().to_string()
            }
            _ => from.to_owned(),
        }
    }

    /// Checks that the kubelet's cgroup driver is that of the default backend. A kubelet that asks the runtime for the
    /// driver uses the reply; an older kubelet uses its own setting.
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

/// The name of a process in the output.
pub(super) fn process(pid: u32) -> String {
    format!("process {pid}")
}

/// The processes that are or contain a kubelet, sorted by process id. Processes after the first one may run in
/// containers.
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

/// Returns the process of the node's kubelet: the first of `processes`. RKE2 starts the kubelet as a separate process.
/// So if the first process is RKE2, this function returns the first separate kubelet, or RKE2 if there is none.
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

/// The kubelet's configuration file, then its drop-ins. If two files set a key, the later file wins.
fn files(root: &Root<'_>, flags: &[Flags], findings: &mut Vec<Finding>) -> Vec<KubeletFile> {
    let main = last(flags, "--config").map_or(CONFIG.to_owned(), |(path, _)| path);
    let mut paths = vec![PathBuf::from(main)];
    if let Some((folder, _)) = last(flags, "--config-dir") {
        paths.extend(root.files_in(Path::new(&folder), "conf"));
    }
    let file = |path| KubeletFile::read(path, root, findings);
    paths.into_iter().filter_map(file).collect()
}

/// The files with the settings of a kubelet of k3s or RKE2. If two files set a key, the later file wins. First come the
/// drop-ins that the program wrote at its last start, then the configuration from which it writes them at its next
/// start, then the operator's drop-ins.
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

/// A setting of the kubelet. A flag wins over a key in a file.
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

/// The last value of a flag, `--name=value` or `--name value`, and the process or file that has the flag.
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
