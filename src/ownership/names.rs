//! What a pod is called beside its id; read from what creates and from what lists it. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Mark, StartedWith, short};
use crate::codec::protobuf::{self, MAP_KEY, MAP_VALUE, Malformed};
use crate::rpc::fields::{pod_sandbox, pod_sandbox_config, pod_sandbox_metadata};
use crate::rpc::{SEEN_ANNOTATION, UID_LABEL};

/// The handler of a listed pod.
const HANDLER: &[u32] = &[pod_sandbox::RUNTIME_HANDLER];
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
        PodNames::read(
            config,
            [
                &[pod_sandbox_config::METADATA, pod_sandbox_metadata::UID],
                &[pod_sandbox_config::LABELS],
                &[pod_sandbox_config::ANNOTATIONS],
            ],
        )
    }

    /// Reads them from a listed `PodSandbox`.
    pub(super) fn of_listed(pod: &[u8]) -> Result<PodNames, Malformed> {
        Ok(PodNames {
            handler: short(protobuf::string(pod, HANDLER)?),
            ready: is_ready(pod),
            ..PodNames::read(
                pod,
                [
                    &[pod_sandbox::METADATA, pod_sandbox_metadata::UID],
                    &[pod_sandbox::LABELS],
                    &[pod_sandbox::ANNOTATIONS],
                ],
            )?
        })
    }

    /// The pod is listed again. What its backend listed first as the handler of a pod that criswitch did not create stays:
    /// requests are routed by it.
    pub(super) fn listed_again(&mut self, pod: &[u8]) {
        self.ready = is_ready(pod);
        let handler = protobuf::string(pod, HANDLER).unwrap_or_default();
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
        let key = protobuf::bytes(pair, &[MAP_KEY]).ok()?;
        if key != SEEN_ANNOTATION.as_bytes() {
            annotations.insert(key, protobuf::bytes(pair, &[MAP_VALUE]).ok()?);
        }
    }
    let mut hasher = DefaultHasher::new();
    annotations.hash(&mut hasher);
    Some(hasher.finish())
}

fn is_ready(pod: &[u8]) -> bool {
    // An enum has 32 bits however many are sent.
    protobuf::varint(pod, &[pod_sandbox::STATE]).is_ok_and(|state| state as i32 == READY)
}
