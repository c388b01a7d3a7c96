//! `criswitch check --node`: checks that the machine is set up for criswitch. Only reads files.

mod kubelet;
mod rancher;
mod sockets;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use criswitch::config::Config;
use criswitch::config::address::Address;
use serde_json::{Value, json};

use super::check::driver_name;
use super::columns::columns;
use super::probe::{Probe, cgroup_driver};
use super::terminal;
use kubelet::Kubelet;
use rancher::Rancher;

const CRICTL: &str = "/etc/crictl.yaml";
/// The paths where crictl may be installed.
const CRICTL_PROGRAMS: [&str; 4] = [
    "/usr/local/bin/crictl",
    "/usr/bin/crictl",
    "/opt/bin/crictl",
    "/opt/cni/bin/crictl",
];

/// The settings and the problems that were found on a machine.
pub(super) struct Node {
    kubelet: Kubelet,
    /// crictl's runtime endpoint, if it is configured.
    crictl: Option<Setting>,
    findings: Vec<Finding>,
}

/// A setting that is not empty, and the file or process that has it.
struct Setting {
    /// The key in the file, or the flag with its dashes.
    name: &'static str,
    value: String,
    from: String,
}

/// A problem of the machine, shown as one line: `place: what; try ...`.
struct Finding {
    place: String,
    what: String,
    hint: String,
}

/// The directory that is the machine's `/`.
struct Root<'a>(&'a Path);

/// Checks the machine below `root`. Compares the cgroup drivers only if the backends were probed.
pub(super) fn look(config: &Config, probes: Option<&[Probe]>, root: &Path) -> Node {
    let root = Root(root);
    let mut findings = Vec::new();
    let kubelet = Kubelet::read(&root, &mut findings);
    let switch = config.listen.endpoint();
    kubelet.judge(&switch, &mut findings);
    Kubelet::judge_kubeadm(&root, &switch, &mut findings);
    let default = probes.and_then(|probes| probes.get(config.table.default.backend));
    if let Some(driver) = default.and_then(cgroup_driver) {
        kubelet.judge_cgroup_driver(&driver_name(driver), &mut findings);
    }
    let rancher = kubelet.rancher.as_ref();
    let crictl = crictl(rancher, &root, &switch, &mut findings);
    sockets::judge(config, &root, &mut findings);
    Node {
        kubelet,
        crictl,
        findings,
    }
}

/// Checks crictl's endpoints and returns the runtime endpoint. Without a runtime endpoint, crictl would search for a
/// runtime.
fn crictl(
    rancher: Option<&Rancher>,
    root: &Root<'_>,
    switch: &str,
    findings: &mut Vec<Finding>,
) -> Option<Setting> {
    let path = crictl_file(rancher, root);
    let (path, place) = (path.as_path(), path.display());
    let told = findings.len();
    let file = root.yaml(path, findings);
    // An unreadable file may contain the endpoint, so the endpoint is not reported as missing.
    let readable = findings.len() == told;
    let installed = CRICTL_PROGRAMS
        .iter()
        .any(|program| root.at(Path::new(program)).exists());
    let get = |key| Setting::of(file.as_ref()?, key, path);
    let (runtime, images) = (get("runtime-endpoint"), get("image-endpoint"));
    let mut hint = format!("runtime-endpoint: {switch}");
    if path != Path::new(CRICTL) {
        hint += &format!(" in {CRICTL}, and CRI_CONFIG_FILE={CRICTL}");
    }
    match &runtime {
        Some(runtime) if !same(&runtime.value, switch) => {
            let what = format!(
                "crictl's runtime-endpoint is {}, not criswitch",
                runtime.value
            );
            tell(findings, &place, what, hint);
        }
        None if readable && (installed || file.is_some()) => {
            tell(findings, &place, "crictl has no runtime-endpoint", hint);
        }
        _ => {}
    }
    if let Some(images) = images.filter(|images| !same(&images.value, switch)) {
        let what = format!("crictl's image-endpoint is {}, not criswitch", images.value);
        tell(findings, &place, what, "removing image-endpoint");
    }
    runtime
}

/// The path of crictl's configuration: `/etc/crictl.yaml` if it exists, else the file that k3s or RKE2 writes. The
/// crictl of k3s and RKE2 reads that file, unless `CRI_CONFIG_FILE` names a different one.
fn crictl_file(rancher: Option<&Rancher>, root: &Root<'_>) -> PathBuf {
    let usual = PathBuf::from(CRICTL);
    match rancher.map(Rancher::crictl) {
        Some(own) if !root.at(&usual).exists() && root.at(&own).exists() => own,
        _ => usual,
    }
}

fn tell(
    findings: &mut Vec<Finding>,
    place: impl fmt::Display,
    what: impl fmt::Display,
    hint: impl fmt::Display,
) {
    findings.push(Finding {
        place: place.to_string(),
        what: what.to_string(),
        hint: hint.to_string(),
    });
}

/// Whether two addresses name the same socket. `/var/run` is a link to `/run` on every machine, so the two paths are
/// equal.
fn same(one: &str, other: &str) -> bool {
    let path = |text| {
        let path = Address::parse(text).ok()?.path().to_owned();
        let in_run = path.strip_prefix("/var/run").ok();
        Some(in_run.map_or(path.clone(), |rest| Path::new("/run").join(rest)))
    };
    one == other || path(one).is_some_and(|one| Some(one) == path(other))
}

impl Node {
    /// The text output: the settings, then the problems.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let kubelet = &self.kubelet;
        let running = kubelet.pid.map(|pid| Setting {
            name: "kubelet",
            value: match &kubelet.rancher {
                Some(rancher) => format!("running, by {}", rancher.program),
                None => "running".to_owned(),
            },
            from: kubelet::process(pid),
        });
        let settings = [
            ("kubelet", running.as_ref()),
            ("runtime", kubelet.runtime.as_ref()),
            ("images", kubelet.images.as_ref()),
            ("cgroups", kubelet.cgroup_driver.as_ref()),
            ("crictl", self.crictl.as_ref()),
        ];
        let rows = settings.map(|(name, setting)| {
            let value = setting.map(|setting| setting.value.clone());
            let from = setting.map(|setting| setting.from.clone());
            [
                name.to_owned(),
                value.unwrap_or_default(),
                from.unwrap_or_default(),
            ]
        });
        let mut text = columns(&["NODE", "VALUE", "FROM"], rows)?;
        if !self.findings.is_empty() {
            text.push('\n');
        }
        let findings = self.findings.iter();
        let findings: String = findings.map(|finding| format!("{finding}\n")).collect();
        Ok(text + &terminal::wrapped(&findings))
    }

    /// The findings as problems of the JSON output.
    pub(super) fn problems(&self) -> Vec<Value> {
        let findings = self.findings.iter();
        let problems = findings.map(|Finding { place, what, hint }| {
            json!({ "path": place, "line": null, "column": null, "what": what, "try": hint })
        });
        problems.collect()
    }

    /// The JSON output.
    pub(super) fn json(&self) -> Value {
        let findings = self.findings.iter().map(
            |finding| json!({ "place": finding.place, "what": finding.what, "try": finding.hint }),
        );
        json!({
            "kubelet": {
                "pid": self.kubelet.pid,
                "runtimeEndpoint": setting_json(self.kubelet.runtime.as_ref()),
                "imageEndpoint": setting_json(self.kubelet.images.as_ref()),
                "cgroupDriver": setting_json(self.kubelet.cgroup_driver.as_ref()),
            },
            "crictl": { "runtimeEndpoint": setting_json(self.crictl.as_ref()) },
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}

fn setting_json(setting: Option<&Setting>) -> Value {
    setting.map_or(
        Value::Null,
        |setting| json!({ "value": setting.value, "from": setting.from }),
    )
}

impl Setting {
    fn of(file: &Value, name: &'static str, path: &Path) -> Option<Setting> {
        let value = file.get(name)?.as_str()?;
        (!value.is_empty()).then(|| Setting {
            name,
            value: value.to_owned(),
            from: path.display().to_string(),
        })
    }

    /// The setting with the new value, in the syntax of its file or command line.
    fn instead(&self, value: &str) -> String {
        let name = self.name;
        let between = if name.starts_with('-') { "=" } else { ": " };
        format!("{name}{between}{value}")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { place, what, hint } = self;
        write!(f, "{place}: {what}; try {hint}")
    }
}

impl Root<'_> {
    /// Converts a path on the checked machine to a path on this machine.
    fn at(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether the machine has processes; a mounted image has none.
    fn runs(&self) -> bool {
        let processes = std::fs::read_dir(self.at(Path::new("/proc")));
        processes.is_ok_and(|mut processes| processes.next().is_some())
    }

    /// The text of a file; `None` if the file does not exist.
    fn text(&self, path: &Path) -> io::Result<Option<String>> {
        match std::fs::read(self.at(path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            bytes => Ok(Some(String::from_utf8_lossy(&bytes?).into_owned())),
        }
    }

    /// The files of a directory with the extension `end`, sorted by name.
    fn files_in(&self, folder: &Path, end: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.at(folder)).into_iter().flatten();
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        let mut paths: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
        paths.retain(|path| path.extension().is_some_and(|its| its == end));
        paths.sort();
        paths
    }

    /// The value in a YAML file; `None` if the file is missing or unreadable. An unreadable file becomes a finding.
    fn yaml(&self, path: &Path, findings: &mut Vec<Finding>) -> Option<Value> {
        let mut cannot = |error: &dyn fmt::Display, hint| {
            let error = error.to_string();
            let error = error.lines().next().unwrap_or_default();
            let what = format!("cannot be read: {error}");
            tell(findings, path.display(), what, hint);
        };
        let instead = "a YAML file";
        let text = self.text(path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => cannot(&error, "running the command as root"),
            _ => cannot(&error, instead),
        });
        let value = serde_saphyr::from_str(&text.ok()??);
        value.map_err(|error| cannot(&error, instead)).ok()
    }
}
