//! The files with the kubelet's settings.

use std::path::PathBuf;

use serde_json::Value;

use super::finding::{Finding, unknown};
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
/// A file for criswitch alone in a directory of kubelet drop-ins.
pub(super) const KUBELET_DROP_IN: &str = "90-criswitch.conf";

/// The files of a kubelet with these flags: its configuration, then its drop-ins. Reports a configuration that is
/// missing.
pub(super) fn files_of(
    flags: &[Setting],
    root: &Root<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<PathBuf> {
    let file = |name| Some(PathBuf::from(&last(flags, &[name])?.value));
    let mut paths = Vec::from_iter(file("config"));
    if let Some(path) = paths.first()
        && let Ok(None) = root.text(path)
    {
        let what = "the kubelet's configuration is this file, which does not exist";
        unknown(findings, path.display(), what);
    }
    let drop_ins = file("config-dir").into_iter();
    paths.extend(drop_ins.flat_map(|folder| root.files_in(&folder, &["conf"])));
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
        let file = root.yaml(&path, findings);
        let keys = file
            .as_ref()
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, _)| key);
        settings.extend(keys.filter_map(|key| Setting::of(file.as_ref()?, key, &path)));
    }
    settings
}
