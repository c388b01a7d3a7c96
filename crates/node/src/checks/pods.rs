//! Checks of the backends and of the pods.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use criswitch_client::probe::{self, Probed, driver_of};
use criswitch_cri::codec::cri::{PodSandbox, PodSandboxState};

use super::kubelet::minor_version;
use crate::collisions;
use crate::facts::MachineFacts;
use crate::finding::Finding;
use crate::settings::same;
use crate::steps::PlannedStep;

/// The age that a pod must have before the kubelet restarts.
const YOUNG: Duration = Duration::from_secs(10);
/// How far in the future a pod's creation time may be, because the clock may have been set back.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// The minor versions of the kubelets 1.x that reset the readiness of pods at their start.
const RESETS_READINESS: std::ops::RangeInclusive<u32> = 31..=34;
const KUBECTL: &str = "kubectl get pods -A -o yaml --field-selector spec.nodeName=NODE";

/// The backends that answered, with their names.
fn answered<'f>(facts: &'f MachineFacts<'_>) -> Vec<(&'f str, &'f Probed)> {
    match (&facts.wanted, &facts.probes) {
        (Ok(wanted), Some(probes)) => probe::answered(&wanted.config.table, probes),
        _ => Vec::new(),
    }
}

/// A finding about the backends that do not answer, so that their pods are not known.
fn silent(facts: &MachineFacts<'_>) -> Finding {
    let places = facts
        .wanted
        .iter()
        .flat_map(|wanted| &wanted.config.table.backends)
        .zip(facts.probes.iter().flatten())
        .filter(|(_, probe)| probe.is_err())
        .map(|(backend, _)| format!("backend {:?}", backend.name));
    let what = "its pods are not known, because it does not answer";
    Finding::unknown(places, what, "")
}

/// The pods that run on a backend.
fn running(found: &Probed) -> impl Iterator<Item = &PodSandbox> {
    found
        .pods
        .iter()
        .filter(|pod| pod.state() == PodSandboxState::SandboxReady)
}

/// The pods that run on all backends.
fn all_running<'f>(facts: &'f MachineFacts<'_>) -> impl Iterator<Item = &'f PodSandbox> {
    answered(facts)
        .into_iter()
        .flat_map(|(_, found)| running(found))
}

fn name(pod: &PodSandbox) -> String {
    let names = pod.metadata.clone().unwrap_or_default();
    format!("{}/{}", names.namespace, names.name)
}

pub(super) fn backend(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let backends = &facts.wanted.as_ref().ok()?.config.table.backends;
    let Some(probes) = &facts.probes else {
        let places = backends.iter().map(probe::place);
        let what = "the machine does not run, so no backend was asked";
        return Some(vec![Finding::unknown(places, what, "")]);
    };
    Some(
        probe::faults(backends, probes)
            .map(|(place, fault)| Finding::new([place], fault, ""))
            .collect(),
    )
}

/// Without its runtime as a backend, the kubelet would not find its pods.
pub(super) fn current_runtime(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let (wanted, layout) = (facts.wanted.as_ref().ok()?, facts.layout.as_ref().ok()?);
    let endpoint = facts.kubelet.endpoint().unwrap_or(&layout.endpoint);
    let mut backends = wanted.config.table.backends.iter();
    let is_known = same(endpoint, &facts.endpoint)
        || backends.any(|backend| same(&backend.socket.to_string(), endpoint));
    let what = "the kubelet uses this runtime, which is not a backend, so it would lose its pods";
    let hint = "a row for its handlers under [handlers]";
    (!is_known).then(|| vec![Finding::new([endpoint], what, hint)])
}

/// The paths that the backends share outside of the CRI.
pub(super) fn shared(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let answered = answered(facts);
    Some(match &facts.wanted {
        Ok(wanted) if facts.root.runs() => collisions::all(
            &answered,
            wanted
                .config
                .table
                .backends
                .iter()
                .map(|backend| &backend.socket),
        ),
        _ => collisions::between(&answered),
    })
}

pub(super) fn containerd_state(
    facts: &MachineFacts<'_>,
    _: &[PlannedStep],
) -> Option<Vec<Finding>> {
    collisions::containerd_state(&answered(facts)).map(|note| vec![note])
}

pub(super) fn cgroup_driver(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let table = &facts.wanted.as_ref().ok()?.config.table;
    let probes = facts.probes.as_deref().unwrap_or_default();
    let silent = table
        .backends
        .iter()
        .filter(|backend| driver_of(table, probes, backend.id).is_none())
        .map(|backend| format!("backend {:?}", backend.name));
    let mut found = vec![Finding::unknown(
        silent,
        "the cgroup driver is not known; the kubelet and all backends must have the same",
        "",
    )];
    let ours = driver_of(table, probes, table.default.backend);
    for (name, what) in
        probe::differing_cgroup_drivers("the default backend", ours, &answered(facts))
    {
        found.push(Finding::new([format!("backend {name:?}")], &what, ""));
    }
    if let Some(ours) = ours {
        facts.kubelet.judge_cgroup_driver(ours, &mut found);
    }
    Some(found)
}

pub(super) fn handler_without_row(
    facts: &MachineFacts<'_>,
    _: &[PlannedStep],
) -> Option<Vec<Finding>> {
    let table = &facts.wanted.as_ref().ok()?.config.table;
    let mut findings = Vec::new();
    for (backend, found) in answered(facts) {
        let Some(row) = table.backends.iter().find(|row| row.name == backend) else {
            continue;
        };
        for pod in running(found) {
            let handler = &pod.runtime_handler;
            if !handler.is_empty() && table.name_for(row.id, handler).is_none() {
                findings.push(Finding::new(
                    [name(pod)],
                    format!("the pod uses the handler {handler:?}, which has no row"),
                    "a row under [handlers]",
                ));
            }
        }
    }
    findings.push(silent(facts));
    Some(findings)
}

/// Pods that the kubelet would remove, because it does not know them.
pub(super) fn unknown_to_kubelet(
    facts: &MachineFacts<'_>,
    _: &[PlannedStep],
) -> Option<Vec<Finding>> {
    let known = match &facts.pods {
        Ok(known) => known,
        Err(found) => return Some(vec![found.clone()]),
    };
    let unknown = all_running(facts).filter(|pod| {
        let uid = pod.metadata.as_ref().map(|names| names.uid.as_str());
        !known.contains(uid.unwrap_or_default())
    });
    let what = "the kubelet does not know the pod, and would remove it";
    let hint = "removing the pod, or waiting for its end";
    Some(vec![
        silent(facts),
        Finding::new(unknown.map(name), what, hint),
    ])
}

pub(super) fn young(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (mut young, mut future) = (Vec::new(), Vec::new());
    for pod in all_running(facts) {
        let created = u128::try_from(pod.created_at).unwrap_or_default();
        if created > (now + CLOCK_STEP).as_nanos() {
            future.push(name(pod));
        } else if created > now.saturating_sub(YOUNG).as_nanos() {
            young.push(name(pod));
        }
    }
    let what = "the pod is younger than 10 seconds";
    let ahead = "the pod was created later than this machine's time, so its age is not known";
    Some(vec![
        silent(facts),
        Finding::new(young, what, "again after 10 seconds"),
        Finding::unknown(future, ahead, "correcting the clock"),
    ])
}

/// A note about the pods of the node, whose specifications are in the API server only.
fn note(facts: &MachineFacts<'_>, what: &str) -> Option<Vec<Finding>> {
    let has_pods = !facts.pods.as_ref().is_ok_and(BTreeSet::is_empty);
    has_pods.then(|| vec![Finding::new(["all pods"], what, KUBECTL)])
}

pub(super) fn admission(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let what = "whether the restarted kubelet admits the pods again depends on their specifications: node selectors \
        and labels of the node, NUMA, devices whose plug-in is not registered";
    note(facts, what)
}

pub(super) fn eviction(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    let what =
        "whether a short NotReady of the node evicts the pods depends on their tolerationSeconds";
    note(facts, what)
}

pub(super) fn readiness(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Option<Vec<Finding>> {
    if minor_version(facts).is_some_and(|minor| !RESETS_READINESS.contains(&minor)) {
        return None;
    }
    let what = "with a kubelet 1.31 to 1.34, pods with a readiness probe are not ready from its restart until their \
        first probe";
    note(facts, what)
}
