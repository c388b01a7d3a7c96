//! A row's settings for its RuntimeClass. `criswitch manifests` reads them; routing does not.

use std::collections::BTreeMap;

use strum::{AsRefStr, EnumString, VariantNames};

/// The name of a RuntimeClass, the nodes that may run its pods, and the resources that each pod uses besides its
/// containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// The name of the RuntimeClass; `None` for the name of the handler.
    pub class: Option<String>,
    /// Quantities as written, by the name of the resource (cpu, memory).
    pub overhead: BTreeMap<String, String>,
    /// The labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// The taints that the pods tolerate.
    pub tolerations: Vec<Toleration>,
}

/// A toleration of taints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key; empty for every key.
    pub key: String,
    /// How the value is compared.
    pub operator: Operator,
    /// The taint's value; empty with [`Operator::Exists`].
    pub value: String,
    /// The effect of the taint on pods without the toleration.
    pub effect: TaintEffect,
    /// How long the pod tolerates [`TaintEffect::NoExecute`], in seconds; `None` means forever.
    pub seconds: Option<i64>,
}

/// How a toleration compares the value of a taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, AsRefStr, VariantNames)]
pub enum Operator {
    /// Any value matches.
    Exists,
    /// The taint must have the toleration's value.
    #[default]
    Equal,
}

/// The effect of a taint on a pod that does not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, AsRefStr, VariantNames)]
pub enum TaintEffect {
    /// All effects.
    #[default]
    #[strum(serialize = "")]
    Any,
    /// The pod is not scheduled on the node.
    NoSchedule,
    /// The pod is scheduled elsewhere if possible.
    PreferNoSchedule,
    /// The pod is not scheduled on the node. If the pod already runs on the node, it is evicted.
    NoExecute,
}

impl Scheduling {
    /// Whether the row has none of these settings.
    pub fn is_empty(&self) -> bool {
        *self == Scheduling::default()
    }
}

impl Toleration {
    /// Whether both tolerations match the same taints; `seconds` may differ. The API server rejects a list with both.
    pub fn same_taints(&self, other: &Toleration) -> bool {
        (&self.key, self.operator, &self.value, self.effect)
            == (&other.key, other.operator, &other.value, other.effect)
    }
}
