//! The kubelet's settings: flags of its process, or of the files that start it, then its configuration.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Finding, Root, Setting, same, tell};

const CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// What kubeadm's units give to the kubelet, a later one's flags counting.
const FLAG_FILES: [&str; 3] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
];
/// Kubernetes 1.37: the default of containerRuntimeEndpoint.
const DEFAULT_RUNTIME: &str = "unix:///run/containerd/containerd.sock";
/// A setting's flag and key.
type Names = (&'static str, &'static str);
const RUNTIME: Names = ("--container-runtime-endpoint", "containerRuntimeEndpoint");
const IMAGES: Names = ("--image-service-endpoint", "imageServiceEndpoint");
const CGROUP_DRIVER: Names = ("--cgroup-driver", "cgroupDriver");

/// What the kubelet is told.
pub(super) struct Kubelet {
    /// Of its process, if it runs.
    pub(super) pid: Option<u32>,
    pub(super) runtime: Option<Setting>,
    pub(super) images: Option<Setting>,
    pub(super) cgroup_driver: Option<Setting>,
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
struct File {
    path: PathBuf,
    value: Value,
}

impl Kubelet {
    pub(super) fn read(root: &Root<'_>, findings: &mut Vec<Finding>) -> Kubelet {
        let running = running(root);
        let pid = running.as_ref().map(|(pid, _)| *pid);
        let flags = match running {
            Some((_, flags)) => vec![flags],
            None => FLAG_FILES
                .iter()
                .filter_map(|path| written(root, path))
                .collect(),
        };
        let told = findings.len();
        let files = files(root, &flags, findings);
        let setting = |names| setting(&flags, &files, names);
        Kubelet {
            pid,
            runtime: setting(RUNTIME),
            images: setting(IMAGES),
            cgroup_driver: setting(CGROUP_DRIVER),
            exists: !flags.is_empty() || !files.is_empty(),
            partial: findings.len() > told,
        }
    }

    /// Whether it speaks to the switch, and to nobody else.
    pub(super) fn judge(&self, switch: &str, findings: &mut Vec<Finding>) {
        let hint = format!("containerRuntimeEndpoint: {switch}");
        if !self.exists && !self.partial {
            let what = "no kubelet runs here, and it has no configuration";
            return tell(findings, CONFIG, what, hint);
        }
        match &self.runtime {
            None if self.partial => {}
            None => {
                let what = format!("the kubelet asks its default, {DEFAULT_RUNTIME}");
                tell(findings, CONFIG, what, hint);
            }
            Some(runtime) if !same(&runtime.value, switch) => {
                let what = format!("the kubelet asks {}, not the switch", runtime.value);
                tell(findings, &runtime.from, what, runtime.instead(switch));
            }
            Some(_) => {}
        }
        if let Some(images) = &self.images
            && !same(&images.value, switch)
        {
            let what = format!(
                "the kubelet asks {} for images, not the switch",
                images.value
            );
            let hint = format!("leaving {} out", images.name);
            tell(findings, &images.from, what, hint);
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
            tell(findings, &ours.from, what, ours.instead(theirs));
        }
    }
}

/// How a process is named to people.
pub(super) fn process(pid: u32) -> String {
    format!("process {pid}")
}

/// The kubelet that runs; of several the one with the lowest number, as others are in containers.
fn running(root: &Root<'_>) -> Option<(u32, Flags)> {
    let entries = std::fs::read_dir(root.at(Path::new("/proc"))).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pids: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter()
        .find_map(|pid| Some((pid, flags_of(root, pid)?)))
}

/// The command line of a process that is a kubelet.
fn flags_of(root: &Root<'_>, pid: u32) -> Option<Flags> {
    let path = format!("/proc/{pid}/cmdline");
    let line = root.text(Path::new(&path)).ok()??;
    let words: Vec<String> = line.split('\0').map(str::to_owned).collect();
    let program = Path::new(words.first()?).file_name()?;
    (program == "kubelet").then(|| Flags {
        from: process(pid),
        words,
    })
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
fn files(root: &Root<'_>, flags: &[Flags], findings: &mut Vec<Finding>) -> Vec<File> {
    let main = last(flags, "--config").map_or(CONFIG.to_owned(), |(path, _)| path);
    let mut paths = vec![PathBuf::from(main)];
    if let Some((folder, _)) = last(flags, "--config-dir") {
        paths.extend(drop_ins(root, Path::new(&folder)));
    }
    let file = |path: PathBuf| {
        let value = root.yaml(&path, findings)?;
        Some(File { path, value })
    };
    paths.into_iter().filter_map(file).collect()
}

fn drop_ins(root: &Root<'_>, folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.at(folder)).into_iter().flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut paths: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "conf"));
    paths.sort();
    paths
}

/// A flag counts more than a key.
fn setting(flags: &[Flags], files: &[File], (flag, key): Names) -> Option<Setting> {
    let of_flag = last(flags, flag).map(|(value, from)| Setting {
        name: flag,
        value,
        from,
    });
    let mut files = files.iter().rev();
    of_flag.or_else(|| files.find_map(|file| Setting::of(&file.value, key, &file.path)))
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
