//! The features that a runtime reports in its Status: the bools of `RuntimeFeatures` and of `RuntimeHandlerFeatures`.
//! `tests/table.rs` compares them with the interface.

use std::collections::BTreeSet;

use prost::Message;

use super::ROWS;
use crate::codec::cri::{RuntimeFeatures, RuntimeHandlerFeatures};
use crate::codec::protobuf::{self, Malformed};

/// A feature that a runtime may report.
#[derive(Debug)]
pub struct Feature {
    /// The CRI's name of the feature.
    pub name: &'static str,
    /// The number of the field.
    pub number: u32,
    /// The RPCs that a runtime with the feature has.
    pub rpcs: &'static [&'static str],
}

impl Feature {
    /// Whether criswitch serves the RPCs that the feature stands for. The kubelet makes these calls if the node has the
    /// feature, and does not repeat a call that is `Unimplemented`.
    pub fn is_served(&self) -> bool {
        self.rpcs
            .iter()
            .all(|rpc| ROWS.iter().any(|row| row.name == *rpc))
    }
}

/// The features of `RuntimeFeatures`. They do not depend on the handler.
pub const OF_RUNTIME: &[Feature] = &[
    feature("supplemental_groups_policy", 1, &[]),
    feature("user_namespaces_host_network", 2, &[]),
    feature("mount_options", 3, &[]),
    // The two features below are from k8s.io/cri-api v0.38.0-beta.0.
    feature("cgroup_mount_mode", 4, &[]),
    feature(
        "seccomp_profile_oci",
        5,
        &[
            "PullSecurityProfile",
            "ListSecurityProfiles",
            "RemoveSecurityProfile",
        ],
    ),
];

/// The features of `RuntimeHandlerFeatures`.
pub const OF_HANDLER: &[Feature] = &[
    feature("recursive_read_only_mounts", 1, &[]),
    feature("user_namespaces", 2, &[]),
    feature("cgroup_namespaces", 3, &[]),
];

const fn feature(name: &'static str, number: u32, rpcs: &'static [&'static str]) -> Feature {
    Feature { name, number, rpcs }
}

/// The names of the features that are true in `features`.
pub fn of_runtime(features: &RuntimeFeatures) -> Vec<&'static str> {
    names(OF_RUNTIME, &features.encode_to_vec())
}

/// The names of the features that are true in `features`.
pub fn of_handler(features: &RuntimeHandlerFeatures) -> Vec<&'static str> {
    names(OF_HANDLER, &features.encode_to_vec())
}

/// The names of the features of `all` that the encoded message `features` has.
pub fn names(all: &[Feature], features: &[u8]) -> Vec<&'static str> {
    all.iter()
        .filter(|feature| is_true(features, feature.number) == Ok(true))
        .map(|feature| feature.name)
        .collect()
}

/// The fields of the encoded message `features` that are true and not in `all`: features of a later version of the CRI.
pub fn unknown(all: &[Feature], features: &[u8]) -> Vec<u32> {
    protobuf::fields(features)
        .flatten()
        .map(|field| field.number)
        .filter(|number| all.iter().all(|feature| feature.number != *number))
        .filter(|number| is_true(features, *number) == Ok(true))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Whether the field with this number is a bool and true.
///
/// # Errors
/// If `features` is not valid protobuf.
pub fn is_true(features: &[u8], number: u32) -> Result<bool, Malformed> {
    match protobuf::varint(features, &[number]) {
        Err(Malformed::Type(_)) => Ok(false),
        value => Ok(value? != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_served_only_with_all_of_its_rpcs() {
        for (rpcs, is_served) in [
            (&[][..], true),
            (&["PullImage", "Version"], true),
            (&["PullImage", "PullNothing"], false),
        ] {
            assert_eq!(feature("x", 9, rpcs).is_served(), is_served, "{rpcs:?}");
        }
    }

    #[test]
    fn a_true_bool_of_a_later_version_is_unknown_and_other_fields_are_no_features() {
        // In order: a known bool, an unknown bool twice, an unknown bool that is false, a string.
        let features = [1 << 3, 1, 9 << 3, 1, 9 << 3, 1, 10 << 3, 0, 11 << 3 | 2, 0];
        assert_eq!(unknown(OF_RUNTIME, &features), [9]);
        assert_eq!(names(OF_RUNTIME, &features), ["supplemental_groups_policy"]);
    }
}
