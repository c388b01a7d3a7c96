//! The files of a running kubelet that are newer than its process. The kubelet reads its configuration only when it
//! starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::finding::{Finding, unknown};
use super::kubelet::Kubelet;
use super::kubelet_files::files_of;
use super::root::Root;

/// The unit of the times in `/proc/PID/stat`. Linux uses this value on all architectures that Kubernetes supports.
const TICKS_PER_SECOND: u64 = 100;
/// The field of `/proc/PID/stat` with the start, counted after the name of the program.
const START_FIELD: usize = 19;

impl Kubelet {
    /// The files with the settings, and the files that the flags name.
    pub(super) fn files(&self, root: &Root<'_>) -> Vec<PathBuf> {
        let own_root = self.container.as_deref().map_or(*root, Root::of);
        let mut paths = files_of(&self.settings, &own_root, &mut Vec::new());
        paths.extend(self.settings.iter().map(|set| PathBuf::from(&set.from)));
        paths.retain(|path| path.is_absolute());
        paths
    }

    /// The files that are newer than the process of the kubelet: its own, and those in `more`. `None` if the start of
    /// the process cannot be read.
    pub(super) fn newer_files(&self, more: Vec<PathBuf>, root: &Root<'_>) -> Option<Vec<PathBuf>> {
        let started = start_time(self.pid?, root)?;
        let is_newer = |path: &Path, root: &Root<'_>| {
            let about = fs::metadata(root.real(path));
            about
                .and_then(|about| about.modified())
                .is_ok_and(|time| time > started)
        };
        let own_root = self.container.as_deref().map_or(*root, Root::of);
        let mut paths = self.files(root);
        paths.retain(|path| is_newer(path, &own_root));
        paths.extend(more.into_iter().filter(|path| is_newer(path, root)));
        paths.sort();
        paths.dedup();
        // k3s and RKE2 write these files at their start.
        let rancher = self.rancher.as_ref();
        paths.retain(|path| !rancher.is_some_and(|it| it.writes(path)));
        Some(paths)
    }

    /// Adds a finding for the files that the running kubelet may not have read.
    pub(super) fn judge_age(&self, root: &Root<'_>, findings: &mut Vec<Finding>) {
        let Some(paths) = self.newer_files(Vec::new(), root) else {
            if let Some(pid) = self.pid {
                let what = "criswitch cannot read when the kubelet's process started; whether the process uses the present files is unknown";
                unknown(findings, format!("process {pid}"), what);
            }
            return;
        };
        let what = "the file is newer than the kubelet's process, which still uses what it read at its start";
        let places = paths.iter().map(|path| path.display());
        let finding = Finding::unknown(places, what, "restarting the kubelet");
        findings.extend(Some(finding).filter(|finding| !finding.places.is_empty()));
    }
}

/// The time at which the process started, or up to a second later: the kernel shows the time of the boot in whole
/// seconds.
fn start_time(pid: u32, root: &Root<'_>) -> Option<SystemTime> {
    let process = format!("/proc/{pid}/stat");
    let process = root.text(Path::new(&process)).ok()??;
    let (_, fields) = process.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(START_FIELD)?.parse().ok()?;
    let machine = root.text(Path::new("/proc/stat")).ok()??;
    let boot = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let boot = Duration::from_secs(boot.trim().parse::<u64>().ok()?.checked_add(1)?);
    let since = Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?);
    SystemTime::UNIX_EPOCH.checked_add(boot)?.checked_add(since)
}
