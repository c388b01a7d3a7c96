//! Checks of the kubelet: whether criswitch knows it, and what its restart would change besides the endpoint.

use std::fs;
use std::path::Path;

use crate::facts::MachineFacts;
use crate::finding::Finding;
use crate::kubelet::IMAGES;
use crate::settings::judge;
use crate::start::Flags;
use crate::steps::{ORDER_DROP_IN, PlannedStep};
use crate::unit::Unit;

/// The oldest minor version of the kubelet 1.x that criswitch serves.
const OLDEST: u32 = 31;
/// The oldest minor version for which k3s and RKE2 read kubelet drop-ins. Source: the documentation of k3s.
const OLDEST_OF_RANCHER: u32 = 32;
/// The hint for what a restart of the kubelet would change besides its endpoint.
const RESTART_FIRST: &str = "restarting the kubelet first";

pub(super) fn layout(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    Some(
        facts
            .layout
            .as_ref()
            .err()
            .unwrap_or(&facts.kubelet_findings)
            .clone(),
    )
}

pub(super) fn image_endpoint(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let mut findings = Vec::new();
    let name = "the kubelet's image service endpoint";
    judge(
        facts.kubelet.set(IMAGES),
        name,
        &facts.endpoint,
        "removing it",
        &mut findings,
    );
    Some(findings)
}

/// The minor version of the kubelet 1.x, as its program prints it. `None` if it is unknown.
pub(super) fn minor_version(facts: &MachineFacts<'_>) -> Option<u32> {
    facts
        .kubelet
        .version(&facts.root)?
        .split_once(" v1.")?
        .1
        .split(|char: char| !char.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

pub(super) fn version(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let oldest = match facts.kubelet.rancher {
        Some(_) => OLDEST_OF_RANCHER,
        None => OLDEST,
    };
    let what = format!("criswitch needs the kubelet 1.{oldest} or newer");
    Some(vec![match minor_version(facts) {
        Some(minor) if minor >= oldest => return None,
        Some(minor) => Finding::new(["kubelet"], format!("{what}, and this is 1.{minor}"), ""),
        None => Finding::unknown(
            ["kubelet"],
            format!("{what}, and its version is not known"),
            "kubelet --version",
        ),
    }])
}

/// A kubelet that uses criswitch, but whose previous endpoint is not in the journal: an undo could not restore the
/// endpoint.
pub(super) fn endpoint(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let is_foreign = facts.uses_criswitch() && !facts.has_set_endpoint;
    let what = "the kubelet uses criswitch already, so an undo would leave it without a runtime";
    let hint = "setting the endpoint of its own runtime and restarting it, then again";
    is_foreign.then(|| vec![Finding::new(["kubelet"], what, hint)])
}

pub(super) fn stopped(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let is_stopped = facts.root.runs() && facts.kubelet.pid.is_none();
    let what = "the kubelet does not run, so whether it would serve with criswitch is not known";
    is_stopped.then(|| vec![Finding::unknown(["kubelet"], what, "starting it first")])
}

pub(super) fn program(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let link = format!("/proc/{}/exe", facts.kubelet.pid.unwrap_or_default());
    Some(vec![match fs::read_link(facts.root.at(Path::new(&link))) {
        Ok(program) => Finding::new(
            program.display().to_string().strip_suffix(" (deleted)"),
            "the program was replaced after the kubelet had started, so a restart would upgrade it",
            RESTART_FIRST,
        ),
        Err(_) => Finding::unknown(
            [link],
            "the program of the kubelet's process cannot be read",
            "running the command as root",
        ),
    }])
}

pub(super) fn files(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let mut paths = facts.next_kubelet.files(&facts.root);
    if let Ok(layout) = &facts.layout {
        paths.extend(Unit::read(&facts.root, &layout.unit).files());
    }
    // Omits criswitch's own drop-in, which only decides at a boot that the kubelet starts after criswitch.
    paths.retain(|path| !path.ends_with(ORDER_DROP_IN));
    Some(vec![match facts.kubelet.newer_files(paths, &facts.root) {
        None => {
            let what = "criswitch cannot read when the kubelet's process started";
            Finding::unknown(["kubelet"], what, "")
        }
        Some(paths) => Finding::new(
            paths.iter().map(|path| path.display()),
            "the file is newer than the kubelet's process, so a restart would apply it",
            RESTART_FIRST,
        ),
    }])
}

pub(super) fn flags(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let next = &facts.next_kubelet;
    let (process, unit) = (facts.kubelet.start.as_ref()?, next.start.as_ref()?);
    let [runs, starts] = [process, unit].map(|start| start.rancher.as_ref().map(|it| it.program));
    if runs != starts {
        let what = "a different program runs the kubelet now than this unit would start";
        let hint = "disabling the unit of one of them";
        return Some(vec![Finding::new([&unit.from], what, hint)]);
    }
    let [runs, starts] =
        [process, unit].map(|start| start.words.iter().skip(1).map(|word| &word.text));
    // k3s and RKE2 make the kubelet's flags themselves at each start.
    if next.rancher.is_some() || process.program.flags != Flags::Kubelet || runs.eq(starts) {
        return None;
    }
    let what = "the flags of the kubelet's process differ from the flags in its unit";
    Some(vec![Finding::new([&unit.from], what, RESTART_FIRST)])
}

pub(super) fn daemon_reload(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let unit = &facts.layout.as_ref().ok()?.unit;
    Some(vec![match facts
        .root
        .is_this_machine()
        .then(|| Unit::needs_reload(unit))
        .flatten()
    {
        Some(false) => return None,
        Some(true) => Finding::new(
            [unit],
            "the unit has changed on disk, and systemd has not read it yet",
            "systemctl daemon-reload, then restarting the kubelet",
        ),
        None => Finding::unknown(
            [unit],
            "whether systemd has read the unit as it is on disk is not known",
            "systemctl daemon-reload",
        ),
    }])
}
