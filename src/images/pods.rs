//! What pods have asked of the image stores, for as long as it matters. In memory only; does no I/O.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// How many "absent" answers to pods are remembered; a node has a few hundred containers.
const ABSENT: usize = 4096;

/// What pods have asked.
#[derive(Debug, Default)]
pub(crate) struct PodRequests {
    /// Hashes of a pod's `config.seen` and a reference that was answered with "absent".
    absent: HashSet<u64>,
    hasher: RandomState,
}

impl PodRequests {
    /// Notes that the answer to this pod is that `reference` is absent. Returns whether it was so before.
    ///
    /// "Absent" makes the kubelet pull, and the pull names the pod by its uid. A pod that asks again without a pull does
    /// not pull at all (`imagePullPolicy: Never`).
    pub(super) fn is_absent_again(&mut self, seen: &str, reference: &str) -> bool {
        let pair = self.hasher.hash_one((seen, reference));
        if self.absent.len() >= ABSENT && !self.absent.contains(&pair) {
            // Rarer than a restart of the kubelet; a pod that is forgotten gets the answer once more.
            self.absent.clear();
        }
        !self.absent.insert(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_image_is_remembered_by_pod_and_reference_up_to_a_limit() {
        let mut requests = PodRequests::default();
        assert!(!requests.is_absent_again("a", "app"));
        assert!(requests.is_absent_again("a", "app"));
        assert!(!requests.is_absent_again("b", "app"));
        assert!(!requests.is_absent_again("a", "web"));
        for number in 0..2 * ABSENT {
            requests.is_absent_again(&number.to_string(), "app");
            assert!(requests.absent.len() <= ABSENT);
        }
    }
}
