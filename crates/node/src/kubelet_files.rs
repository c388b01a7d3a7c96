//! The files with the kubelet's settings.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::finding::{Finding, report, unknown};
use super::root::Root;
use super::settings::{Setting, last};

/// kubeadm's files with the configuration and with the flags of the kubelet.
pub(super) const KUBEADM_FILES: [&str; 2] = [
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
];
/// kubeadm's file with the settings of this node. kubeadm writes these settings into the kubelet's configuration when
/// it upgrades the node.
pub(super) const KUBEADM_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";
/// The type of the files with the kubelet's configuration.
const TYPE: [(&str, &str); 2] = [
    ("apiVersion", "kubelet.config.k8s.io/v1beta1"),
    ("kind", "KubeletConfiguration"),
];
/// The name of criswitch's own file in a directory of kubelet drop-ins.
pub(super) const KUBELET_DROP_IN: &str = "90-criswitch.conf";

/// The files of a kubelet with these flags: its configuration, then its drop-ins. Reports a directory of drop-ins that
/// is missing, because the kubelet does not start without it.
pub(super) fn files_of(
    flags: &[Setting],
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<PathBuf> {
    let mut paths: Vec<_> = last(flags, &["config"])
        .map(|file| PathBuf::from(&file.value))
        .into_iter()
        .collect();
    if let Some(folder) = last(flags, &["config-dir"]) {
        let drop_ins = root.kubelet_drop_ins(Path::new(&folder.value));
        if drop_ins.is_empty() && !root.has(&folder.value) {
            let what = "the kubelet's drop-ins are in this directory, which does not exist";
            findings.push(Finding::unknown(
                [&folder.value],
                what,
                "creating the directory",
            ));
        }
        paths.extend(drop_ins);
    }
    paths
}

/// The settings in files of the kubelet's configuration. Reports a file with which the kubelet does not start: a file
/// that does not exist, or has another type.
pub(super) fn file_settings(
    paths: Vec<PathBuf>,
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for path in paths {
        if let Ok(None) = root.text(&path) {
            let what = "the kubelet's configuration is this file, which does not exist";
            unknown(findings, path.display(), what);
            continue;
        }
        let before = findings.len();
        let file = root.yaml(&path, findings).unwrap_or_default();
        if findings.len() == before {
            judge_type(&file, &path, findings);
        }
        settings.extend(settings_of(&file, &path));
    }
    settings
}

/// The settings in [`KUBEADM_CONFIG`]. kubeadm writes this file without a type, and reads it as a patch.
pub(super) fn kubeadm_settings(root: &Root<'_>, findings: &mut Vec<Finding>) -> Vec<Setting> {
    let path = Path::new(KUBEADM_CONFIG);
    settings_of(&root.yaml(path, findings).unwrap_or_default(), path)
}

fn settings_of(file: &Value, path: &Path) -> Vec<Setting> {
    file.as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| Setting::of(file, key, path))
        .collect()
}

/// Reports a file of another type, or without a type.
fn judge_type(file: &Value, path: &Path, findings: &mut Vec<Finding>) {
    let (mut wrong, mut right) = (Vec::new(), Vec::new());
    for (key, wanted) in TYPE {
        let found = file.get(key).and_then(Value::as_str).unwrap_or("missing");
        if found != wanted {
            wrong.push(format!("its {key} is {found}"));
            right.push(format!("{key}: {wanted}"));
        }
    }
    if !wrong.is_empty() {
        report(
            findings,
            path.display(),
            format!(
                "the kubelet does not start with this file: {}",
                wrong.join(", ")
            ),
            right.join(" and "),
        );
    }
}
