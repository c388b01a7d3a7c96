//! Ids that no runtime should return: control characters, quotes, other scripts, very long ids.
//!
//! criswitch uses ids as keys, and writes them to logs, errors and JSON.

use criswitch_cri::codec::cri;

use super::{Reply, containers, fine};

pub const ODD_IDS: &[&str] = &[
    " ",
    "line\nbreak",
    "nul\0",
    "\u{1b}[31mred",
    "quote\"\\",
    "%s%n%00",
    "../../etc/passwd",
    "\u{202e}\u{e4}\u{1f980}",
];

pub fn odd_ids(rpc: &str) -> Option<Reply> {
    (rpc == "ListContainers").then(|| fine(&containers(ODD_IDS.iter().copied())))
}

/// Ids of this length.
pub fn long_ids<const LENGTH: usize>(rpc: &str) -> Option<Reply> {
    let id = "x".repeat(LENGTH);
    match rpc {
        "ListContainers" => Some(fine(&containers([&*id]))),
        "RunPodSandbox" => Some(fine(&cri::RunPodSandboxResponse { pod_sandbox_id: id })),
        _ => None,
    }
}
