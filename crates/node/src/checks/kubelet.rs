//! Checks of the kubelet: whether criswitch knows it, and what its restart would change besides the endpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::facts::MachineFacts;
use crate::finding::Finding;
use crate::kubelet::IMAGES;
use crate::kubelet_files::files_of;
use crate::settings::judge;
use crate::start::Flags;
use crate::steps::{ORDER_DROP_IN, PlannedStep};
use crate::unit::Unit;

/// The oldest minor version of the kubelet 1.x that criswitch serves.
const OLDEST: u32 = 31;
/// The oldest one with which k3s and RKE2 read drop-ins of the kubelet. Source: the documentation of k3s.
const OLDEST_OF_RANCHER: u32 = 32;
/// Linux' unit of the times in `/proc/PID/stat`, for all processors of Kubernetes.
const TICKS_PER_SECOND: u64 = 100;
/// The field of `/proc/PID/stat` with the start, counted after the name of the program.
const START_FIELD: usize = 19;

pub(super) fn layout(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    match &facts.layout {
        Ok(_) => facts.kubelet_findings.clone(),
        Err(findings) => findings.clone(),
    }
}

pub(super) fn image_endpoint(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = "the kubelet's image service endpoint";
    let images = facts.kubelet.set(IMAGES);
    judge(images, name, &facts.endpoint, "removing it", &mut findings);
    findings
}

/// The minor version of the kubelet 1.x, as its program prints it. `None` if it is unknown.
pub(super) fn minor_version(facts: &MachineFacts<'_>) -> Option<u32> {
    let version = facts.kubelet.version(&facts.root)?;
    let (_, minor) = version.split_once(" v1.")?;
    minor
        .split(|char: char| !char.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

pub(super) fn version(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let oldest = match facts.kubelet.rancher {
        Some(_) => OLDEST_OF_RANCHER,
        None => OLDEST,
    };
    let what = format!("criswitch needs the kubelet 1.{oldest} or newer");
    match minor_version(facts) {
        Some(minor) if minor >= oldest => Vec::new(),
        Some(minor) => vec![Finding::new(
            ["kubelet"],
            format!("{what}, and this is 1.{minor}"),
            "",
        )],
        None => vec![Finding::unknown(
            ["kubelet"],
            format!("{what}, and its version is not known"),
            "kubelet --version",
        )],
    }
}

/// A kubelet whose previous endpoint no journal has: an undo could only take criswitch away from it.
pub(super) fn endpoint(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    if facts.has_set_endpoint || !facts.uses_criswitch() {
        return Vec::new();
    }
    let what = "the kubelet uses criswitch already, so an undo would leave it without a runtime";
    let hint = "setting the endpoint of its own runtime and restarting it, then again";
    vec![Finding::new(["kubelet"], what, hint)]
}

pub(super) fn stopped(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    if !facts.root.runs() || facts.kubelet.pid.is_some() {
        return Vec::new();
    }
    let what = "the kubelet does not run, so whether it would serve with criswitch is not known";
    vec![Finding::unknown(["kubelet"], what, "starting it first")]
}

pub(super) fn program(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let link = format!("/proc/{}/exe", facts.kubelet.pid.unwrap_or_default());
    let Ok(program) = fs::read_link(facts.root.at(Path::new(&link))) else {
        let what = "the program of the kubelet's process cannot be read";
        return vec![Finding::unknown(
            [link],
            what,
            "running the command as root",
        )];
    };
    let program = program.display().to_string();
    let replaced = program.strip_suffix(" (deleted)");
    let what =
        "the program was replaced after the kubelet had started, so a restart would upgrade it";
    let hint = "restarting the kubelet first";
    vec![Finding::new(replaced, what, hint)]
}

pub(super) fn files(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Some(started) = start_time(facts) else {
        let what = "the start of the kubelet's process cannot be read";
        return vec![Finding::unknown(["kubelet"], what, "")];
    };
    let mut paths = files_of(&facts.kubelet.settings, &facts.root, &mut Vec::new());
    for kubelet in [&facts.kubelet, &facts.next_kubelet] {
        paths.extend(kubelet.settings.iter().map(|set| PathBuf::from(&set.from)));
    }
    if let Ok(layout) = &facts.layout {
        paths.extend(Unit::read(&facts.root, &layout.unit).files());
    }
    paths.sort();
    paths.dedup();
    // The drop-in of criswitch only orders the kubelet at the next boot.
    paths.retain(|path| path.is_absolute() && !path.ends_with(ORDER_DROP_IN));
    paths.retain(|path| {
        fs::metadata(facts.root.at(path))
            .and_then(|about| about.modified())
            .is_ok_and(|time| time > started)
    });
    let newer = paths.iter().map(|path| path.display());
    let what = "the file is newer than the kubelet's process, so a restart would apply it";
    vec![Finding::new(newer, what, "restarting the kubelet first")]
}

/// The time at which the kubelet's process started, or up to a second later: the kernel shows the time of the boot in
/// whole seconds.
fn start_time(facts: &MachineFacts<'_>) -> Option<SystemTime> {
    let process = format!("/proc/{}/stat", facts.kubelet.pid?);
    let process = facts.root.text(Path::new(&process)).ok()??;
    let (_, fields) = process.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(START_FIELD)?.parse().ok()?;
    let machine = facts.root.text(Path::new("/proc/stat")).ok()??;
    let boot = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let boot = Duration::from_secs(boot.trim().parse::<u64>().ok()?.checked_add(1)?);
    let since = Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?);
    SystemTime::UNIX_EPOCH.checked_add(boot)?.checked_add(since)
}

pub(super) fn flags(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let next = &facts.next_kubelet;
    let (Some(process), Some(unit)) = (&facts.kubelet.start, &next.start) else {
        return Vec::new();
    };
    let [runs, starts] = [process, unit].map(|start| start.rancher.as_ref().map(|it| it.program));
    if runs != starts {
        let what = "a different program runs the kubelet now than this unit would start";
        let hint = "disabling the unit of one of them";
        return vec![Finding::new([&unit.from], what, hint)];
    }
    // k3s and RKE2 make the kubelet's flags themselves at each start.
    if next.rancher.is_some() || process.program.flags != Flags::Kubelet {
        return Vec::new();
    }
    let [runs, starts] =
        [process, unit].map(|start| start.words.iter().skip(1).map(|word| &word.text));
    if runs.eq(starts) {
        return Vec::new();
    }
    let what = "the kubelet's process has other flags than its unit would give it now";
    let hint = "restarting the kubelet first";
    vec![Finding::new([&unit.from], what, hint)]
}

pub(super) fn daemon_reload(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Ok(layout) = &facts.layout else {
        return Vec::new();
    };
    let asked = facts
        .root
        .is_this_machine()
        .then(|| Unit::needs_reload(&layout.unit));
    match asked.flatten() {
        Some(false) => Vec::new(),
        Some(true) => vec![Finding::new(
            [&layout.unit],
            "the unit has changed on disk, and systemd has not read it yet",
            "systemctl daemon-reload, then restarting the kubelet",
        )],
        None => vec![Finding::unknown(
            [&layout.unit],
            "whether systemd has read the unit as it is on disk is not known",
            "systemctl daemon-reload",
        )],
    }
}
