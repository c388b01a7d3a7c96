//! RPCs that a runtime lacks, for example because the runtime is older than the RPC.

use criswitch::rpc::Row;
use fastrand::Rng;

/// RPCs that came into the CRI together. A runtime lacks all RPCs of a group, or none.
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

/// A set of the groups in `GROUPS`, one bit for each group.
pub type Lacking = u8;

pub fn any(rng: &mut Rng) -> Lacking {
    rng.u8(..) & ((1 << GROUPS.len()) - 1)
}

pub fn lacks(lacking: Lacking, row: &Row) -> bool {
    let group = GROUPS.iter().position(|group| group.contains(&row.name));
    group.is_some_and(|at| lacking & (1 << at) != 0)
}
