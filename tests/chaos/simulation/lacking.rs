//! RPCs that a runtime lacks, for example because the runtime is older than the RPC.

use criswitch_cri::rpc::Row;
use fastrand::Rng;

/// RPCs that came into the CRI together. A runtime lacks all RPCs of a group, or none.
pub const GROUPS: [&[&str]; 9] = [
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
    &[
        "PullSecurityProfile",
        "ListSecurityProfiles",
        "RemoveSecurityProfile",
    ],
    // Some shims of containerd lack these RPCs, and cri-dockerd lacks ReopenContainerLog.
    &[
        "UpdateContainerResources",
        "ReopenContainerLog",
        "ExecSync",
        "Exec",
        "Attach",
        "PortForward",
        "ContainerStats",
    ],
];

/// A set of the groups in `GROUPS`, one bit for each group.
pub type Lacking = u16;

pub fn any(rng: &mut Rng) -> Lacking {
    rng.u16(..) & ((1 << GROUPS.len()) - 1)
}

pub fn lacks(lacking: Lacking, row: &Row) -> bool {
    let group = GROUPS.iter().position(|group| group.contains(&row.name));
    group.is_some_and(|at| lacking & (1 << at) != 0)
}
