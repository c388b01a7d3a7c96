//! The subnets of pods that a runtime reports.

use std::collections::BTreeSet;

use serde_json::Value;

/// A subnet of pods, and the name of its CNI network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The name of the CNI network.
    pub network: String,
    /// The subnet, as the configuration has it.
    pub subnet: String,
}

/// The subnets in the CNI configuration that containerd reports in its verbose Status.
pub fn of_cni(cni: &Value) -> Vec<Subnet> {
    let mut subnets = Vec::new();
    for network in cni["Networks"].as_array().into_iter().flatten() {
        let config = &network["Config"];
        let mut found = BTreeSet::new();
        if let Ok(source) = serde_json::from_str(config["Source"].as_str().unwrap_or_default()) {
            find_subnets(&source, &mut found);
        }
        subnets.extend(found.into_iter().map(|subnet| Subnet {
            network: config["Name"].as_str().unwrap_or_default().to_owned(),
            subnet,
        }));
    }
    subnets
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
