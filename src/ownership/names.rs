//! What a pod is called beside its id; read from what creates and from what lists it. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Mark, StartedWith, short};
use crate::codec::protobuf::{self, Malformed};
use crate::rpc::{SEEN_ANNOTATION, UID_LABEL};

/// `PodSandbox.state` of a sandbox that is ready (cri-api: `SANDBOX_READY`).
const READY: i32 = 0;

/// What tells a pod from others, apart from its id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// The Kubernetes uid; empty for pods that have none, or one that is longer than an id may be.
    pub uid: String,
    /// The `io.kubernetes.pod.uid` label is there and differs from the uid.
    pub odd_label: bool,
    /// The `kubernetes.io/config.seen` annotation; empty if absent or longer.
    pub seen: String,
    /// A hash of its other annotations; `None` if they cannot be read.
    pub annotations: Option<u64>,
    /// The handler that its backend lists; empty if it lists none.
    pub handler: String,
    /// What else is known of its handler.
    pub started_with: StartedWith,
    /// Its sandbox is ready, as far as is known.
    pub ready: bool,
    /// When it was created through criswitch; `None` for a pod that is only listed.
    pub created: Option<Mark>,
}

impl PodNames {
    /// Reads them from a `PodSandboxConfig`.
    ///
    /// # Errors
    /// If that is not valid protobuf.
    pub fn of_config(config: &[u8]) -> Result<PodNames, Malformed> {
        PodNames::read(config, [&[1, 2], &[6], &[7]])
    }

    /// Reads them from a listed `PodSandbox`.
    pub(super) fn of_listed(pod: &[u8]) -> Result<PodNames, Malformed> {
        Ok(PodNames {
            handler: short(protobuf::string(pod, &[7])?),
            ready: is_ready(pod),
            ..PodNames::read(pod, [&[2, 2], &[5], &[6]])?
        })
    }

    /// The pod is listed again. What its backend listed first as the handler of a pod that criswitch did not create stays:
    /// requests are routed by it.
    pub(super) fn listed_again(&mut self, pod: &[u8]) {
        self.ready = is_ready(pod);
        let handler = protobuf::string(pod, &[7]).unwrap_or_default();
        if self.created.is_some() && handler != self.handler {
            self.handler = short(handler);
        }
    }

    fn read(
        message: &[u8],
        [uid, labels, annotations]: [&[u32]; 3],
    ) -> Result<PodNames, Malformed> {
        let uid = protobuf::string(message, uid)?;
        let label = protobuf::entry(message, labels, UID_LABEL)?;
        let seen = protobuf::entry(message, annotations, SEEN_ANNOTATION)?;
        Ok(PodNames {
            uid: short(uid),
            odd_label: label.is_some_and(|label| label != uid),
            seen: short(seen.unwrap_or_default()),
            annotations: hash_of_annotations(message, annotations),
            ..PodNames::default()
        })
    }
}

/// A hash of the annotations at the path, without `config.seen`, which is new after each start of the kubelet. `None` if
/// they cannot be read.
pub fn hash_of_annotations(message: &[u8], path: &[u32]) -> Option<u64> {
    let mut annotations = BTreeMap::new();
    for pair in protobuf::all_bytes(message, path).ok()? {
        let key = protobuf::bytes(pair, &[1]).ok()?;
        if key != SEEN_ANNOTATION.as_bytes() {
            annotations.insert(key, protobuf::bytes(pair, &[2]).ok()?);
        }
    }
    let mut hasher = DefaultHasher::new();
    annotations.hash(&mut hasher);
    Some(hasher.finish())
}

fn is_ready(pod: &[u8]) -> bool {
    // An enum has 32 bits however many are sent.
    protobuf::varint(pod, &[3]).is_ok_and(|state| state as i32 == READY)
}
