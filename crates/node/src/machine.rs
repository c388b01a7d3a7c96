//! `criswitch check --node`: whether a machine is set up for criswitch.

use std::path::{Path, PathBuf};

use criswitch_client::columns::columns;
use criswitch_client::output::name_lines;
use criswitch_client::probe::{Probe, Probed, answered, driver_of};
use criswitch_client::terminal;
use criswitch_config::Config;
use serde_json::{Value, json};

use super::finding::{Finding, advice, report};
use super::kubelet::{CGROUP_DRIVER, IMAGES, Kubelet, RUNTIME};
use super::rancher::Rancher;
use super::root::Root;
use super::settings::{Setting, judge};
use super::{collisions, sockets};

const CRICTL: &str = "/etc/crictl.yaml";
/// The paths where crictl may be installed.
#[rustfmt::skip]
const CRICTL_PROGRAMS: [&str; 4] =
    ["/usr/local/bin/crictl", "/usr/bin/crictl", "/opt/bin/crictl", "/opt/cni/bin/crictl"];

/// The settings and the problems that were found on a machine.
pub struct Node {
    kubelet: Kubelet,
    /// The version of the kubelet, if it is known.
    version: Option<String>,
    /// crictl's runtime endpoint, if it is configured.
    crictl: Option<Setting>,
    findings: Vec<Finding>,
    /// Facts about the runtimes that an operator should know, and that are not problems.
    notes: Vec<Finding>,
}

/// Checks the machine below `root`. The answers of the backends in `probes` show their cgroup drivers, their pause
/// images, and the paths that they share. If `shown`, the output of the probes has the pause images and the shared
/// paths already, so they are not reported again.
pub fn look(config: &Config, probes: Option<&[Probe]>, shown: bool, root: &Path) -> Node {
    let root = Root::of(root);
    let mut findings = Vec::new();
    let kubelet = Kubelet::read(&root, &mut findings);
    let switch = config.listen.endpoint();
    kubelet.judge(&switch, &mut findings);
    kubelet.judge_age(&root, &mut findings);
    Kubelet::judge_kubeadm(&root, &switch, &mut findings);
    let table = &config.table;
    if let Some(driver) = probes.and_then(|it| driver_of(table, it, table.default.backend)) {
        kubelet.judge_cgroup_driver(driver, &mut findings);
    }
    let crictl = crictl(kubelet.rancher.as_ref(), &root, &switch, &mut findings);
    sockets::judge(config, &root, &mut findings);
    let answered = probes.map(|it| answered(table, it)).unwrap_or_default();
    let mut notes = Vec::new();
    if root.runs() {
        notes.extend(collisions::containerd_state(&answered));
    }
    if !shown && root.runs() {
        notes.extend(answered.iter().filter_map(unpinned_pause_image));
        findings.extend(collisions::all(
            &answered,
            table.backends.iter().map(|backend| &backend.socket),
        ));
    }
    Node {
        version: kubelet.version(&root),
        kubelet,
        crictl,
        findings,
        notes,
    }
}

fn unpinned_pause_image((name, found): &(&str, &Probed)) -> Option<Finding> {
    Some(Finding::new(
        [format!("backend {name:?}")],
        found.pause_image_warning()?,
        "",
    ))
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
    let before = findings.len();
    let file = root.yaml(&path, findings);
    // An unreadable file may contain the endpoint, so the endpoint is not reported as missing.
    let readable = findings.len() == before;
    let is_there = CRICTL_PROGRAMS
        .map(Path::new)
        .into_iter()
        .chain([&*path])
        .any(|path| root.at(path).exists());
    let [runtime, images] = ["runtime-endpoint", "image-endpoint"].map(|key| {
        Setting::of(file.as_ref()?, key, &path).filter(|setting| !setting.value.is_empty())
    });
    let mut hint = format!("runtime-endpoint: {switch}");
    if path != Path::new(CRICTL) {
        hint += &format!(" in {CRICTL}, and CRI_CONFIG_FILE={CRICTL}");
    }
    if runtime.is_none() && readable && is_there {
        let what = "crictl has no runtime-endpoint";
        report(findings, path.display(), what, &hint);
    }
    let remove = "removing image-endpoint".to_owned();
    for (setting, name, hint) in [
        (&runtime, "crictl's runtime-endpoint", hint),
        (&images, "crictl's image-endpoint", remove),
    ] {
        judge(setting.as_ref(), name, switch, hint, findings);
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

impl Node {
    /// The text output: the settings, then the problems, then the notes.
    pub fn text(&self) -> anyhow::Result<String> {
        let rows = [
            ("kubelet", self.kubelet.runs.as_ref()),
            ("runtime", self.kubelet.set(RUNTIME)),
            ("images", self.kubelet.set(IMAGES)),
            ("cgroups", self.kubelet.set(CGROUP_DRIVER)),
            ("crictl", self.crictl.as_ref()),
        ]
        .map(|(name, setting)| {
            let [value, from] = setting
                .map(|setting| [setting.value.clone(), setting.from.clone()])
                .unwrap_or_default();
            [name.to_owned(), value, from]
        });
        let settings = columns(&["NODE", "VALUE", "FROM"], rows)?;
        Ok(terminal::paragraphs([
            settings,
            terminal::wrapped(&name_lines(self.findings.iter().map(ToString::to_string))),
            terminal::wrapped(&name_lines(
                self.notes.iter().map(|note| format!("note: {note}")),
            )),
        ]))
    }

    /// The findings as problems of the JSON output.
    pub fn problems(&self) -> Vec<Value> {
        as_json(&self.findings)
    }

    /// The JSON output.
    pub fn json(&self) -> Value {
        json!({
            "kubelet": {
                "pid": self.kubelet.pid,
                "version": self.version,
                "runtimeEndpoint": self.kubelet.set(RUNTIME),
                "imageEndpoint": self.kubelet.set(IMAGES),
                "cgroupDriver": self.kubelet.set(CGROUP_DRIVER),
            },
            "crictl": { "runtimeEndpoint": self.crictl },
            "findings": self.problems(),
            "notes": as_json(&self.notes),
        })
    }
}

fn as_json(found: &[Finding]) -> Vec<Value> {
    found
        .iter()
        .map(|it| json!({ "path": it.place(), "what": it.text(), "try": advice(&it.hint) }))
        .collect()
}
