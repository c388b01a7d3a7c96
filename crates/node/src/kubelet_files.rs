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

/// The files of a kubelet with these flags: its configuration, then its drop-ins. Reports a configuration that is
/// missing.
pub(super) fn files_of(
    flags: &[Setting],
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if let Some(file) = last(flags, &["config"]) {
        if let Ok(None) = root.text(Path::new(&file.value)) {
            let what = "the kubelet's configuration is this file, which does not exist";
            unknown(findings, &file.value, what);
        }
        paths.push(PathBuf::from(&file.value));
    }
    if let Some(folder) = last(flags, &["config-dir"]) {
        paths.extend(root.kubelet_drop_ins(Path::new(&folder.value)));
    }
    paths
}

/// The settings in files of the kubelet's configuration.
pub(super) fn file_settings(
    paths: Vec<PathBuf>,
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for path in paths {
        let file = root.yaml(&path, findings).unwrap_or_default();
        judge_type(&file, &path, findings);
        let keys = file.as_object().into_iter().flatten();
        settings.extend(keys.filter_map(|(key, _)| Setting::of(&file, key, &path)));
    }
    settings
}

/// Reports a file of another type. The kubelet does not start with such a file.
fn judge_type(file: &Value, path: &Path, findings: &mut Vec<Finding>) {
    for (key, wanted) in TYPE {
        let found = file.get(key).and_then(Value::as_str);
        if let Some(found) = found.filter(|found| *found != wanted) {
            let what = format!("the kubelet does not start with this file: its {key} is {found}");
            report(findings, path.display(), what, format!("{key}: {wanted}"));
        }
    }
}
