//! `criswitch check --node`, which checks that the machine is set up for criswitch, and `criswitch node`, which plans
//! how to set it up, sets it up, and takes it back.

mod actions;
mod apply;
mod changes;
mod checks;
mod follow;
mod journal;
mod kubelet;
mod layout;
pub(super) mod plan;
mod rancher;
mod root;
mod sockets;
mod stages;
mod start;
mod steps;
mod systemd;
mod transient;
mod tries;
mod unit;
mod workloads;

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use criswitch_client::columns::columns;
use criswitch_client::exit::Verdict;
use criswitch_client::output::Encoding;
use criswitch_client::terminal;
use criswitch_config::Config;
use criswitch_config::address::Address;
use serde::Serialize;
use serde_json::{Value, json};

use super::probe::{Probe, driver_of};
use kubelet::{CGROUP_DRIVER, IMAGES, Kubelet, RUNTIME};
use rancher::Rancher;
use root::Root;

const CRICTL: &str = "/etc/crictl.yaml";
/// The paths where crictl may be installed.
const CRICTL_PROGRAMS: [&str; 4] = [
    "/usr/local/bin/crictl",
    "/usr/bin/crictl",
    "/opt/bin/crictl",
    "/opt/cni/bin/crictl",
];

/// The commands of `criswitch node`.
#[derive(Subcommand)]
pub(super) enum NodeCommand {
    /// Show the steps that would change this node, and what speaks against it.
    Plan(plan::PlanArguments),
    /// Set up this node, or a mounted image: all of it or nothing.
    Apply(apply::ApplyArguments),
    /// Undo the last apply, or one that was interrupted.
    Undo(apply::UndoArguments),
    /// Undo every apply, unless pods still need criswitch.
    Uninstall(apply::UninstallArguments),
    /// Show whether a machine is as apply has made it.
    Status(apply::NodeStatusArguments),
    /// Carry a specification to the node of this pod, and show how the node is, until SIGTERM.
    Follow(follow::FollowArguments),
}

impl NodeCommand {
    pub(super) fn encoding(&self) -> Option<Encoding> {
        match self {
            NodeCommand::Plan(plan) => plan.output.encoding(),
            NodeCommand::Status(status) => status.output.encoding(),
            _ => None,
        }
    }

    pub(super) fn run(&self) -> anyhow::Result<Verdict> {
        match self {
            NodeCommand::Plan(plan) => plan.run(),
            NodeCommand::Apply(apply) => apply.run(),
            NodeCommand::Undo(undo) => undo.run(),
            NodeCommand::Uninstall(uninstall) => uninstall.run(),
            NodeCommand::Status(status) => status.run(),
            NodeCommand::Follow(follow) => follow.run(),
        }
    }
}

/// The settings and the problems that were found on a machine.
pub(super) struct Node {
    kubelet: Kubelet,
    /// crictl's runtime endpoint, if it is configured.
    crictl: Option<Setting>,
    findings: Vec<Finding>,
}

/// A setting, and the file or process that has it.
#[derive(Clone, Serialize)]
struct Setting {
    /// The key in the file, or the flag without its dashes.
    #[serde(skip)]
    name: String,
    /// The text before the value in the file or on the command line.
    #[serde(skip)]
    before: String,
    value: String,
    from: String,
}

/// A problem of the machine, or a reason not to change it.
#[derive(Clone)]
struct Finding {
    /// The pods, files, units or backends.
    places: Vec<String>,
    what: String,
    /// Empty if criswitch knows no advice.
    hint: String,
    /// Whether criswitch could not look.
    is_unknown: bool,
}

/// Checks the machine below `root`. Compares the cgroup drivers only if the backends were probed.
pub(super) fn look(config: &Config, probes: Option<&[Probe]>, root: &Path) -> Node {
    let root = Root::of(root);
    let mut findings = Vec::new();
    let kubelet = Kubelet::read(&root, &mut findings);
    let switch = config.listen.endpoint();
    kubelet.judge(&switch, &mut findings);
    Kubelet::judge_kubeadm(&root, &switch, &mut findings);
    let table = &config.table;
    if let Some(driver) = probes.and_then(|it| driver_of(table, it, table.default.backend)) {
        kubelet.judge_cgroup_driver(driver, &mut findings);
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

/// The unsafe sysctls that the kubelet of the machine below `root` allows; `None` if this is unknown.
pub(super) fn allowed_sysctls(root: &Path) -> Option<Vec<String>> {
    Kubelet::read(&Root::of(root), &mut Vec::new()).allowed_sysctls()
}

/// The socket of the runtime that the kubelet of the machine below `root` uses now, if it is known. Only reads files.
pub(super) fn kubelet_runtime(root: &Path) -> Option<Address> {
    let kubelet = Kubelet::read(&Root::of(root), &mut Vec::new());
    Address::parse(kubelet.endpoint()?).ok()
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
    let mut programs = CRICTL_PROGRAMS.iter();
    let installed = programs.any(|program| root.at(Path::new(program)).exists());
    let get = |key| Setting::of(file.as_ref()?, key, &path);
    let (runtime, images) = (get("runtime-endpoint"), get("image-endpoint"));
    let mut hint = format!("runtime-endpoint: {switch}");
    if path != Path::new(CRICTL) {
        hint += &format!(" in {CRICTL}, and CRI_CONFIG_FILE={CRICTL}");
    }
    if runtime.is_none() && readable && (installed || file.is_some()) {
        let what = "crictl has no runtime-endpoint";
        report(findings, path.display(), what, &hint);
    }
    judge(
        runtime.as_ref(),
        "crictl's runtime-endpoint",
        switch,
        hint,
        findings,
    );
    let hint = "removing image-endpoint";
    judge(
        images.as_ref(),
        "crictl's image-endpoint",
        switch,
        hint,
        findings,
    );
    runtime
}

/// Checks that an endpoint is criswitch, if it is set.
fn judge(
    setting: Option<&Setting>,
    name: &str,
    switch: &str,
    hint: impl fmt::Display,
    findings: &mut Vec<Finding>,
) {
    if let Some(Setting { value, from, .. }) = setting
        && !same(value, switch)
    {
        let what = format!("{name} is {value}, not criswitch");
        report(findings, from, what, hint);
    }
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

fn report(
    findings: &mut Vec<Finding>,
    place: impl fmt::Display,
    what: impl fmt::Display,
    hint: impl fmt::Display,
) {
    findings.push(Finding::new([place], what, hint));
}

/// Adds the problem that the command cannot say how the machine is set up.
fn unknown(findings: &mut Vec<Finding>, place: impl fmt::Display, what: impl fmt::Display) {
    findings.push(Finding::unknown([place], what, ""));
}

/// Whether two addresses name the same socket. `/var/run` is a link to `/run` on every machine, so the two paths are
/// equal. A path with a slash at its end names a directory, and a connection to it fails.
fn same(one: &str, other: &str) -> bool {
    let path = |text: &str| {
        let is_directory = text.ends_with('/') || text.ends_with("/.");
        let address = Address::parse(text).ok().filter(|_| !is_directory)?;
        let path = address.path().to_owned();
        let in_run = path.strip_prefix("/var/run").ok();
        Some(in_run.map_or(path.clone(), |rest| Path::new("/run").join(rest)))
    };
    one == other || path(one).is_some_and(|one| Some(one) == path(other))
}

impl Node {
    /// The text output: the settings, then the problems.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let kubelet = &self.kubelet;
        let settings = [
            ("kubelet", kubelet.runs.as_ref()),
            ("runtime", kubelet.set(RUNTIME)),
            ("images", kubelet.set(IMAGES)),
            ("cgroups", kubelet.set(CGROUP_DRIVER)),
            ("crictl", self.crictl.as_ref()),
        ];
        let rows = settings.map(|(name, setting)| {
            let text = setting.map(|setting| [setting.value.clone(), setting.from.clone()]);
            let [value, from] = text.unwrap_or_default();
            [name.to_owned(), value, from]
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
        let problems = findings
            .map(|it| json!({ "path": it.place(), "what": it.text(), "try": advice(&it.hint) }));
        problems.collect()
    }

    /// The JSON output.
    pub(super) fn json(&self) -> Value {
        json!({
            "kubelet": {
                "pid": self.kubelet.pid,
                "runtimeEndpoint": self.kubelet.set(RUNTIME),
                "imageEndpoint": self.kubelet.set(IMAGES),
                "cgroupDriver": self.kubelet.set(CGROUP_DRIVER),
            },
            "crictl": { "runtimeEndpoint": self.crictl },
            "findings": self.problems(),
        })
    }
}

impl Finding {
    /// A finding about these places; no finding if there are none.
    fn new(
        places: impl IntoIterator<Item = impl ToString>,
        what: impl ToString,
        hint: impl ToString,
    ) -> Finding {
        Finding {
            places: places.into_iter().map(|place| place.to_string()).collect(),
            what: what.to_string(),
            hint: hint.to_string(),
            is_unknown: false,
        }
    }

    /// A finding about these places, at which criswitch could not look.
    fn unknown(
        places: impl IntoIterator<Item = impl ToString>,
        what: impl ToString,
        hint: impl ToString,
    ) -> Finding {
        Finding {
            is_unknown: true,
            ..Finding::new(places, what, hint)
        }
    }

    fn place(&self) -> String {
        self.places.join(", ")
    }

    /// The finding as one line.
    fn line(&self, what: &str) -> String {
        let hint = advice(&self.hint).map(|hint| format!("; try {hint}"));
        format!("{}: {what}{}", self.place(), hint.unwrap_or_default())
    }

    fn text(&self) -> String {
        let kind = if self.is_unknown { "unknown: " } else { "" };
        format!("{kind}{}", self.what)
    }
}

fn advice(hint: &str) -> Option<&str> {
    (!hint.is_empty()).then_some(hint)
}

impl Setting {
    fn new(name: &str, before: &str, value: &str, from: &str) -> Setting {
        Setting {
            name: name.to_owned(),
            before: before.to_owned(),
            value: value.to_owned(),
            from: from.to_owned(),
        }
    }

    /// The value of a key in a file; `None` if the value is empty.
    fn of(file: &Value, key: &str, path: &Path) -> Option<Setting> {
        let value = Setting::text_of(file.get(key)?)?;
        let from = path.display().to_string();
        Some(Setting::new(key, &format!("{key}: "), &value, &from))
    }

    /// The text of a value that is neither empty nor an object; the texts of a list with commas between them.
    fn text_of(value: &Value) -> Option<String> {
        match value {
            Value::Array(items) => {
                let texts: Vec<_> = items.iter().filter_map(Setting::text_of).collect();
                Some(texts.join(","))
            }
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        }
    }

    /// The setting with the new value, in the syntax of its file or command line.
    fn instead(&self, value: &str) -> String {
        format!("{}{value}", self.before)
    }
}

/// The last setting with one of these names that has a value.
fn last<'a>(settings: &'a [Setting], names: &[&str]) -> Option<&'a Setting> {
    let mut settings = settings.iter().rev();
    settings.find(|its| names.contains(&its.name.as_str()) && !its.value.is_empty())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(&self.text()))
    }
}
