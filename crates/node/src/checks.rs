//! The findings that prevent criswitch from changing a node.
//!
//! A check that cannot look returns an unknown finding, which counts like any other finding.

mod files;
mod kubelet;
mod pods;

use super::facts::MachineFacts;
use super::finding::Finding;
use super::steps::{PlannedStep, has};

/// A check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Whether a specification may accept its findings.
    pub(super) may_accept: bool,
    /// The check runs if one of these steps has changes. If the list is empty, the check always runs.
    needed_for: &'static [&'static str],
    /// Finds the places of the finding; `None`, or findings without places, if there is nothing to report.
    look: fn(&MachineFacts<'_>, &[PlannedStep]) -> Option<Vec<Finding>>,
}

const ALWAYS: &[&str] = &[];
const FILES_STEPS: &[&str] = &["binary", "units", "configuration", "endpoint"];
const START_STEPS: &[&str] = &["start", "endpoint"];
const RESTART_STEPS: &[&str] = &["restart"];

#[rustfmt::skip]
pub(super) const CHECKS: [Check; 26] = [
    Check { name: "machine", may_accept: false, needed_for: ALWAYS, look: files::machine },
    Check { name: "version", may_accept: false, needed_for: ALWAYS, look: files::version },
    Check { name: "generation", may_accept: false, needed_for: ALWAYS, look: files::generation },
    Check { name: "operating-system", may_accept: false, needed_for: ALWAYS, look: files::operating_system },
    Check { name: "systemd", may_accept: false, needed_for: ALWAYS, look: files::systemd },
    Check { name: "layout", may_accept: false, needed_for: ALWAYS, look: kubelet::layout },
    Check { name: "configuration", may_accept: false, needed_for: ALWAYS, look: files::configuration },
    Check { name: "package", may_accept: false, needed_for: FILES_STEPS, look: files::package },
    Check { name: "outside", may_accept: false, needed_for: FILES_STEPS, look: files::outside },
    Check { name: "noexec", may_accept: false, needed_for: FILES_STEPS, look: files::no_exec },
    Check { name: "existing-file", may_accept: true, needed_for: FILES_STEPS, look: files::existing },
    Check { name: "backend", may_accept: true, needed_for: START_STEPS, look: pods::backend },
    Check { name: "current-runtime", may_accept: true, needed_for: START_STEPS, look: pods::current_runtime },
    Check { name: "cgroup-driver", may_accept: true, needed_for: START_STEPS, look: pods::cgroup_driver },
    Check { name: "handler-without-row", may_accept: true, needed_for: START_STEPS, look: pods::handler_without_row },
    Check { name: "shared", may_accept: true, needed_for: START_STEPS, look: pods::shared },
    Check { name: "unknown-pod", may_accept: true, needed_for: START_STEPS, look: pods::unknown_to_kubelet },
    Check { name: "image-endpoint", may_accept: true, needed_for: START_STEPS, look: kubelet::image_endpoint },
    Check { name: "kubelet-version", may_accept: true, needed_for: START_STEPS, look: kubelet::version },
    Check { name: "kubelet-endpoint", may_accept: true, needed_for: START_STEPS, look: kubelet::endpoint },
    Check { name: "kubelet-stopped", may_accept: true, needed_for: &["endpoint"], look: kubelet::stopped },
    Check { name: "kubelet-program", may_accept: true, needed_for: RESTART_STEPS, look: kubelet::program },
    Check { name: "kubelet-files", may_accept: true, needed_for: RESTART_STEPS, look: kubelet::files },
    Check { name: "kubelet-flags", may_accept: true, needed_for: RESTART_STEPS, look: kubelet::flags },
    Check { name: "daemon-reload", may_accept: true, needed_for: RESTART_STEPS, look: kubelet::daemon_reload },
    Check { name: "young-pod", may_accept: true, needed_for: RESTART_STEPS, look: pods::young },
];

/// Notes: these findings do not prevent a change.
#[rustfmt::skip]
pub(super) const NOTES: [Check; 4] = [
    Check { name: "admission", may_accept: false, needed_for: RESTART_STEPS, look: pods::admission },
    Check { name: "eviction", may_accept: false, needed_for: RESTART_STEPS, look: pods::eviction },
    Check { name: "readiness", may_accept: false, needed_for: RESTART_STEPS, look: pods::readiness },
    Check { name: "containerd-state", may_accept: false, needed_for: START_STEPS, look: pods::containerd_state },
];

/// The names that `accept` may have. Names of notes are allowed too, although a note needs no acceptance.
pub(super) fn acceptable() -> Vec<&'static str> {
    CHECKS
        .iter()
        .filter(|check| check.may_accept)
        .chain(&NOTES)
        .map(|check| check.name)
        .collect()
}

/// The findings of the checks that the planned steps need, each with its check.
pub(super) fn look(
    checks: &'static [Check],
    facts: &MachineFacts<'_>,
    planned: &[PlannedStep],
) -> Vec<(&'static Check, Finding)> {
    checks
        .iter()
        .filter(|check| {
            check.needed_for.is_empty() || check.needed_for.iter().any(|step| has(planned, step))
        })
        .flat_map(|check| {
            (check.look)(facts, planned)
                .into_iter()
                .flatten()
                .filter(|finding| !finding.places.is_empty())
                .map(move |finding| (check, finding))
        })
        .collect()
}
