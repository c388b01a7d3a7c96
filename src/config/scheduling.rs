//! What a row says for the RuntimeClass that is made of it. Only for manifests: nothing of it changes where a pod goes.

use std::collections::BTreeMap;

use strum::{AsRefStr, EnumString, VariantNames};

/// Where the pods of a RuntimeClass may run, and what each costs beside its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// By the resource's name (cpu, memory), a quantity as it is written.
    pub overhead: BTreeMap<String, String>,
    /// The labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// The taints that its pods tolerate.
    pub tolerations: Vec<Toleration>,
}

/// Which taints are tolerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// A taint's key; empty for every key.
    pub key: String,
    /// How the value counts.
    pub operator: Operator,
    /// The taint's value; empty with [`Operator::Exists`].
    pub value: String,
    /// What the taint does to others.
    pub effect: Effect,
    /// How long, with [`Effect::NoExecute`]; for ever without.
    pub seconds: Option<i64>,
}

/// How a toleration's value counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, AsRefStr, VariantNames)]
pub enum Operator {
    /// Any value will do.
    Exists,
    /// The taint's value must be the same.
    #[default]
    Equal,
}

/// What a taint does to a pod that does not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, AsRefStr, VariantNames)]
pub enum Effect {
    /// Any of these.
    #[default]
    #[strum(serialize = "")]
    Any,
    /// The pod is not put on the node.
    NoSchedule,
    /// It is put elsewhere if that can be.
    PreferNoSchedule,
    /// It is not put on the node, and evicted if it runs there.
    NoExecute,
}

impl Scheduling {
    /// Whether the row says nothing of it.
    pub fn is_empty(&self) -> bool {
        *self == Scheduling::default()
    }
}

impl Toleration {
    /// Whether two are for the same taints, however long they last: the API server takes no list with both.
    pub fn same_taints(&self, other: &Toleration) -> bool {
        (&self.key, self.operator, &self.value, self.effect)
            == (&other.key, other.operator, &other.value, other.effect)
    }
}
