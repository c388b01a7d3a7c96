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
/// How far a pod may be in the future of a clock that was adjusted meanwhile.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// The minor versions of the kubelets 1.x that reset the readiness of pods at their start.
const RESETS_READINESS: std::ops::RangeInclusive<u32> = 31..=34;
const KUBECTL: &str = "kubectl get pods -A -o yaml --field-selector spec.nodeName=NODE";

/// The backends that answered, with their names.
fn answered<'f>(facts: &'f MachineFacts<'_>) -> Vec<(&'f str, &'f Probed)> {
    let (Ok(wanted), Some(probes)) = (&facts.wanted, &facts.probes) else {
        return Vec::new();
    };
    probe::answered(&wanted.config.table, probes)
}

/// An unknown finding about the backends whose pods are not known.
fn silent(facts: &MachineFacts<'_>) -> Finding {
    let wanted = facts.wanted.iter();
    let backends = wanted.flat_map(|wanted| &wanted.config.table.backends);
    let answers = backends.zip(facts.probes.iter().flatten());
    let silent = answers.filter(|(_, probe)| probe.is_err());
    let places = silent.map(|(backend, _)| format!("backend {:?}", backend.name));
    Finding::unknown(
        places,
        "its pods are not known, because it does not answer",
        "",
    )
}

/// The pods that run on a backend.
fn running(found: &Probed) -> impl Iterator<Item = &PodSandbox> {
    let ready = |pod: &&PodSandbox| pod.state() == PodSandboxState::SandboxReady;
    found.pods.iter().filter(ready)
}

fn name(pod: &PodSandbox) -> String {
    let names = pod.metadata.clone().unwrap_or_default();
    format!("{}/{}", names.namespace, names.name)
}

pub(super) fn backend(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Ok(wanted) = &facts.wanted else {
        return Vec::new();
    };
    let backends = &wanted.config.table.backends;
    let Some(probes) = &facts.probes else {
        let places = backends.iter().map(probe::place);
        return vec![Finding::unknown(
            places,
            "the machine does not run, so no backend was asked",
            "",
        )];
    };
    let answers = backends.iter().zip(probes);
    let bad = answers.flat_map(|(backend, probe)| {
        let faults = probe::faults(probe).into_iter();
        faults.map(|what| Finding::new([probe::place(backend)], what, ""))
    });
    bad.collect()
}

/// Without its runtime as a backend, the kubelet would not find its pods.
pub(super) fn current_runtime(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let (Ok(wanted), Ok(layout)) = (&facts.wanted, &facts.layout) else {
        return Vec::new();
    };
    let endpoint = facts.kubelet.endpoint().unwrap_or(&layout.endpoint);
    let sockets = wanted
        .config
        .table
        .backends
        .iter()
        .map(|backend| backend.socket.to_string());
    if same(endpoint, &facts.endpoint) || sockets.into_iter().any(|socket| same(&socket, endpoint))
    {
        return Vec::new();
    }
    let what = "the kubelet uses this runtime, which is not a backend, so it would lose its pods";
    vec![Finding::new(
        [endpoint],
        what,
        "a row for its handlers under [handlers]",
    )]
}

/// The paths that the backends share outside of the CRI.
pub(super) fn shared(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let wanted = facts.wanted.iter().filter(|_| facts.root.runs());
    let lost = wanted.flat_map(|wanted| collisions::lost_sockets(&wanted.config.table));
    collisions::between(&answered(facts))
        .into_iter()
        .chain(lost)
        .collect()
}

pub(super) fn cgroup_driver(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Ok(wanted) = &facts.wanted else {
        return Vec::new();
    };
    let table = &wanted.config.table;
    let probes = facts.probes.as_deref().unwrap_or_default();
    let all = table.backends.iter();
    let silent = all
        .filter(|backend| driver_of(table, probes, backend.id).is_none())
        .map(|backend| format!("backend {:?}", backend.name));
    let mut found = vec![Finding::unknown(
        silent,
        "the cgroup driver is not known; the kubelet and all backends must have the same",
        "",
    )];
    let ours = driver_of(table, probes, table.default.backend);
    for (name, what) in probe::other_drivers("the default backend", ours, &answered(facts)) {
        found.push(Finding::new([format!("backend {name:?}")], &what, ""));
    }
    if let Some(ours) = ours {
        facts.kubelet.judge_cgroup_driver(ours, &mut found);
    }
    found
}

pub(super) fn handler_without_row(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let Ok(wanted) = &facts.wanted else {
        return Vec::new();
    };
    let table = &wanted.config.table;
    let found = answered(facts).into_iter().flat_map(|(backend, found)| {
        let id = table
            .backends
            .iter()
            .find(|row| row.name == backend)
            .map(|row| row.id);
        running(found).filter_map(move |pod| {
            let handler = &pod.runtime_handler;
            let has_row = handler.is_empty() || table.name_for(id?, handler).is_some();
            let what = format!("the pod uses the handler {handler:?}, which has no row");
            (!has_row).then(|| Finding::new([name(pod)], &what, "a row under [handlers]"))
        })
    });
    found.chain([silent(facts)]).collect()
}

/// Pods that the kubelet would remove, because it does not know them.
pub(super) fn unknown_to_kubelet(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let known = match &facts.pods {
        Ok(known) => known,
        Err(found) => return vec![found.clone()],
    };
    let all = answered(facts);
    let all = all.iter().flat_map(|(_, found)| running(found));
    let unknown = all.filter(|pod| {
        let uid = pod.metadata.as_ref().map(|names| names.uid.as_str());
        !known.contains(uid.unwrap_or_default())
    });
    let what = "the kubelet does not know the pod, and would remove it";
    let hint = "removing the pod, or waiting for its end";
    vec![silent(facts), Finding::new(unknown.map(name), what, hint)]
}

pub(super) fn young(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let is_after = |pod: &PodSandbox, time: Duration| {
        u128::try_from(pod.created_at).is_ok_and(|created| created > time.as_nanos())
    };
    let all = answered(facts);
    let all = all.iter().flat_map(|(_, found)| running(found));
    let (future, past): (Vec<_>, _) = all.partition(|pod| is_after(pod, now + CLOCK_STEP));
    let since = now.saturating_sub(YOUNG);
    let young = past.into_iter().filter(|pod| is_after(pod, since));
    let what = "the pod is younger than 10 seconds";
    let ahead = "the pod was created later than this machine's time, so its age is not known";
    vec![
        silent(facts),
        Finding::new(young.map(name), what, "again after 10 seconds"),
        Finding::unknown(future.into_iter().map(name), ahead, "correcting the clock"),
    ]
}

/// A note about the pods of the node, whose specifications are in the API server only.
fn note(facts: &MachineFacts<'_>, what: &str) -> Vec<Finding> {
    let has_pods = !facts.pods.as_ref().is_ok_and(BTreeSet::is_empty);
    let place = has_pods.then_some("all pods");
    vec![Finding::new(place, what, KUBECTL)]
}

pub(super) fn admission(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let what = "whether the restarted kubelet admits the pods again depends on their specifications: node selectors \
        and labels of the node, NUMA, devices whose plug-in is not registered";
    note(facts, what)
}

pub(super) fn eviction(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    let what =
        "whether a short NotReady of the node evicts the pods depends on their tolerationSeconds";
    note(facts, what)
}

pub(super) fn readiness(facts: &MachineFacts<'_>, _: &[PlannedStep]) -> Vec<Finding> {
    if minor_version(facts).is_some_and(|minor| !RESETS_READINESS.contains(&minor)) {
        return Vec::new();
    }
    let what = "with a kubelet 1.31 to 1.34, pods with a readiness probe are not ready from its restart until their \
        first probe";
    note(facts, what)
}
