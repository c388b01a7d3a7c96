//! A pod's names besides its id, read from requests that create a pod and from lists. Does no I/O.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use criswitch_cri::codec::protobuf::{self, MAP_KEY, MAP_VALUE, Malformed};
use criswitch_cri::rpc::fields::{pod_sandbox, pod_sandbox_config, pod_sandbox_metadata};
use criswitch_cri::rpc::{SEEN_ANNOTATION, UID_LABEL};

use super::shapes::bounded_name;
use super::{Mark, StartedWith};

/// The handler of a listed pod.
const HANDLER: &[u32] = &[pod_sandbox::RUNTIME_HANDLER];
/// `PodSandbox.state` of a sandbox that is ready (cri-api: `SANDBOX_READY`).
const READY: i32 = 0;

/// A pod's facts besides its id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// The Kubernetes uid; empty if the pod has none, or if it is longer than the limit for ids.
    pub uid: String,
    /// Whether the `io.kubernetes.pod.uid` label is there and differs from the uid.
    pub odd_label: bool,
    /// The `kubernetes.io/config.seen` annotation; empty if absent or too long.
    pub seen: String,
    /// A hash of the annotations except `config.seen`; `None` if the annotations cannot be decoded.
    pub annotations: Option<u64>,
    /// The handler in the backend's list; empty if the backend lists none.
    pub handler: String,
    /// The handler that the pod was created with.
    pub started_with: StartedWith,
    /// Whether the sandbox is ready, as far as known.
    pub ready: bool,
    /// When the pod was created through criswitch; `None` for a pod that is only listed.
    pub created: Option<Mark>,
}

impl PodNames {
    /// Reads the names from a `PodSandboxConfig`.
    ///
    /// # Errors
    /// `config` is not valid protobuf.
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

    /// Reads the names from a listed `PodSandbox`.
    pub(super) fn of_listed(pod: &[u8]) -> Result<PodNames, Malformed> {
        Ok(PodNames {
            handler: bounded_name(protobuf::string(pod, HANDLER)?),
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

    /// Updates the names from a later list. The handler changes only if the pod was created through criswitch: any
    /// other pod keeps the handler that was listed first, because requests are routed by that handler. Returns whether
    /// a name changed.
    pub(super) fn listed_again(&mut self, pod: &[u8]) -> bool {
        let was_ready = std::mem::replace(&mut self.ready, is_ready(pod));
        let handler = protobuf::string(pod, HANDLER).unwrap_or_default();
        let is_new = self.created.is_some() && handler != self.handler;
        if is_new {
            self.handler = bounded_name(handler);
        }
        is_new || was_ready != self.ready
    }

    fn read(
        message: &[u8],
        [uid, labels, annotations]: [&[u32]; 3],
    ) -> Result<PodNames, Malformed> {
        let uid = protobuf::string(message, uid)?;
        let label = protobuf::entry(message, labels, UID_LABEL)?;
        let seen = protobuf::entry(message, annotations, SEEN_ANNOTATION)?;
        Ok(PodNames {
            uid: bounded_name(uid),
            odd_label: label.is_some_and(|label| label != uid),
            seen: bounded_name(seen.unwrap_or_default()),
            annotations: hash_of_annotations(message, annotations),
            ..PodNames::default()
        })
    }
}

/// The most annotations of a pod that are compared. A client may send any number.
const MOST_ANNOTATIONS: usize = 4096;

/// A hash of the annotations at `path`, without `config.seen`, which changes at each start of the kubelet. `None` if
/// the annotations cannot be decoded, or if there are too many.
pub fn hash_of_annotations(message: &[u8], path: &[u32]) -> Option<u64> {
    let mut annotations = BTreeMap::new();
    let pairs = protobuf::first_bytes(message, path, MOST_ANNOTATIONS + 1).ok()?;
    if pairs.len() > MOST_ANNOTATIONS {
        return None;
    }
    for pair in pairs {
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
    // A protobuf enum has 32 bits, so higher bits of the integer do not count.
    protobuf::varint(pod, &[pod_sandbox::STATE]).is_ok_and(|state| state as i32 == READY)
}
