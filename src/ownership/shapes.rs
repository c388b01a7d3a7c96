//! Reads listed pods and containers.

use std::hash::Hasher;

use fnv::FnvHasher;

use super::entries::{Entries, Shape};
use super::{BackendId, LONGEST_ID, PodNames};
use crate::codec::protobuf;
use crate::rpc::UID_LABEL;
use crate::rpc::fields::{container, pod_sandbox};

/// The pod of a container.
#[derive(Debug)]
pub(super) struct InPod {
    /// The pod's id.
    pub(super) pod: String,
    /// Whether the container has a label with a pod uid that differs from its pod's uid.
    pub(super) odd_label: bool,
}

impl InPod {
    /// The facts of a container of `pod`. `label` is the pod uid in the container's label.
    pub(super) fn of(pod: &str, label: Option<&str>, pods: &Entries<PodNames>) -> InPod {
        let uid = pods.get(pod).map(|pod| pod.more.uid.as_str());
        InPod {
            pod: short(pod),
            odd_label: label.is_some() && uid.is_some() && label != uid,
        }
    }
}

/// Reads a listed `PodSandbox`. A malformed pod has no names.
pub(super) struct PodShape;

impl Shape<PodNames> for PodShape {
    fn more(&self, pod: &[u8]) -> PodNames {
        PodNames::of_listed(pod).unwrap_or_default()
    }

    fn again(&self, names: &mut PodNames, pod: &[u8]) -> bool {
        names.listed_again(pod)
    }

    /// A hash of `metadata` and `created_at`.
    fn print(&self, pod: &[u8]) -> u64 {
        hash_of(pod, &[pod_sandbox::METADATA, pod_sandbox::CREATED_AT])
    }
}

/// Reads a listed `Container`. The known pods show the owner and the uid of the container's pod.
pub(super) struct ContainerShape<'a>(pub(super) &'a Entries<PodNames>);

impl Shape<InPod> for ContainerShape<'_> {
    fn more(&self, container: &[u8]) -> InPod {
        let label = protobuf::entry(container, &[container::LABELS], UID_LABEL);
        let label = label.ok().flatten();
        InPod::of(pod_of(container), label, self.0)
    }

    /// A hash of `pod_sandbox_id`, `metadata` and `created_at`.
    fn print(&self, container: &[u8]) -> u64 {
        hash_of(
            container,
            &[
                container::POD_SANDBOX_ID,
                container::METADATA,
                container::CREATED_AT,
            ],
        )
    }

    fn pods_owner(&self, container: &[u8]) -> Option<(BackendId, u64)> {
        let pod = self.0.get(pod_of(container))?;
        Some((pod.backend, pod.first))
    }
}

/// The id of a listed `Container`'s pod.
fn pod_of(container: &[u8]) -> &str {
    protobuf::string(container, &[container::POD_SANDBOX_ID]).unwrap_or("")
}

/// A hash of the fields with these numbers, as encoded.
fn hash_of(message: &[u8], numbers: &[u32]) -> u64 {
    let mut hasher = FnvHasher::default();
    for field in protobuf::fields(message).flatten() {
        if numbers.contains(&field.number) {
            hasher.write(field.raw);
        }
    }
    hasher.finish()
}

/// The name, or an empty string if it is longer than a valid name.
pub(super) fn short(name: &str) -> String {
    if name.len() > LONGEST_ID { "" } else { name }.to_owned()
}
