//! RPCs that runtimes lack: some are older than the interface.

use criswitch::rpc::Row;
use fastrand::Rng;

/// What came into the CRI together, or is left out together.
const GROUPS: [&[&str]; 7] = [
    &[
        "StreamPodSandboxes",
        "StreamContainers",
        "StreamImages",
        "StreamContainerStats",
        "StreamPodSandboxStats",
        "StreamPodSandboxMetrics",
    ],
    &["GetContainerEvents"],
    &["RuntimeConfig"],
    &["UpdateRuntimeConfig"],
    &["ListPodSandboxStats", "PodSandboxStats"],
    &["ListMetricDescriptors", "ListPodSandboxMetrics"],
    &[
        "UpdatePodSandboxResources",
        "CheckpointContainer",
        "CheckpointPod",
        "RestorePod",
    ],
];

/// One bit for each group.
pub type Lacking = u8;

pub fn any(rng: &mut Rng) -> Lacking {
    rng.u8(..) & ((1 << GROUPS.len()) - 1)
}

pub fn lacks(lacking: Lacking, row: &Row) -> bool {
    let group = GROUPS.iter().position(|group| group.contains(&row.name));
    group.is_some_and(|at| lacking & (1 << at) != 0)
}
