//! The subnets of pods that a runtime reports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde_json::Value;

/// A subnet of pods, and the name of its CNI network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The name of the CNI network.
    pub network: String,
    /// The subnet, as the configuration has it.
    pub subnet: String,
}

impl Subnet {
    /// Whether an address may be in both subnets. A text that is not a subnet only overlaps with the same text.
    pub fn overlaps(&self, other: &Subnet) -> bool {
        match (range(&self.subnet), range(&other.subnet)) {
            (Some(ours), Some(theirs)) => {
                ours.start() <= theirs.end() && theirs.start() <= ours.end()
            }
            _ => self.subnet == other.subnet,
        }
    }
}

/// The addresses of a subnet such as `10.66.0.0/16` as numbers. Addresses of IPv4 are those of IPv6 that stand for
/// them.
fn range(subnet: &str) -> Option<RangeInclusive<u128>> {
    let (address, length) = subnet.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    let (address, host) = match address.parse().ok()? {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), 32_u32.checked_sub(length)?),
        IpAddr::V6(address) => (address, 128_u32.checked_sub(length)?),
    };
    let hosts = 1_u128
        .checked_shl(host)
        .map_or(u128::MAX, |count| count - 1);
    let first = address.to_bits() & !hosts;
    Some(first..=first | hosts)
}

/// The subnets in the CNI configuration that containerd reports in its verbose Status.
pub fn of_cni(cni: &Value) -> Vec<Subnet> {
    let mut subnets = Vec::new();
    for network in cni["Networks"].as_array().into_iter().flatten() {
        let config = &network["Config"];
        if let Ok(source) = serde_json::from_str(config["Source"].as_str().unwrap_or_default()) {
            let name = config["Name"].as_str().unwrap_or_default();
            subnets.extend(of_network(name, &source));
        }
    }
    subnets
}

/// The subnets in the CNI configuration of the network with this name.
pub fn of_network(name: &str, config: &Value) -> Vec<Subnet> {
    let mut found = BTreeSet::new();
    find_subnets(config, &mut found);
    let subnets = found.into_iter().map(|subnet| Subnet {
        network: name.to_owned(),
        subnet,
    });
    subnets.collect()
}

/// Adds every `subnet` in a CNI configuration. The IPAM plugin host-local has them at several depths.
fn find_subnets(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(value["subnet"].as_str().map(str::to_owned));
            fields.values().for_each(|value| find_subnets(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| find_subnets(value, found)),
        _ => {}
    }
}
