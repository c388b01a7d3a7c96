//! Finds the settings of the kubelet in its flags and in the configuration that the flags name, and judges them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use criswitch_client::program::within;
use criswitch_config::address::Address;

use super::finding::{Finding, report};
use super::kubelet_files::{KUBELET_DROP_IN, file_settings, files_of, kubeadm_settings};
use super::rancher::Rancher;
use super::root::Root;
use super::settings::{Setting, judge, last};
use super::start::{Flags, Start};

/// The flag of a setting without its dashes, and its key in the configuration.
pub(super) type SettingNames = [&'static str; 2];
pub(super) const RUNTIME: SettingNames = ["container-runtime-endpoint", "containerRuntimeEndpoint"];
/// The text before the runtime endpoint in the configuration.
pub(super) const RUNTIME_KEY: &str = "containerRuntimeEndpoint: ";
/// The socket of the cri-dockerd that k3s starts with `--docker`.
const CRI_DOCKERD: &str = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock";
pub(super) const IMAGES: SettingNames = ["image-service-endpoint", "imageServiceEndpoint"];
pub(super) const CGROUP_DRIVER: SettingNames = ["cgroup-driver", "cgroupDriver"];
const SYSCTLS: SettingNames = ["allowed-unsafe-sysctls", "allowedUnsafeSysctls"];

/// How long the kubelet may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Kubelet {
    /// The row of the kubelet in the output: whether the kubelet runs, and its process or unit.
    pub(super) runs: Option<Setting>,
    /// The id of the kubelet's process; `None` if the kubelet does not run.
    pub(super) pid: Option<u32>,
    /// The command line that starts the kubelet; `None` if it is unknown.
    pub(super) start: Option<Start>,
    /// All settings in files and flags. If several settings have the same name, the last one wins.
    pub(super) settings: Vec<Setting>,
    /// k3s or RKE2, if one of them starts the kubelet.
    pub(super) rancher: Option<Rancher>,
    /// The default runtime endpoint of this kubelet, and the place where the operator should set the endpoint.
    unset: Option<Setting>,
    /// The root directory of the kubelet's process, with the files that its flags name; `None` for a kubelet that does
    /// not run, and for k3s.
    pub(super) container: Option<PathBuf>,
    /// Whether a file could not be read. Such a file may have a setting that was not found.
    partial: bool,
}

/// The unsafe sysctls that the kubelet of the machine below `root` allows; `None` if this is unknown.
pub fn allowed_sysctls(root: &Path) -> Option<Vec<String>> {
    Kubelet::read(&Root::of(root), &mut Vec::new()).allowed_sysctls()
}

/// The socket of the runtime that the kubelet of the machine below `root` uses now, if it is known. Only reads files.
pub fn kubelet_runtime(root: &Path) -> Option<Address> {
    Address::parse(Kubelet::read(&Root::of(root), &mut Vec::new()).endpoint()?).ok()
}

impl Kubelet {
    pub(super) fn read(root: &Root<'_>, findings: &mut Vec<Finding>) -> Kubelet {
        let before = findings.len();
        let start = Start::find(root, findings);
        let rancher = start
            .as_ref()
            .and_then(|start| start.rancher.as_ref())
            .map(|given| Rancher::read(given, root, findings));
        let container = start
            .as_ref()
            .filter(|start| start.program.flags != Flags::Rancher)
            .and_then(|start| start.container(root));
        let own_root = container.as_deref().map_or(*root, Root::of);
        let (settings, unset) = start
            .as_ref()
            .map(|start| settings(start, rancher.as_ref(), &own_root, findings))
            .unzip();
        Kubelet {
            unset,
            container,
            runs: start.as_ref().map(Start::shown),
            pid: start.as_ref().and_then(|start| start.pid),
            settings: settings.unwrap_or_default(),
            start,
            rancher,
            partial: findings.len() > before,
        }
    }

    /// The version as the program prints it, such as "Kubernetes v1.37.2". `None` if it is unknown.
    pub(super) fn version(&self, root: &Root<'_>) -> Option<String> {
        let start = self.start.as_ref().filter(|_| root.is_this_machine())?;
        let program = match self.pid {
            Some(pid) => fs::read_link(format!("/proc/{pid}/exe")).ok()?,
            None => PathBuf::from(&start.words.first()?.text),
        };
        let mut kubelet = Command::new(program);
        kubelet.arg("--version");
        let output = within(VERSION_LIMIT, kubelet).ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The setting that is in effect; `None` if the kubelet does not have the setting.
    pub(super) fn set(&self, names: SettingNames) -> Option<&Setting> {
        last(&self.settings, &names)
    }

    /// The unsafe sysctls that the kubelet allows, as names or as beginnings of names with `*`; `None` if no kubelet
    /// was found, or if one of its files could not be read.
    pub(super) fn allowed_sysctls(&self) -> Option<Vec<String>> {
        if self.runs.is_none() || self.partial {
            return None;
        }
        Some(match self.set(SYSCTLS) {
            Some(set) => set.value.split(',').map(|it| it.trim().into()).collect(),
            None => Vec::new(),
        })
    }

    /// The runtime endpoint that the kubelet uses now; `None` if that is unknown.
    pub(super) fn endpoint(&self) -> Option<&str> {
        match (self.set(RUNTIME), &self.unset) {
            (Some(endpoint), _) => Some(&endpoint.value),
            (None, Some(default)) if !self.partial => Some(&default.value),
            _ => None,
        }
    }

    /// Checks that the kubelet calls criswitch and no other runtime.
    pub(super) fn judge(&self, switch: &str, findings: &mut Vec<Finding>) {
        match (self.set(RUNTIME), &self.unset) {
            (Some(runtime), _) => {
                let runtime = Setting {
                    from: self.place(&runtime.from),
                    ..runtime.clone()
                };
                let name = "the kubelet's container runtime endpoint";
                judge(
                    Some(&runtime),
                    name,
                    switch,
                    runtime.instead(switch),
                    findings,
                );
            }
            (None, Some(unset)) if !self.partial => {
                let (value, hint) = (&unset.value, unset.instead(switch));
                report(
                    findings,
                    &unset.from,
                    format!("the kubelet uses its default runtime endpoint {value}, not criswitch"),
                    hint,
                );
            }
            _ => {}
        }
        if let Some(images) = self.set(IMAGES) {
            let key = images.before.trim_end_matches(['=', ':', ' ']);
            let name = "the kubelet's image service endpoint";
            judge(
                Some(images),
                name,
                switch,
                format!("removing {key}"),
                findings,
            );
        }
    }

    /// Checks that the next kubeadm upgrade keeps the endpoint.
    pub(super) fn judge_kubeadm(root: &Root<'_>, switch: &str, findings: &mut Vec<Finding>) {
        let kept = kubeadm_settings(root, findings);
        let runtime = last(&kept, &RUNTIME);
        let hint = format!("{RUNTIME_KEY}{switch}");
        let name = "the endpoint that kubeadm sets at its next upgrade";
        judge(runtime, name, switch, hint, findings);
    }

    /// The file or process where the operator should change a setting that was found in `from`: usually `from`. With
    /// k3s or RKE2, the operator's drop-in replaces the files that the program overwrites.
    fn place(&self, from: &str) -> String {
        match &self.rancher {
            Some(rancher) if rancher.writes(Path::new(from)) => {
                rancher.own_drop_in().display().to_string()
            }
            _ => from.to_owned(),
        }
    }

    /// Checks that the kubelet's cgroup driver is that of the default backend. A kubelet that asks the runtime for the
    /// driver uses the reply; an older kubelet uses its own setting.
    pub(super) fn judge_cgroup_driver(&self, theirs: &str, findings: &mut Vec<Finding>) {
        if let Some(ours) = self.set(CGROUP_DRIVER)
            && ours.value != theirs
        {
            let (value, hint) = (&ours.value, ours.instead(theirs));
            report(
                findings,
                self.place(&ours.from),
                format!(
                    "the kubelet's cgroup driver is {value}, the default backend's is {theirs}"
                ),
                hint,
            );
        }
    }
}

/// The settings of a kubelet, and its default runtime endpoint. If several settings have the same name, the last one
/// wins. The default endpoint has the form of a setting at the place where the operator should set the endpoint.
fn settings(
    start: &Start,
    rancher: Option<&Rancher>,
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> (Vec<Setting>, Setting) {
    let socket = match rancher {
        Some(rancher) if rancher.has_docker() => CRI_DOCKERD,
        _ => start.program.default,
    };
    if let Some(rancher) = rancher
        && start.program.flags == Flags::Rancher
    {
        let unset = Setting::new(
            "",
            RUNTIME_KEY,
            socket,
            &rancher.own_drop_in().display().to_string(),
        );
        return (rancher.settings(root, findings), unset);
    }
    let flags = start.flags(root, findings);
    let (before, place) = if let Some(file) = last(&flags, &["config"]) {
        (RUNTIME_KEY, file.value.clone())
    } else if let Some(folder) = last(&flags, &["config-dir"]) {
        (RUNTIME_KEY, format!("{}/{KUBELET_DROP_IN}", folder.value))
    } else if start.program.flags == Flags::K0s {
        ("--cri-socket=remote:", start.from.clone())
    } else {
        let from = flags.last().map_or(&start.from, |flag| &flag.from);
        ("--container-runtime-endpoint=", from.clone())
    };
    let mut settings = file_settings(files_of(&flags, root, findings), root, findings);
    settings.extend(flags);
    (settings, Setting::new("", before, socket, &place))
}
