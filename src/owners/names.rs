//! What a pod is called beside its id; read from what creates and from what lists it. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use super::short;
use crate::rpc::{SEEN_ANNOTATION, UID_LABEL};
use crate::wire::{self, Malformed};

/// What tells a pod from others, apart from its id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// The Kubernetes uid; empty for pods that have none, or one that is longer than an id may be.
    pub uid: String,
    /// The `io.kubernetes.pod.uid` label is there and differs from the uid.
    pub odd_label: bool,
    /// The `kubernetes.io/config.seen` annotation; empty if absent or longer.
    pub seen: String,
    /// When it was created, in nanoseconds since 1970.
    pub created_at: u64,
}

impl PodNames {
    /// Reads them from the `PodSandboxConfig` of a pod that is created now.
    ///
    /// # Errors
    /// If that is not valid protobuf.
    pub fn of_config(config: &[u8]) -> Result<PodNames, Malformed> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::read(
            config,
            [&[1, 2], &[6], &[7]],
            u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        )
    }

    /// Reads them from a listed `PodSandbox`.
    pub(super) fn of_listed(pod: &[u8]) -> Result<PodNames, Malformed> {
        let created_at = wire::varint(pod, &[4])?.cast_signed();
        // Signed in the CRI; a pod from before 1970 is none.
        let paths: [&[u32]; 3] = [&[2, 2], &[5], &[6]];
        Self::read(pod, paths, u64::try_from(created_at).unwrap_or(0))
    }

    fn read(
        message: &[u8],
        [uid, labels, annotations]: [&[u32]; 3],
        created_at: u64,
    ) -> Result<PodNames, Malformed> {
        let uid = wire::string(message, uid)?;
        let label = wire::entry(message, labels, UID_LABEL)?;
        Ok(PodNames {
            uid: short(uid),
            odd_label: label.is_some_and(|label| label != uid),
            seen: short(wire::entry(message, annotations, SEEN_ANNOTATION)?.unwrap_or_default()),
            created_at,
        })
    }
}
